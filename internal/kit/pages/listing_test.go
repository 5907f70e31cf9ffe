package pages

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A listing in a manifest is checked, not trusted.
func TestAListingThatNoWriterMadeIsRefused(t *testing.T) {
	const whole = `{"id": "0123456789abcdef", "bytes": 1, "index_bytes": 4128, "index_crc32c": 1, "shard_bytes": [4096, 4097]}`
	shards := func(n int) string { return "[4096" + strings.Repeat(", 4096", n-1) + "]" }
	for _, tt := range []struct{ old, new, why string }{
		{"", "", ""},
		{"4128", "4096", ""},
		{"4128", "33558528", ""}, // 256 GiB in chunks
		{"4128", strconv.Itoa(maxIndexBytes), ""},
		{"[4096, 4097]", shards(256), ""},
		{"4097", "36028797018963967", ""},

		{"0123456789abcdef", "", "the id of the pages is"},
		{"0123456789abcdef", "0123456789ABCDEF", "the id of the pages is"},
		{"0123456789abcdef", "0123456789abcdef0", "the id of the pages is"},
		{"0123456789abcdef", `0123456789abcdef\n`, "the id of the pages is"},
		{"0123456789abcdef", "../../../../../..", "the id of the pages is"},
		{"0123456789abcdef", "/../0123456789ab", "the id of the pages is"},
		{"4128", "0", "invalid size of the page index: 0 bytes"},
		{"4128", "-4128", "invalid size of the page index: -4128 bytes"},
		{"4128", "4064", "invalid size of the page index: 4064 bytes"},
		{"4128", "4129", "invalid size of the page index: 4129 bytes"},
		{"4128", strconv.Itoa(maxIndexBytes + recordSize), "invalid size of the page index: " + strconv.Itoa(maxIndexBytes+recordSize) + " bytes"},
		{"4128", "9223372036854775807", "invalid size of the page index: 9223372036854775807 bytes"},
		{"[4096, 4097]", "[]", "the pages are in 0 shards"},
		{"[4096, 4097]", "null", "the pages are in 0 shards"},
		{"[4096, 4097]", shards(257), "the pages are in 257 shards"},
		{"4097", "4095", "invalid size of a page shard: 4095 bytes"},
		{"4097", "0", "invalid size of a page shard: 0 bytes"},
		{"4097", "-1", "invalid size of a page shard: -1 bytes"},
		{"4097", "36028797018963968", "invalid size of a page shard: 36028797018963968 bytes"},
		{"4097", "9223372036854775807", "invalid size of a page shard: 9223372036854775807 bytes"},
	} {
		var l Listing
		must(t, json.Unmarshal([]byte(strings.Replace(whole, tt.old, tt.new, 1)), &l))
		err := l.Validate()
		if tt.why == "" {
			must(t, err)
			continue
		}
		wantError(t, err, tt.why)
		if _, err := newReader(nil, testPID, &l); err == nil {
			t.Errorf("a reader took %s for %s", tt.new, tt.old)
		}
	}
}

// A writer refuses more memory than a reader accepts, which could never be filled in again.
func TestFinishRefusesWhatNoReaderTakes(t *testing.T) {
	dir := t.TempDir()
	w, err := Create(dir, testID, testPID, 1)
	must(t, err)
	defer w.Close()
	w.shards[0].records = make([]record, (maxIndexBytes-headerSize)/recordSize+1)
	_, err = w.Finish()
	wantError(t, err, fmt.Sprintf("invalid size of the page index: %d bytes", maxIndexBytes+recordSize))
	must(t, w.Remove())
	wantEmpty(t, dir)
}

func TestNamesAreThoseOfThePattern(t *testing.T) {
	names := NewListing(testID, 2).Names(12)
	if diff := cmp.Diff([]string{
		"cucriu-pages-0123456789abcdef-12.img", "cucriu-pages-0123456789abcdef-12-0.img", "cucriu-pages-0123456789abcdef-12-1.img",
	}, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	for _, other := range []string{"", "pages-1.img", "cucriu.json", "cucriu-pages-.img", "a" + names[0], names[0] + "a", strings.ToUpper(names[0])} {
		if filePattern.MatchString(other) {
			t.Errorf("%q is taken for a file of pages", other)
		}
	}
	if i := slices.IndexFunc(names, func(name string) bool { return !filePattern.MatchString(name) }); i >= 0 {
		t.Errorf("%q is not taken for a file of pages", names[i])
	}
}

func TestACodecIsReadAsItPrints(t *testing.T) {
	for _, c := range []Codec{Raw, Zstd, S2} {
		if got, err := ParseCodec(c.String()); err != nil || got != c {
			t.Errorf("ParseCodec(%q) = %v, %v", c, got, err)
		}
	}
	for _, bad := range []string{"", "zero", "ZSTD", "gzip", Codec(4).String()} {
		if _, err := ParseCodec(bad); err == nil {
			t.Errorf("%q is read as a codec", bad)
		}
	}
}
