package programs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// report is the table as it came out so far, in Markdown. The file is written anew with each
// row, so that a run that is cut off leaves what it has measured.
type report struct {
	path   string // empty: standard output only
	header string
	begun  time.Time

	mu   sync.Mutex
	rows map[string]string // by the name of the program
}

// tableHead begins the table.
const tableHead = "| program | outcome | dump | restore | image | GPUs | |\n|---|---|---:|---:|---:|---|---|\n"

func newReport(t *testing.T, host *testenv.Host) *report {
	t.Helper()
	var system unix.Utsname
	if err := unix.Uname(&system); err != nil {
		t.Fatal(err)
	}
	r := &report{begun: time.Now(), rows: make(map[string]string)}
	if testenv.RealDriver() {
		r.path = os.Getenv("CUCRIU_PROGRAMS_OUT")
	}
	r.header = fmt.Sprintf("# What goes through: %s\n\n- %s\n- Linux %s, %s\n\n",
		r.begun.UTC().Format("2006-01-02 15:04 UTC"), strings.Join(gpuModels(host), ", "), unix.ByteSliceToString(system.Release[:]), driverVersion(host))
	fmt.Print(r.header + tableHead)
	return r
}

func gpuModels(host *testenv.Host) []string {
	files, _ := filepath.Glob(filepath.Join("/", host.Dir, "proc/driver/nvidia/gpus/*/information"))
	var models []string
	for _, file := range files {
		data, _ := os.ReadFile(file)
		for line := range strings.Lines(string(data)) {
			if model, found := strings.CutPrefix(line, "Model:"); found {
				models = append(models, strings.TrimSpace(model))
			}
		}
	}
	return models
}

func driverVersion(host *testenv.Host) string {
	data, _ := os.ReadFile(filepath.Join("/", host.Dir, "proc/driver/nvidia/version"))
	line, _, _ := strings.Cut(string(data), "\n")
	return strings.Join(strings.Fields(line), " ")
}

// add adds a row, prints it, and writes the table anew.
func (r *report) add(m measurement) {
	line := m.line()
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Print(line)
	r.rows[m.program.name] = line
	if r.path == "" {
		return
	}
	text := r.header + tableHead
	for _, p := range table() {
		text += r.rows[p.name]
	}
	text += fmt.Sprintf("\n%d of %d rows, %.0f s.\n", len(r.rows), len(table()), time.Since(r.begun).Seconds())
	if err := os.WriteFile(r.path, []byte(text), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// line is the row of the table.
func (m measurement) line() string {
	seconds := func(d time.Duration) string {
		if d == 0 {
			return ""
		}
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	image, gpus := "", ""
	if m.image > 0 {
		image = fmt.Sprintf("%d MiB", m.image>>20)
	}
	if len(m.from) > 0 {
		gpus = fmt.Sprint(m.from)
	}
	if len(m.to) > 0 {
		gpus += " → " + fmt.Sprint(m.to)
	}
	outcome := string(m.outcome)
	if m.outcome == lost || m.outcome == failed {
		outcome = "**" + outcome + "**"
	}
	why := m.why
	if m.movedBy != "" {
		why = strings.TrimPrefix(why+"; "+m.movedBy, "; ")
	}
	why = strings.NewReplacer("|", "\\|", "\n", " ").Replace(why)
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |\n", m.program.name, outcome, seconds(m.dumpTook), seconds(m.restoreTook), image, gpus, why)
}
