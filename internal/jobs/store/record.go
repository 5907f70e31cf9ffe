package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// recordName is the name of the file that makes a directory a checkpoint.
const recordName = "checkpoint.json"

const (
	recordVersion  = 1
	maxRecordBytes = 64 << 20
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

// checksum is the CRC-32C of data that begins a file.
func checksum(data []byte) uint32 { return crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)) }

// encode returns the content of the file, and the checksum in it.
func (r record) encode() ([]byte, uint32, error) {
	inner, err := json.Marshal(r)
	if err != nil {
		return nil, 0, err
	}
	s := sealed{Version: recordVersion, CRC32C: checksum(inner), Checkpoint: inner}
	data, err := json.MarshalIndent(s, "", "\t")
	return data, s.CRC32C, err
}

// parseRecord reads the content of the file, and refuses one that no supervisor can have
// written. It returns the checksum in it.
func parseRecord(data []byte) (record, uint32, error) {
	var s sealed
	if err := decode(data, &s, false); err != nil {
		return record{}, 0, fmt.Errorf("damaged: %w", err)
	}
	if s.Version != recordVersion {
		return record{}, 0, fmt.Errorf("of version %d, and this cucriu reads version %d", s.Version, recordVersion)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, s.Checkpoint); err != nil {
		return record{}, 0, fmt.Errorf("damaged: %w", err)
	}
	if sum := checksum(compact.Bytes()); sum != s.CRC32C {
		return record{}, 0, fmt.Errorf("damaged: its CRC-32C is %08x, and %08x was written", sum, s.CRC32C)
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
		return errors.New("it goes on after its end")
	}
	return nil
}

func (r record) validate() error {
	if err := r.Info.Validate(); err != nil {
		return err
	}
	if len(r.Files) == 0 || len(r.Files) > maxFiles {
		return fmt.Errorf("it has %d files", len(r.Files))
	}
	seen := make(map[string]bool)
	var total int64
	for _, f := range r.Files {
		switch {
		case !isFileName(f.Name):
			return fmt.Errorf("a file is called %.80q", f.Name)
		case seen[f.Name]:
			return fmt.Errorf("%s is named twice", f.Name)
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

// readRegular reads a file that may have been put there by somebody else. It follows no link,
// waits for no pipe, and reads no more than limit bytes.
func readRegular(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, limit)
}

func readAll(f *os.File, limit int64) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("%s is not a regular file of at most %d bytes", f.Name(), limit)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}
