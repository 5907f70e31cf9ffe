package records

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"cucriu/internal/kit/fault"
)

type value struct {
	Name   string   `json:"name"`
	CRC32C uint32   `json:"crc32c"` // a name that the record uses as well
	Paths  []string `json:"paths,omitempty"`
}

// own has a version of its own.
type own struct {
	Version int    `json:"version"`
	Name    string `json:"name"`
}

type empty struct{}

var (
	flat   = Kind[value]{Name: "flat.json", What: "flat record", Remedy: "buy another", Version: 2}
	keyed  = Kind[value]{Name: "keyed.json", Version: 2, Key: "inner", Strict: true}
	dense  = Kind[value]{Name: "dense.json", Version: 2, Key: "inner", Dense: true}
	strict = Kind[own]{Name: "strict.json", Version: 2, Strict: true}
	list   = Kind[[]string]{Name: "list.json"}
)

func anyValue(t *rapid.T) value {
	return value{rapid.String().Draw(t, "name"), rapid.Uint32().Draw(t, "sum"), rapid.SliceOfN(rapid.String(), 1, 3).Draw(t, "paths")}
}

func TestWhatWasWrittenIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := anyValue(t)
		v = roundTrip(t, flat, v, true)
		v = roundTrip(t, keyed, v, true)
		v = roundTrip(t, dense, v, true)
		roundTrip(t, list, v.Paths, false)
	})
	roundTrip(t, Kind[empty]{Version: 1}, empty{}, true)
	roundTrip(t, strict, own{1, "a"}, false)
	roundTrip(t, Kind[own]{Version: 2, Key: "inner"}, own{1, "a"}, true)
	roundTrip(t, Kind[own]{Version: 2}, own{1, "a"}, true)
}

func roundTrip[T any](t rapid.TB, k Kind[T], v T, sealed bool) T {
	t.Helper()
	data, err := k.Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	read, sum, err := k.Parse("x", data)
	if err != nil || sum != 0 != sealed {
		t.Fatalf("checksum %x, %v:\n%s", sum, err, data)
	}
	again, err := k.Encode(read)
	if err != nil || !bytes.Equal(data, again) {
		t.Fatalf("%v:\n%s\n%s", err, data, again)
	}
	return read
}

// TestNoDamageIsTakenForAValue: wherever a record is cut off, and whichever bit is flipped.
func TestNoDamageIsTakenForAValue(t *testing.T) {
	damages(t, flat, value{"a<b", 7, []string{"x", ""}})
	damages(t, keyed, value{"a<b", 7, []string{"x", ""}})
	damages(t, dense, value{"a<b", 7, []string{"x", ""}})
	damages(t, Kind[own]{Version: 2}, own{1, "a"})
	damages(t, Kind[own]{Version: 2, Key: "inner", Dense: true}, own{1, "a"})
}

func damages[T any](t *testing.T, k Kind[T], v T) {
	t.Helper()
	data, err := k.Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(data) - 1 { // without the end of the line it is whole
		if _, _, err := k.Parse("x", data[:n]); !errors.Is(err, ErrDamaged) {
			t.Errorf("%d of %d bytes: %v", n, len(data), err)
		}
	}
	for bit := range len(data) * 8 {
		flipped := bytes.Clone(data)
		flipped[bit/8] ^= 1 << (bit % 8)
		got, _, err := k.Parse("x", flipped)
		if err == nil && !reflect.DeepEqual(got, v) || err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) {
			t.Errorf("bit %d: %v, %+v:\n%s", bit, err, got, flipped)
		}
	}
}

