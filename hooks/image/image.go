package image

import (
	"context"
	"fmt"
	"os"

	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/pages"
)

// Image is what a dump or a checkpoint has made. It never changes. To open one creates nothing in it and locks
// nothing: it may be in a read-only file system, and any number of programs may have it open. What must not run twice
// is a job, of which an image knows nothing.
type Image struct {
	of *imagedir.Image
	// Of a checkpoint of a long job, whose record has the checksums. check is nil for any other.
	digest string
	check  CheckFunc
}

// CheckFunc compares the files of an image with checksums that are not in it: without workers, as far as that is quick.
type CheckFunc func(ctx context.Context, workers int, read func(bytes int)) error

// Open opens the image in a directory. It reads nothing yet, and what is wrong with the image, its methods say: see
// [PresentFindings] for a directory that holds none.
func Open(dir string) *Image { return &Image{of: imagedir.Open(dir)} }

// OpenCheckpoint opens the image of a checkpoint of a long job, which has a record beside it with the checksums of all
// files. digest is that of the record.
func OpenCheckpoint(dir, digest string, check CheckFunc) *Image {
	return &Image{imagedir.Open(dir), digest, check}
}

// Dir is where the image is.
func (i *Image) Dir() string { return i.of.Dir }

// IsCheckpoint reports whether the image is a checkpoint of a long job.
func (i *Image) IsCheckpoint() bool { return i.check != nil }

// Digest is by what the image is known, wherever a copy of it lies: that of the list of its checksums. It is "" if
// there is none, because criu or an early version of cucriu has made the image, or if the list is damaged.
func (i *Image) Digest() string {
	if i.check != nil {
		return i.digest
	}
	sums, _ := i.of.Sums() // whoever reads the image says what is wrong with it
	return imagedir.Digest(sums)
}

// ID is the digest or, for an image that has none, what tells its directory from others on this host.
func (i *Image) ID() string {
	if digest := i.Digest(); digest != "" {
		return digest
	}
	info, err := os.Stat(i.of.Dir)
	if err != nil {
		return "directory:" + i.of.Dir
	}
	id := pages.Identify(info)
	return fmt.Sprintf("directory:%d:%d", id.Device, id.Inode)
}

// Namespaces says which namespaces a restore of an image makes, or enters where the caller names one. In place of the
// others, its processes have those of criu.
type Namespaces struct{ PID, Network, Mount bool }

// Namespaces returns the namespaces that the image has of its own.
func (i *Image) Namespaces() (Namespaces, error) {
	tree, err := i.of.Tree()
	return Namespaces{tree.OwnPIDs, tree.OwnNetwork, tree.OwnMounts}, err
}

// Check compares the files of the image with their checksums, except the GPU state, which a restore itself compares.
func (i *Image) Check(ctx context.Context) error {
	if i.check != nil {
		return i.check(ctx, 0, func(int) {})
	}
	return i.of.CheckSums(ctx)
}
