package imagedir

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/pages"
	"cucriu/internal/kit/records"
)

// SumsName is the file name of the checksums of criu's images and the manifest, in the image directory. The
// GPU state has its own. What else is there is not needed for a restore, or may be changed before one.
const SumsName = "cucriu-checksums.json"

var sumsKind = records.Kind[[]File]{
	Name: SumsName, What: "list of checksums", Remedy: manifestKind.Remedy, Version: 1, Key: "files", Limit: 64 << 20, Strict: true,
	Check: func(files *[]File) error {
		_, err := ValidateFiles(*files, hasSum)
		return err
	},
}

func hasSum(name string) bool {
	return IsFileName(name) && !strings.Contains(name, "/") && (strings.HasSuffix(name, ".img") || name == ManifestName)
}

// sumImage makes the checksums of an image that is complete.
func sumImage(ctx context.Context, dir string) ([]File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	state, err := pages.Names(dir)
	if err != nil {
		return nil, err
	}
	var files []File
	for _, entry := range entries {
		if name := entry.Name(); hasSum(name) && !slices.Contains(state, name) {
			info, err := entry.Info()
			if err != nil {
				return nil, err
			}
			files = append(files, File{Name: name, Bytes: info.Size()})
		}
	}
	sums, err := sumFiles(ctx, root, files, runtime.GOMAXPROCS(0), func(int) {})
	for i := range files {
		files[i].CRC32C = sums[i]
	}
	return files, err
}

// Finish waits until an image is on disk, if sync says so. With sums, its files get checksums meanwhile,
// which many threads make faster than a disk writes. dir may be a link below /proc.
func Finish(ctx context.Context, dir string, sync, sums bool) error {
	var files []File
	group, inner := errgroup.WithContext(ctx)
	if sync {
		group.Go(func() error { return durable.SyncTree(inner, dir+"/") })
	}
	if sums {
		group.Go(func() (err error) {
			if files, err = sumImage(inner, dir); err != nil {
				return err
			}
			return failpoint.Hit(inner, "dump.checksums", 0)
		})
	}
	if err := group.Wait(); err != nil || !sums {
		return err
	}
	return sumsKind.Write(dir, files)
}

// ReadSums reads the checksums of an image. If it has none, the error is [os.ErrNotExist].
func ReadSums(dir string) ([]File, error) { return sumsKind.Read(dir) }

// CheckSums reads the files of an image that has checksums, and fails if one is not as it was written. The
// error is a [FileError] with its remedy.
func (i *Image) CheckSums(ctx context.Context) error {
	return i.checkFiles(func(root *os.Root, files []File) error {
		return CheckFiles(ctx, root, files, runtime.GOMAXPROCS(0), func(int) {})
	})
}

func (i *Image) checkFiles(check func(*os.Root, []File) error) error {
	files, err := i.Sums()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(i.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	err = check(root, files)
	if damaged := new(FileError); errors.As(err, &damaged) {
		return fault.Because(err, err.Error(), manifestKind.Remedy)
	}
	return err
}
