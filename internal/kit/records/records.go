package records

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/fault"
)

var (
	// ErrNewer says that a newer cucriu has written a record, of a version that this one does not know.
	ErrNewer = errors.New("a newer cucriu has written it")
	// ErrDamaged says that a record holds what no cucriu has written.
	ErrDamaged = errors.New("damaged")
)

// Kind is a kind of records, whose value is a T.
type Kind[T any] struct {
	// Name is that of the file in its directory. If it is empty each has its own, and is named by its path instead.
	Name string
	// What names the record in errors, and Remedy is what to do about one that is damaged.
	What, Remedy string
	// Version is the newest version that can be read. It is written, too, unless the first field of the value is a
	// version. 0 is for values that are no objects.
	Version int
	// Key is the name of the value beside its version and checksum; if it is empty, they are among its fields.
	Key string
	// Limit is the size of the largest record, in bytes; 0 is a large one.
	Limit int64
	// Strict refuses unknown fields. Without a Key it has no checksum: earlier versions would refuse that.
	Strict bool
	// Dense writes all in one line: it is long, and no person reads it.
	Dense bool
	// Volatile is for what means nothing once the host has ended, or is put on disk with all that is beside it.
	Volatile bool
	// InPlace writes over the record before, which has its room, if the disk is full.
	InPlace bool
	// Check refuses a value that nobody can have written.
	Check func(*T) error
}

const (
	largeLimit = 256 << 20 // bytes
	sumField   = "crc32c"
	sumPrefix  = `{"` + sumField + `":`
)

// Path is where the record of a directory is.
func (k Kind[T]) Path(dir string) string { return filepath.Join(dir, k.Name) }

// Write replaces the record. After a crash it is the old one or the new one. Only its owner can read it.
func (k Kind[T]) Write(dir string, value T) error {
	data, err := k.Encode(value)
	if err != nil {
		return err
	}
	path, write := k.Path(dir), durable.Write
	if k.Volatile {
		write = durable.Replace
	}
	err = write(path, data)
	if k.InPlace {
		return durable.OnFullDisk(err, path, data)
	}
	return err
}

// Remove removes the record, if there is one.
func (k Kind[T]) Remove(dir string) error { return durable.Remove(k.Path(dir)) }

// Read reads the record. The error is [fs.ErrNotExist] if there is none, [ErrDamaged], [ErrNewer], or one of the
// system. With ErrNewer the value has what can be understood of it.
func (k Kind[T]) Read(dir string) (T, error) {
	var none T
	path := k.Path(dir)
	data, err := durable.ReadFile(path, cmp.Or(k.Limit, largeLimit))
	if err != nil {
		return none, k.explain(path, err)
	}
	value, _, err := k.Parse(path, data)
	return value, err
}

// ReadOr is Read, but returns absent if there is none.
func (k Kind[T]) ReadOr(dir string, absent T) (T, error) {
	value, err := k.Read(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return absent, nil
	}
	return value, err
}

// ReadFile is Read for a file that is open. It returns the checksum, too.
func (k Kind[T]) ReadFile(f *os.File) (T, uint32, error) {
	var none T
	data, err := durable.ReadAll(f, cmp.Or(k.Limit, largeLimit))
	if err != nil {
		return none, 0, k.explain(f.Name(), err)
	}
	return k.Parse(f.Name(), data)
}

// Parse reads the content of a record, and returns its checksum as well; 0 if it has none. path is for errors.
func (k Kind[T]) Parse(path string, data []byte) (value T, sum uint32, err error) {
	value, sum, err = k.parse(data)
	return value, sum, k.explain(path, err)
}

// explain says what is wrong with a record, and what to do.
func (k Kind[T]) explain(path string, err error) error {
	if err == nil || errors.As(err, new(unix.Errno)) {
		return err
	}
	text := cmp.Or(k.What, "record") + " " + path
	if newer := new(newerError); errors.As(err, &newer) {
		return fault.Because(err, fmt.Sprintf("%s has version %d, but this cucriu reads versions up to %d", text, newer.found, k.Version), "use the version of cucriu that has written it")
	}
	return fault.Because(fmt.Errorf("%w: %w", ErrDamaged, err), fmt.Sprintf("%s is damaged (%v)", text, err), cmp.Or(k.Remedy, "restore it from a backup"))
}

