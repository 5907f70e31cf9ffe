package faults

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// resultsVariable names the folder for the outcomes of the rows, each of which is a program
// of its own.
const resultsVariable = "CUCRIU_FAULT_RESULTS"

// faultsVariable says which cells are run: one in three of each row and column by default, "all", or
// those of one column, which it names.
const faultsVariable = "CUCRIU_FAULTS"

// chosen reports whether the cell of a row and a column is run.
func chosen(row, column int) bool {
	switch only := os.Getenv(faultsVariable); only {
	case "":
		return (row+column)%3 == 0
	case "all":
		return true
	default:
		return only == string(faults[column])
	}
}

// TestNoFaultAtAnyStepLosesTheJob runs the chosen cells. The outcome of each is the one that
// docs/fault-matrix.md has. CUCRIU_UPDATE=1 writes that file anew, from all of them.
func TestNoFaultAtAnyStepLosesTheJob(t *testing.T) {
	if testenv.RealDriver() {
		t.Skip("needs the simulated driver: its faults and several of them at once")
	}
	results := os.Getenv(resultsVariable)
	if only := os.Getenv(faultsVariable); only != "" && only != "all" && !slices.Contains(faults, fault(only)) {
		t.Fatalf("%s=%s is no fault of the matrix", faultsVariable, only)
	}
	isRow := results != "" // this program is one of the rows, in its namespaces
	if !isRow {
		if updating() {
			t.Setenv(faultsVariable, "all")
		}
		results = t.TempDir()
		t.Setenv(resultsVariable, results)
	}
	seen := make(outcomes)
	t.Run("steps", func(t *testing.T) {
		for i, row := range rows {
			t.Run(row.slug(), func(t *testing.T) {
				testenv.Isolated(t, func(t *testing.T) { row.run(t, i, filepath.Join(results, row.slug())) })
			})
		}
	})
	if isRow || !updating() {
		return
	}
	for _, row := range rows {
		data, err := os.ReadFile(filepath.Join(results, row.slug()))
		if err != nil {
			continue // it was not run, or has failed
		}
		var cells map[fault]string
		if err := json.Unmarshal(data, &cells); err != nil {
			t.Fatal(err)
		}
		seen[row.name] = cells
	}
	write(t, seen)
}

// outcomes holds the outcome of every cell that was run, by step and fault.
type outcomes map[string]map[fault]string

func (r row) slug() string {
	prefix := "dump"
	if r.restores() {
		prefix = "restore"
	}
	return prefix + "." + strings.Map(func(c rune) rune {
		switch c {
		case ' ':
			return '-'
		case ':', ',':
			return -1
		}
		return c
	}, r.name)
}

// run runs the chosen cells of a row, one after the other on one job.
func (r row) run(t *testing.T, number int, results string) {
	w := newWorld(t, r)
	cells := make(map[fault]string)
	_, page := readPage(t)
	for column, f := range faults {
		if r.without[f] != "" || !chosen(number, column) {
			continue
		}
		ok := t.Run(strings.ReplaceAll(string(f), " ", "-"), func(t *testing.T) {
			c := &cell{row: r, fault: f, world: w, t: t}
			cells[f] = c.run()
			if expected := page[r.name][f]; cells[f] != expected && !updating() {
				t.Errorf("%s; docs/fault-matrix.md has: %s (if that is wrong: CUCRIU_UPDATE=1 go test ./test/faults)",
					cells[f], expected)
				c.explain()
			}
		})
		if !ok || f == targetKilled || r.fresh {
			w.clear(t)
		}
		w.host.Faults()
	}
	if t.Failed() {
		return
	}
	data, err := json.Marshal(cells)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(results, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
