package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cucriu/internal/testenv"
)

const introduction = `# What becomes of the job when something fails

Written by ` + "`CUCRIU_UPDATE=1 go test ./test/faults`" + `; the test makes every fault of these tables happen on real CRIU and the simulated driver, and fails if
an outcome differs. The job is a parent with two CUDA processes, each with forked workers, and with a thread that does nothing but synchronize with its GPU: it would die if it ran
at the wrong moment. After each fault, and after ` + "`cucriu recover`" + ` where a journal was left open, the test holds that

- exactly one copy of the job runs: where it was, or restored from the image that the fault left behind, with all its GPU memory compared word by word;
- no thread is left stopped, traced or locked, and no hook, watcher or criu is left;
- no journal is left open, and what it says, what criu's exit status says, and what became of the job agree.

A fault happens as the step begins; what has a colon in its name is in the middle of one. "All three killed" is hook, watcher and criu: then nobody is left, and ` + "`cucriu recover`" + `
is the way back. A full directory stays full to the end if it is that of the images; the run directory stays full until the job runs or has ended, and a moment longer. Whatever else fails, a dump that fails leaves the job
running, and a restore that fails leaves the image.

"SIGCONT from outside": every process of the job is continued as the step begins. "The stage called twice": the same criu runs the hook a second time at that stage, after the first
call, or, in the middle of a stage, after the first call was killed there. "Another dump at the same time": somebody dumps two other jobs of the host meanwhile, one without CUDA, with a
` + "`lock.timeout`" + ` of five seconds. "The image's files gone": what the hook has written into the image directory is removed. The first three change nothing of what becomes of the job.

| it says | what became of the job |
|---|---|
| refused, nothing touched | criu failed; the job ran on all the time |
| runs on | criu failed, and the hook or its watcher brought the job back |
| the other runs on | the same, for what the fault had not killed |
| dumped | criu ended the job, and its image restores |
| dumped without it | the same for what was left when the dump began |
| refused, nothing created | criu failed before it created a process; the image restores |
| ended; the image restores | the half-restored job was ended |
| runs | the restore was completed |
| … after recover | ` + "`cucriu recover`" + ` did it |
| …; recover closes the journal | it had come to that without, but nobody had written it down |
`

const limits = `
## What cannot be helped

- CRIU makes a process run CRIU's own code while it writes its memory. Who kills CRIU with SIGKILL then may kill that process with it: for about a millisecond always,
  and rarely for as long as that code is in the process (seen in 1 of 90 kills: SIGSEGV). The tests kill CRIU before and after that.
- CRIU waits for ever for a process that is killed while CRIU runs its own code in it. Kill that CRIU, and the watcher brings the others back.
- CRIU does not expect a SIGCONT for a process that it has seized: its dump fails, its restore may wait for ever. Kill that CRIU, and the watcher does the rest.
- A SIGCONT from outside and, within the few milliseconds of one borrowed system call, SIGKILL of who borrows: the thread goes on behind that call, and the job may die of it.
`

// compare compares the outcomes with docs/fault-matrix.md, or writes that file. If only
// some rows were run, it compares only those.
func compare(t *testing.T, seen outcomes) {
	t.Helper()
	path := filepath.Join(testenv.Root(t), "docs", "fault-matrix.md")
	all := len(seen) == len(rows)
	if os.Getenv("CUCRIU_UPDATE") != "" {
		if !all {
			t.Fatalf("%d of %d steps were run to their end: %s is written from all of them", len(seen), len(rows), path)
		}
		if err := os.WriteFile(path, []byte(document(seen)), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	kept := string(data)
	if all {
		if diff := cmp.Diff(strings.Split(kept, "\n"), strings.Split(document(seen), "\n")); diff != "" {
			t.Errorf("the outcomes differ from %s (if that is right: CUCRIU_UPDATE=1 go test ./test/faults):\n%s", path, diff)
		}
		return
	}
	for _, r := range rows {
		if seen[r.name] != nil && !strings.Contains(kept, r.line(seen)) {
			t.Errorf("the outcomes differ from %s:\n%s", path, r.line(seen))
		}
	}
}

func document(seen outcomes) string {
	var text strings.Builder
	text.WriteString(introduction)
	for _, part := range []struct {
		title    string
		restores bool
	}{{"Dump", false}, {"Restore", true}} {
		fmt.Fprintf(&text, "\n## %s\n\n| step |", part.title)
		for _, f := range faults {
			fmt.Fprintf(&text, " %s |", f)
		}
		text.WriteString("\n|---|" + strings.Repeat("---|", len(faults)) + "\n")
		for _, r := range rows {
			if r.restores() == part.restores {
				text.WriteString(r.line(seen))
			}
		}
	}
	text.WriteString("\nNo fault of this kind there:\n\n")
	for _, note := range notes {
		fmt.Fprintf(&text, "- %s: %s\n", note[0], note[1])
	}
	text.WriteString(limits)
	return text.String()
}

func (r row) line(seen outcomes) string {
	line := "| " + r.name + " |"
	for _, f := range faults {
		if note := r.without[f]; note != "" {
			line += " – " + note + " |"
		} else {
			line += " " + seen[r.name][f] + " |"
		}
	}
	return line + "\n"
}
