package workload

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cucriu/hooks/preflight"
	"cucriu/internal/testenv"
)

// changed is what is different after a restore in a process that has everything (odd/everything.c). What is not
// listed is as it was.
var changed = []struct {
	what string // the names of what the process tells of itself: a regular expression
	says string // what limits.md calls it in its list of what is not restored, or the finding that warns of it
}{
	{"landlock", "Landlock rules"},
	{"multicast source", "multicast sources"},
	{"(session|process|thread) keyring of .*", "keyrings"},
	{"machine checks of .*", "`PR_MCE_KILL`"},
	{"Rss of locked-on-fault", preflight.FindingNotRestored},
	{"attribute of the removed file", preflight.FindingNotRestored},
	{"removed file", "sub-second times of removed files"},
	{"terminal output", "unread terminal output (`\\r\\r\\n`)"},
	{"option 6/2 of .*", "`TCP_MAXSEG`"},
	{"option 6/10 of .*", "`TCP_WINDOW_CLAMP`"},
}

// unseen is in that list, too, but a process cannot tell it of itself.
const unseen = "`SEM_UNDO`"

// TestTheDocsSayWhatARestoreChanges: no more and no less.
func TestTheDocsSayWhatARestoreChanges(t *testing.T) {
	page, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(page), "\n- Not restored, and not looked for: ")
	list, _, _ = strings.Cut(list, ".\n")
	documented := strings.Split(strings.Join(strings.Fields(list), " "), ", ")
	expected := []string{unseen}
	for _, c := range changed {
		if c.says != preflight.FindingNotRestored {
			expected = append(expected, c.says)
		}
	}
	slices.Sort(documented)
	slices.Sort(expected)
	if diff := cmp.Diff(expected, documented); diff != "" {
		t.Errorf("limits.md has another list than the table (-table +limits.md):\n%s", diff)
	}
}

// TestWhatARestoreChangesIsKnown compares what a process that has everything tells of itself before and after it was
// dumped and restored.
func TestWhatARestoreChangesIsKnown(t *testing.T) { compareAll(t, "") }

// TestAKilledRestoreSetsEverythingAgain: the hook is killed while it makes the threads ask for what they had, and the
// watcher takes over.
func TestAKilledRestoreSetsEverythingAgain(t *testing.T) { compareAll(t, "restore.asking") }

// compareAll does it with a hook that is killed at a point of the restore.
func compareAll(t *testing.T, point string) {
	testenv.Isolated(t, func(t *testing.T) {
		testenv.OwnTerminals(t)
		host := testenv.NewHost(t, 1)
		dir, images := t.TempDir(), filepath.Join(t.TempDir(), "images")
		in := func(name string) string { return filepath.Join(dir, name) }
		program := testenv.Artefact(t, "make workload", "build", "workload", "odd")
		under := []string{"/bin/sh", "-c", `odd=$1 dir=$2; shift 2; "$@" & exec $odd everything $dir`, "sh", program, dir}
		job := host.StartUnder(under, 1)
		testenv.Eventually(t, testenv.Soon, "it has everything", func() bool {
			if why, err := os.ReadFile(in("not-here")); err == nil {
				t.Skipf("this kernel does not have it: %s", why)
			}
			return testenv.Exists(in("ready"))
		})
		missing, err := os.ReadFile(in("missing"))
		if err != nil {
			t.Fatal(err)
		}
		tell := func() map[string]string {
			t.Helper()
			testenv.WriteFile(t, in("ask"), "")
			testenv.Eventually(t, testenv.Soon, "it answers", func() bool {
				return testenv.Exists(in("answer")) && !testenv.Exists(in("ask"))
			})
			if answer, err := os.ReadFile(in("answer")); err != nil || string(answer) != "as it was" {
				t.Fatalf("%s: %v", answer, err)
			}
			text, err := os.ReadFile(in("snapshot"))
			if err = errors.Join(err, os.Remove(in("answer"))); err != nil {
				t.Fatal(err)
			}
			told := make(map[string]string)
			for line := range strings.Lines(string(text)) {
				name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
				told[name] = value
			}
			return told
		}
		before := tell()
		for name, value := range tell() {
			if before[name] != value { // it changes by itself
				delete(before, name)
			}
		}
		marks := t.TempDir()
		for round := range 2 { // what was set again is dumped again
			out, status := cucriu(t, host, "dump", "-t", job.Root(), "-D", images)
			if status != 0 || round == 0 && !strings.Contains(out, "warning: "+preflight.FindingNotRestored) {
				t.Fatalf("cucriu dump ends with %d\n%s", status, out)
			}
			testenv.Eventually(t, testenv.Soon, "the job is gone", job.Gone)
			if point != "" {
				break
			}
			out, status = cucriu(t, host, "restore", "-D", images)
			if status != 0 || strings.Contains(out, "could not be set") {
				t.Fatalf("cucriu restore ends with %d\n%s", status, out)
			}
			images += "again"
		}
		if point != "" {
			host.UseFailpoint(point + "=kill")
			host.Setenv("CUCRIU_FAILPOINT_MARKS", marks)
			if out, status := cucriu(t, host, "restore", "-D", images); status == 0 {
				t.Fatalf("cucriu restore was not killed\n%s", out)
			}
			testenv.Eventually(t, testenv.Soon, "the restore has an outcome", func() bool { return host.RestoreOutcome() != "" })
			if !testenv.Exists(filepath.Join(marks, point)) {
				t.Errorf("%s was not reached", point)
			}
		}
		after := tell()
		seen := make([]bool, len(changed))
		for name, value := range before {
			if after[name] == value {
				continue
			}
			i := slices.IndexFunc(changed, func(c struct{ what, says string }) bool {
				return regexp.MustCompile("^(" + c.what + ")$").MatchString(name)
			})
			if i < 0 {
				t.Errorf("%s: %q was %q", name, after[name], value)
				continue
			}
			seen[i] = true
		}
		for i, c := range changed {
			if !seen[i] && len(missing) == 0 {
				t.Errorf("%s is as it was: remove it from the table, and from limits.md", c.what)
			}
		}
	})
}

// TestACUDAProcessAsksAgain, too, in each of its threads, which are parked then.
func TestACUDAProcessAsksAgain(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.StartUnder([]string{"setarch", "--addr-no-randomize"}, 1)
		images := filepath.Join(t.TempDir(), "images")
		for range 2 {
			if out, status := cucriu(t, host, "dump", "-t", job.Root(), "-D", images); status != 0 {
				t.Fatalf("cucriu dump ends with %d\n%s", status, out)
			}
			testenv.Eventually(t, testenv.Soon, "the job is gone", job.Gone)
			if out, status := cucriu(t, host, "restore", "-D", images); status != 0 || strings.Contains(out, "warning") {
				t.Fatalf("cucriu restore ends with %d\n%s", status, out)
			}
			job.Runs()
			threads, err := filepath.Glob("/proc/" + job.Root() + "/task/*/personality")
			if err != nil || len(threads) < 2 {
				t.Fatalf("threads %q: %v", threads, err)
			}
			for _, thread := range threads {
				if personality, err := os.ReadFile(thread); err != nil || string(personality) != "00040000\n" {
					t.Errorf("%s: %q %v", thread, personality, err)
				}
			}
			images += "again"
		}
	})
}
