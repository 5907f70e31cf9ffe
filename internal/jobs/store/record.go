package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cucriu/internal/criuimage"
	"cucriu/internal/durable"
	"cucriu/internal/proc"
)

// recordName is the name of the file that makes a directory a checkpoint.
const recordName = "checkpoint.json"

const (
	recordVersion  = 1
	maxRecordBytes = 64 << 20
	maxFiles       = 1 << 20
	maxText        = 4096 // bytes
	maxName        = 1024 // bytes
	maxDuration    = 366 * 24 * time.Hour
)

// record is what recordName holds.
type record struct {
	Info
	Generation uint64 `json:"generation"`
	NewBytes   int64  `json:"new_bytes"`
	Files      []File `json:"files"`
}

// sealed is a record with a checksum of its own: nothing else would show that, for example,
// a clock in it is damaged. The checksum is that of the compact form.
type sealed struct {
	Version    int             `json:"version"`
	CRC32C     uint32          `json:"crc32c"`
	Checkpoint json.RawMessage `json:"checkpoint"`
}

// encode returns the content of the file.
func (r record) encode() ([]byte, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	inner, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(sealed{Version: recordVersion, CRC32C: crc32.Checksum(inner, castagnoli), Checkpoint: inner}, "", "\t")
	if err == nil && len(data) > maxRecordBytes {
		err = fmt.Errorf("it has %d bytes", len(data))
	}
	return data, err
}

// readRecord reads the record in the directory of a checkpoint, and returns the checksum in it.
func readRecord(root *os.Root) (record, uint32, error) {
	f, _, err := criuimage.OpenIn(root, recordName)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, 0, fmt.Errorf("it is not complete: %s is missing", recordName)
	}
	if err != nil {
		return record{}, 0, err
	}
	defer f.Close()
	data, err := durable.ReadAll(f, maxRecordBytes)
	if err != nil {
		return record{}, 0, err
	}
	r, sum, err := parseRecord(data)
	if err != nil {
		return record{}, 0, fmt.Errorf("%s is %w", recordName, err)
	}
	return r, sum, nil
}

// parseRecord reads the content of the file, and refuses one that no supervisor can have
// written. It returns the checksum in it.
func parseRecord(data []byte) (record, uint32, error) {
	var s sealed
	if err := decode(data, &s, false); err != nil {
		return record{}, 0, fmt.Errorf("damaged: %w", err)
	}
	if s.Version != recordVersion {
		return record{}, 0, fmt.Errorf("of version %d, but this cucriu reads version %d", s.Version, recordVersion)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, s.Checkpoint); err != nil {
		return record{}, 0, fmt.Errorf("damaged: %w", err)
	}
	if sum := crc32.Checksum(compact.Bytes(), castagnoli); sum != s.CRC32C {
		return record{}, 0, errors.New("damaged: checksum mismatch")
	}
	var r record
	err := decode(s.Checkpoint, &r, true)
	if err == nil {
		err = r.validate()
	}
	if err != nil {
		return record{}, 0, fmt.Errorf("damaged: %w", err)
	}
	return r, s.CRC32C, nil
}

func decode(data []byte, value any, strict bool) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	if strict {
		decoder.DisallowUnknownFields()
	}
	if err := decoder.Decode(value); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("trailing data")
	}
	return nil
}

func (r record) validate() error {
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
	case len(r.Files) == 0 || len(r.Files) > maxFiles:
		return fmt.Errorf("it has %d files", len(r.Files))
	}
	seen := make(map[string]bool)
	var total int64
	for _, f := range r.Files {
		switch {
		case !isFileName(f.Name):
			return fmt.Errorf("invalid file name %.80q", f.Name)
		case seen[f.Name]:
			return fmt.Errorf("%s is listed twice", f.Name)
		case f.Bytes < 0 || f.Bytes > math.MaxInt64-total:
			return fmt.Errorf("%s has %d bytes", f.Name, f.Bytes)
		}
		seen[f.Name] = true
		total += f.Bytes
	}
	if r.NewBytes < 0 || r.NewBytes > total {
		return fmt.Errorf("%d of %d bytes were new", r.NewBytes, total)
	}
	return nil
}

// isPrintable reports whether text is safe to show on terminals and in logs.
func isPrintable(text string) bool { return len(text) <= maxText && text == proc.Printable(text) }

// isFileName reports whether a file of a checkpoint may have this name. It leads nowhere but
// into the checkpoint's directory, and is not that of a file which the store writes there.
func isFileName(name string) bool {
	return name != "" && name != "." && len(name) <= maxName && isPrintable(name) && path.Clean(name) == name && filepath.IsLocal(name) &&
		!strings.ContainsRune(name, '\\') && !slices.Contains([]string{recordName, verifiedName, pinnedName, givenUpName, trialName, damagedName}, name)
}
