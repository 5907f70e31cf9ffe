package imagedir

import (
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"cucriu/internal/kit/criuimage"
)

// Image is the image in a directory. It does not change, so each part is read once, when it is first asked for. To
// open one creates nothing in it and locks nothing: it may be in a read-only file system, and any number of programs
// may have it open.
type Image struct {
	Dir      string
	Manifest func() (Manifest, error)          // see [ReadManifest]
	Sums     func() ([]File, error)            // see [ReadSums]
	Tree     func() (criuimage.Tree, error)    // see [criuimage.ReadTree]
	Files    func() ([]criuimage.File, error)  // see [criuimage.Files]
	Sockets  func() (criuimage.Sockets, error) // see [criuimage.ReadSockets]
}

// Open opens the image in a directory. It reads nothing yet.
func Open(dir string) *Image {
	tree := once(dir, criuimage.ReadTree)
	sockets := func(dir string) (criuimage.Sockets, error) {
		of, err := tree()
		if err != nil {
			return criuimage.Sockets{}, err
		}
		return criuimage.ReadSockets(dir, of)
	}
	return &Image{dir, once(dir, ReadManifest), once(dir, ReadSums), tree, once(dir, criuimage.Files), once(dir, sockets)}
}

func once[T any](dir string, read func(dir string) (T, error)) func() (T, error) {
	return sync.OnceValues(func() (T, error) { return read(dir) })
}

// Whole is [criuimage.Check], and refuses an image with checksums in which a file of criu is missing, is no regular
// file, or does not have its size. It does not compare the checksums.
func (i *Image) Whole() (criuimage.Tree, error) {
	tree, err := criuimage.Check(i.Dir, i.Tree)
	if err != nil {
		return tree, err
	}
	return tree, i.checkFiles(func(root *os.Root, files []File) error {
		for _, of := range files {
			if of.Name == ManifestName { // whoever reads it says what is wrong with it
				continue
			}
			f, err := of.Open(root)
			if err != nil {
				return err
			}
			f.Close()
		}
		return nil
	})
}

// Digest returns by what an image is known wherever it lies: the digest of the list of its files with their checksums;
// "" if there is no list. It tells images apart, and does not show that they are undamaged.
func Digest(files []File) string {
	if len(files) == 0 {
		return ""
	}
	sum := sha256.New()
	byName := func(a, b File) int { return strings.Compare(a.Name, b.Name) }
	for _, f := range slices.SortedFunc(slices.Values(files), byName) {
		fmt.Fprintf(sum, "%s\x00%d %08x\n", f.Name, f.Bytes, f.CRC32C)
	}
	return fmt.Sprintf("sha256:%x", sum.Sum(nil))
}
