package image_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/hooks/image"
	"cucriu/internal/kit/imagedir"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// summed makes an image with checksums, as a dump does.
func summed(t *testing.T, dir, memory string) *image.Image {
	t.Helper()
	partial, err := imagedir.NewPartial(dir, func(string) bool { return false })
	must(t, err)
	defer partial.Close()
	for name, data := range map[string]string{"inventory.img": "criu's", "pages-1.img": memory} {
		must(t, os.WriteFile(filepath.Join(partial.Dir(), name), []byte(data), 0o600))
	}
	must(t, partial.Publish(true))
	return image.Open(dir)
}

// TestAnImageIsKnownByItsChecksums: wherever a copy of it lies. One without them has a name on this host alone.
func TestAnImageIsKnownByItsChecksums(t *testing.T) {
	parent := t.TempDir()
	one, other := summed(t, filepath.Join(parent, "one"), "memory"), summed(t, filepath.Join(parent, "other"), "memorY")
	copied := filepath.Join(parent, "copy")
	must(t, os.CopyFS(copied, os.DirFS(one.Dir())))
	if d := one.Digest(); d == "" || one.ID() != d || image.Open(copied).Digest() != d || other.Digest() == d {
		t.Errorf("digest %s, of a copy %s, of another image %s", d, image.Open(copied).Digest(), other.Digest())
	}
	must(t, os.Remove(filepath.Join(copied, imagedir.SumsName)))
	plain, moved := image.Open(copied), filepath.Join(parent, "moved")
	id := plain.ID()
	must(t, os.Rename(copied, moved))
	if plain.Digest() != "" || id == one.ID() || image.Open(moved).ID() != id || image.Open(parent).ID() == id {
		t.Errorf("without checksums: digest %q, ID %s, moved %s", plain.Digest(), id, image.Open(moved).ID())
	}
	must(t, os.WriteFile(filepath.Join(moved, imagedir.SumsName), []byte("{"), 0o600))
	if damaged := image.Open(moved); damaged.Digest() != "" || damaged.Check(t.Context()) == nil {
		t.Errorf("with a damaged list: digest %q, check %v", damaged.Digest(), damaged.Check(t.Context()))
	}
}

// TestAnImageIsOnlyRead: in a read-only file system, and while another program has locked all of it.
func TestAnImageIsOnlyRead(t *testing.T) {
	mounted := t.TempDir()
	must(t, unix.Mount("tmpfs", mounted, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { must(t, unix.Unmount(mounted, unix.MNT_DETACH)) })
	dir := filepath.Join(mounted, "images")
	digest := summed(t, dir, "memory").Digest()
	must(t, unix.Mount("", mounted, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	for _, name := range []string{".", "inventory.img", imagedir.SumsName} {
		f, err := os.Open(filepath.Join(dir, name))
		must(t, err)
		defer f.Close()
		must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	}
	img := image.Open(dir)
	must(t, img.Check(t.Context()))
	if _, err := img.Manifest(); img.Digest() != digest || !errors.Is(err, os.ErrNotExist) || img.IsCheckpoint() {
		t.Errorf("digest %s, want %s; manifest: %v", img.Digest(), digest, err)
	}
}
