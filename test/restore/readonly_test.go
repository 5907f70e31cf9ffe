package restore

import (
	"errors"
	"maps"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// TestAnImageInAReadOnlyFileSystemIsEnough: nothing is written beside it to look at it, or to restore it.
func TestAnImageInAReadOnlyFileSystemIsEnough(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		testenv.Eventually(t, testenv.Soon, "the job has ended", job.Gone)
		before := contents(t, images)
		err := errors.Join(unix.Mount(images, images, "", unix.MS_BIND, ""),
			unix.Mount("", images, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(images, unix.MNT_DETACH) })
		if err := os.Mkdir(images+"/new", 0o700); !errors.Is(err, unix.EROFS) {
			t.Fatalf("it can be written: %v", err)
		}
		for _, args := range [][]string{
			{"verify", images},
			{"inspect", images},
			{"map", "-D", images},
			{"check", "-D", images},
			{"restore", "-D", images},
		} {
			testenv.Exits(t, host, 0, args...)
		}
		job.Runs()
		if !maps.Equal(contents(t, images), before) {
			t.Error("the image is another one")
		}
	})
}
