package conformance

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// outVariable names the file for the document.
const outVariable = "CUCRIU_CONFORMANCE_OUT"

// line is one measured row.
type line struct {
	verdict       string // ok, FAIL, probe or n/a
	name          string
	expected, got string
	took          time.Duration
}

// report prints lines as they come, and keeps them.
type report struct {
	header []string // lines of the form "what: value", for the Markdown
	lines  []line
}

// judge sets the verdict of a line, and fails the test if the verdict is bad.
func (r *report) judge(t *testing.T, probe bool, l line) {
	switch {
	case probe:
		l.verdict = "probe"
	case beforeRemark(l.got) == l.expected:
		l.verdict = "ok"
	default:
		l.verdict = "FAIL"
		t.Errorf("%s: expected %s, got %s", l.name, l.expected, l.got)
	}
	r.add(l)
}

// beforeRemark returns what was measured, without a remark in parentheses.
func beforeRemark(got string) string {
	text, _, _ := strings.Cut(got, " (")
	return text
}

// add prints a line at once, so that a run that is cut off shows what it measured.
func (r *report) add(l line) {
	r.lines = append(r.lines, l)
	fmt.Printf("%-5s  %-74s  %-28s  %9.1f  %s\n", l.verdict, l.name, l.expected, l.ms(), strings.ReplaceAll(l.got, "\n", " | "))
}

func (l line) ms() float64 { return float64(l.took) / float64(time.Millisecond) }

func (r *report) begin() {
	for _, text := range r.header {
		fmt.Println(text)
	}
	fmt.Printf("%-5s  %-74s  %-28s  %9s  %s\n", "", "case: row", "expected", "ms", "got")
}

// counts returns how many lines have each verdict.
func (r *report) counts() string {
	counts := make(map[string]int)
	for _, l := range r.lines {
		counts[l.verdict]++
	}
	return fmt.Sprintf("%d ok, %d failed, %d probes, %d n/a", counts["ok"], counts["FAIL"], counts["probe"], counts["n/a"])
}

// markdown returns the table as a document.
func (r *report) markdown() string {
	var text strings.Builder
	text.WriteString("# Conformance\n\n")
	for _, what := range r.header {
		fmt.Fprintf(&text, "- %s\n", what)
	}
	fmt.Fprintf(&text, "- rows: %s\n\n| | case: row | expected | got | ms |\n|---|---|---|---|---:|\n", r.counts())
	cell := strings.NewReplacer("|", "\\|", "\n", " ")
	for _, l := range r.lines {
		fmt.Fprintf(&text, "| %s | %s | %s | %s | %.1f |\n", l.verdict, cell.Replace(l.name), cell.Replace(l.expected), cell.Replace(l.got), l.ms())
	}
	return text.String()
}

// describe fills the header in.
func (r *report) describe(b *bench) {
	which := "simulated"
	if b.real {
		which = "real"
	}
	version, err := b.driver.DriverVersion()
	if err != nil {
		version = err.Error()
	}
	var u unix.Utsname
	_ = unix.Uname(&u)
	models := make([]string, len(b.gpus))
	for i, gpu := range b.gpus {
		models[i] = fmt.Sprintf("%c = %s %v %s", 'A'+i, gpu.Model, gpu.UUID, gpu.PCIBusID)
	}
	r.header = []string{
		"date: " + time.Now().UTC().Format(time.RFC3339),
		"driver: " + which + " " + version,
		"CUDA: " + b.driver.CUDAVersion().String(),
		"kernel: " + unix.ByteSliceToString(u.Release[:]),
		"GPUs: " + strings.Join(models, ", "),
	}
}

// write writes the Markdown to the file that the environment names.
func (r *report) write(t *testing.T) {
	file := os.Getenv(outVariable)
	if file == "" {
		return
	}
	if err := os.WriteFile(file, []byte(r.markdown()), 0o644); err != nil {
		t.Error(err)
	}
}
