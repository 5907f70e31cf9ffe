package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
)

// recordName is the name of the file that makes a directory a checkpoint.
const recordName = "checkpoint.json"

var recordKind = records.Kind[record]{
	Name: recordName, What: "the checkpoint's record", Remedy: "resume from another checkpoint", Version: 1,
	Key: "checkpoint", Limit: 64 << 20, Strict: true, Check: (*record).validate,
}

const (
	maxText     = 4096 // bytes
	maxDuration = 366 * 24 * time.Hour
)

// record is what recordName holds.
type record struct {
	Info
	Generation uint64 `json:"generation"`
	NewBytes   int64  `json:"new_bytes"`
	Files      []File `json:"files"`
}

// encode returns the content of the file.
func (r record) encode() ([]byte, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	return recordKind.Encode(r)
}

// readRecord reads the record in the directory of a checkpoint, and returns the checksum in it.
func readRecord(root *os.Root) (record, uint32, error) {
	r, sum, err := readKind(root, recordKind)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, 0, fmt.Errorf("it is not complete: %s is missing", recordName)
	}
	return r, sum, err
}

// readKind reads a record in the directory of a checkpoint, and the checksum in it.
func readKind[T any](root *os.Root, kind records.Kind[T]) (value T, sum uint32, err error) {
	f, _, err := criuimage.OpenIn(root, kind.Name)
	if err != nil {
		return value, 0, err
	}
	defer f.Close()
	return kind.ReadFile(f)
}

func (r *record) validate() error {
	texts := []string{r.Reason, r.Command, r.Host, r.Kernel, r.Driver}
	for _, gpu := range r.GPUs {
		texts = append(texts, gpu.Model, gpu.PCIBusID)
	}
	if i := slices.IndexFunc(texts, func(text string) bool { return !isPrintable(text) }); i >= 0 {
		return fmt.Errorf("it has the invalid text %.80q", proc.Printable(texts[i]))
	}
	switch {
	case r.CreatedAt.Year() < 1970 || r.CreatedAt.Year() > 9999:
		return fmt.Errorf("it was made in the year %d", r.CreatedAt.Year())
	case r.Pause < 0 || r.Pause > maxDuration || r.Duration < 0 || r.Duration > maxDuration:
		return fmt.Errorf("the pause is %v, and the dump took %v", r.Pause, r.Duration)
	case r.RootPID <= 0:
		return fmt.Errorf("the root has pid %d", r.RootPID)
	case r.Clocks.Monotonic < 0 || r.Clocks.Boottime < 0:
		return fmt.Errorf("the clocks are %+v", r.Clocks)
	}
	total, err := imagedir.ValidateFiles(r.Files, isFileName)
	if err != nil {
		return err
	}
	if r.NewBytes < 0 || r.NewBytes > total {
		return fmt.Errorf("%d of %d bytes were new", r.NewBytes, total)
	}
	return nil
}

// isPrintable reports whether text is safe to show on terminals and in logs.
func isPrintable(text string) bool { return len(text) <= maxText && text == proc.Printable(text) }

// isFileName reports whether a file of a checkpoint may have this name, which is not that of a file that
// the store writes there.
func isFileName(name string) bool {
	return imagedir.IsFileName(name) && !slices.Contains([]string{recordName, verifiedName, pinnedName, givenUpName, trialName, damagedName}, name)
}