func TestRecordsOfOtherVersions(t *testing.T) {
	for name, c := range map[string]struct {
		text, want string // what the error says; "" for none
		is         error
	}{
		"from before there were versions": {`{"name": "a"}`, "", nil},
		"with an unknown field":           {`{"version": 1, "name": "a", "more": 1}`, "", nil},
		"of a version without a checksum": {`{"version": 2, "name": "a"}`, "", nil},
		"a newer one":                     {`{"version": 3, "name": "a", "paths": 1}`, "flat record x has version 3, but this cucriu reads versions up to 2: use the version of cucriu that has written it", ErrNewer},
		"a negative one":                  {`{"version": -1, "name": "a"}`, "flat record x is damaged (it has version -1): buy another", ErrDamaged},
		"something else":                  {`{"version": "a"}`, "flat record x is damaged (json: ", ErrDamaged},
		"no object":                       {`[]`, "flat record x is damaged (json: ", ErrDamaged},
		"nothing":                         {``, "flat record x is damaged (unexpected end of JSON input): buy another", ErrDamaged},
		"more than one":                   {`{"name": "a"} {}`, "flat record x is damaged (invalid character '{' after top-level value): buy another", ErrDamaged},
		"another checksum":                {`{"crc32c": 1, "name": "a"}`, "flat record x is damaged (its checksum is ", ErrDamaged},
	} {
		v, _, err := flat.Parse("x", []byte(c.text))
		if c.is == nil {
			if err != nil || v.Name != "a" {
				t.Errorf("%s: %v, %v", name, v, err)
			}
			continue
		}
		if of := new(fault.Explained); !errors.Is(err, c.is) || !strings.HasPrefix(err.Error(), c.want) || !errors.As(err, &of) {
			t.Errorf("%s: %v", name, err)
		}
		if c.is == ErrNewer && v.Name != "a" {
			t.Errorf("%s: what can be understood of it is %+v", name, v)
		}
	}
	for _, text := range []string{`{"inner": {"name": "a"}}`, `{"crc32c": 1, "version": 2}`, `{"crc32c": 1, "inner": {"name": "a"}}`} {
		if _, _, err := keyed.Parse("x", []byte(text)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, _, err := (Kind[own]{Version: 2, Key: "inner"}).Parse("x", []byte(`{"crc32c": 3, "inner": {"version": 3}}`)); !errors.Is(err, ErrDamaged) {
		t.Errorf("another checksum of a newer one: %v", err)
	}
	newer, err := Kind[own]{Version: 3, Key: "inner"}.Encode(own{3, "a"})
	if _, _, parseErr := (Kind[own]{Version: 2, Key: "inner"}).Parse("x", newer); err != nil || !errors.Is(parseErr, ErrNewer) {
		t.Errorf("a newer one: %v, %v", err, parseErr)
	}
	if _, _, err := strict.Parse("x", []byte(`{"version": 1, "name": "a", "more": 1}`)); !errors.Is(err, ErrDamaged) {
		t.Errorf("an unknown field: %v", err)
	}
}

func TestAFileThatIsNoRecord(t *testing.T) {
	dir := t.TempDir()
	path := flat.Path(dir)
	if _, err := flat.Read(dir); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrDamaged) {
		t.Errorf("there is none: %v", err)
	}
	if v, err := flat.ReadOr(dir, value{Name: "absent"}); err != nil || v.Name != "absent" {
		t.Errorf("there is none: %v, %v", v, err)
	}
	for name, c := range map[string]struct {
		make func() error
		is   error
	}{
		"a directory": {func() error { return os.Mkdir(path, 0o700) }, unix.EISDIR},
		"a link":      {func() error { return os.Symlink(path, path) }, unix.ELOOP},
		"a FIFO":      {func() error { return unix.Mkfifo(path, 0o600) }, ErrDamaged},
		"endless":     {func() error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40)) }, ErrDamaged},
	} {
		if err := c.make(); err != nil {
			t.Fatal(err)
		}
		if _, err := flat.ReadOr(dir, value{}); !errors.Is(err, c.is) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
		if err := flat.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
}

func TestARecordIsWrittenWholeAndPrivate(t *testing.T) {
	dir := t.TempDir()
	short := flat
	short.Limit, short.Check = 60, func(v *value) error {
		if v.Name == "" {
			return errors.New("it has no name")
		}
		return nil
	}
	volatile := flat
	volatile.Volatile = true
	for _, k := range []Kind[value]{flat, volatile} {
		if err := k.Write(dir, value{Name: "a"}); err != nil {
			t.Fatal(err)
		}
		if v, err := short.Read(dir); err != nil && !errors.Is(err, ErrDamaged) || v.Name != "" {
			t.Errorf("more than its limit: %v, %v", v, err)
		}
		info, err := os.Stat(k.Path(dir))
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
		if err := short.Write(dir, value{Name: strings.Repeat("a", 60)}); err == nil {
			t.Error("wrote more than can be read")
		}
		if v, err := flat.Read(dir); err != nil || v.Name != "a" {
			t.Errorf("after a write that failed: %v, %v", v, err)
		}
	}
	if _, _, err := short.Parse("x", []byte(`{}`)); !errors.Is(err, ErrDamaged) {
		t.Errorf("a value that nobody writes: %v", err)
	}
	if err := volatile.Write(filepath.Join(dir, "missing"), value{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
	if err := flat.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := flat.Remove(dir); err != nil {
		t.Errorf("remove what is gone: %v", err)
	}
}
