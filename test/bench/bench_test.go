package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"cucriu/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestTheSmallestCaseInAllModes(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		opts := options{
			root: testenv.Root(t), criu: testenv.Criu(t), real: testenv.RealDriver(),
			loads: []load{smallest()}, modes: allModes(), dir: t.TempDir(), out: t.TempDir(), repeat: 1,
		}
		if err := measureAll(t.Context(), opts, t.Output()); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(opts.out, "results.json"))
		if err != nil {
			t.Fatal(err)
		}
		// Read the file with only the documented fields, as its readers do.
		var results []struct {
			Case           string  `json:"case"`
			Processes      int     `json:"processes"`
			Bytes          int64   `json:"bytes"`
			Mode           string  `json:"mode"`
			DumpSeconds    float64 `json:"dump_seconds"`
			RestoreSeconds float64 `json:"restore_seconds"`
			BytesWritten   int64   `json:"bytes_written"`
			BytesByCriu    int64   `json:"bytes_by_criu"`
		}
		if err := json.Unmarshal(data, &results); err != nil {
			t.Fatal(err)
		}
		var modes []string
		for _, r := range results {
			modes = append(modes, r.Mode)
			if r.Case != "1x16MiB" || r.Processes != 1 || r.Bytes != 16<<20 || r.DumpSeconds <= 0 || r.RestoreSeconds <= 0 || r.BytesWritten < 16<<20 {
				t.Errorf("not a measured run: %+v", r)
			}
			if past := r.BytesByCriu < 8<<20; past != (r.Mode == modeFastlane || r.Mode == modeGuest) {
				t.Errorf("in mode %s criu wrote %d bytes of pages", r.Mode, r.BytesByCriu)
			}
		}
		if !slices.Equal(modes, allModes()) {
			t.Errorf("results of %v, want %v:\n%s", modes, allModes(), data)
		}
		if _, err := os.Stat(filepath.Join(opts.out, "results.md")); err != nil {
			t.Error(err)
		}
		if left, _ := os.ReadDir(opts.dir); len(left) > 0 {
			t.Errorf("images are left over: %v", left)
		}
	})
}