// newerError is the [ErrNewer] of one version.
type newerError struct{ found int }

func (e *newerError) Error() string { return fmt.Sprintf("it has version %d", e.found) }

func (e *newerError) Is(target error) bool { return target == ErrNewer }

// Encode returns the content of a record.
func (k Kind[T]) Encode(value T) ([]byte, error) {
	text, err := json.Marshal(value)
	switch {
	case err != nil:
		return nil, err
	case k.Key != "":
		outer := map[string]any{sumField: sumOf(text), k.Key: json.RawMessage(text)}
		if !hasVersion(text) {
			outer["version"] = k.Version
		}
		text, err = json.Marshal(outer)
	case k.Version > 0 && !k.Strict:
		if !hasVersion(text) {
			text = prepend("version", uint64(k.Version), text)
		}
		text = prepend(sumField, uint64(sumOf(text)), text)
	}
	var out bytes.Buffer
	if err == nil && !k.Dense {
		err = json.Indent(&out, text, "", "\t")
		text = out.Bytes()
	}
	if limit := cmp.Or(k.Limit, largeLimit); err == nil && int64(len(text)) >= limit {
		err = fmt.Errorf("%s: %d bytes are more than the %d that can be read", cmp.Or(k.What, "record"), len(text), limit)
	}
	if k.Key == "" {
		text = append(text, '\n')
	}
	return text, err
}

func hasVersion(text []byte) bool { return bytes.HasPrefix(text, []byte(`{"version":`)) }

// prepend puts a field before those of an object.
func prepend(name string, value uint64, object []byte) []byte {
	separator := ","
	if object[1] == '}' {
		separator = ""
	}
	return fmt.Appendf(nil, `{"%s":%d%s%s`, name, value, separator, object[1:])
}

func sumOf(text []byte) uint32 { return crc32.Checksum(text, durable.Castagnoli) }

func (k Kind[T]) parse(data []byte) (value T, sum uint32, err error) {
	var compact bytes.Buffer // the checksum is that of the text without spaces
	if err := json.Compact(&compact, data); err != nil {
		return value, 0, err
	}
	whole := compact.Bytes()
	sum, text, err := k.unseal(whole) // in the same way in all versions
	if err != nil {
		return value, 0, err
	}
	if k.Key == "" || hasVersion(text) {
		whole = text
	}
	var head struct{ Version int }
	if k.Version > 0 {
		if err := json.Unmarshal(whole, &head); err != nil {
			return value, 0, err
		}
	}
	switch {
	case head.Version < 0:
		return value, 0, fmt.Errorf("it has version %d", head.Version)
	case head.Version > k.Version:
		_ = json.Unmarshal(text, &value)
		return value, sum, &newerError{head.Version}
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	if k.Strict {
		decoder.DisallowUnknownFields()
	}
	err = decoder.Decode(&value)
	if err == nil && k.Check != nil {
		err = k.Check(&value)
	}
	if err != nil { // nothing of it is of use
		var none T
		return none, 0, err
	}
	return value, sum, nil
}

// unseal takes the checksum from a text without spaces, and returns what it is of.
func (k Kind[T]) unseal(text []byte) (sum uint32, of []byte, err error) {
	if k.Key != "" {
		var outer map[string]json.RawMessage
		if err := json.Unmarshal(text, &outer); err != nil {
			return 0, nil, err
		}
		for _, name := range []string{sumField, k.Key} {
			if outer[name] == nil {
				return 0, nil, fmt.Errorf("it lacks %q", name)
			}
		}
		err, of = json.Unmarshal(outer[sumField], &sum), outer[k.Key]
	} else {
		rest, is := bytes.CutPrefix(text, []byte(sumPrefix))
		number, rest, more := bytes.Cut(rest, []byte(","))
		if !is || !more || k.Version == 0 {
			return 0, text, nil // of an earlier version
		}
		var wide uint64
		wide, err = strconv.ParseUint(string(number), 10, 32)
		sum, of = uint32(wide), append([]byte{'{'}, rest...)
	}
	if found := sumOf(of); err == nil && found != sum {
		err = fmt.Errorf("its checksum is %08x, not %08x", found, sum)
	}
	return sum, of, err
}
