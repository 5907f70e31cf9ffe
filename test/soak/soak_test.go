package soak

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cucriu/cudackpt"
	"cucriu/internal/testenv"
)

// TestNoJobIsLostInACrowd does what the seed says.
func TestNoJobIsLostInACrowd(t *testing.T) {
	if testenv.RealDriver() {
		t.Skip("needs the simulated driver: the jobs share a pid namespace of their own")
	}
	o := readOptions(t)
	testenv.IsolatedFor(t, o.length+2*grace, func(t *testing.T) { newSoak(t, o).run() })
}

// served are the jobs with the library of cucriu run --dir, which moves their memory.
var served = []string{"moved", "shares"}

// grace is how much longer a soak may take on a busy machine.
const grace = 5 * time.Minute

// options are read from the environment.
type options struct {
	length  time.Duration // SOAK
	seed    uint64        // SEED
	every   bool          // go on until every deed has been done
	without []string      // SOAK_WITHOUT: hazards, jobs and deeds to leave out, to find the one that causes a failure
}

func readOptions(t *testing.T) options {
	t.Helper()
	o := options{without: strings.Split(os.Getenv("SOAK_WITHOUT"), ",")}
	o.length, o.seed, o.every = testenv.Soak(t, 10*time.Second)
	return o
}

func (o options) has(name string) bool { return !slices.Contains(o.without, name) }

// soak is one run.
type soak struct {
	options
	t      *testing.T
	host   *testenv.Host
	driver *cudackpt.Driver
	dir    string
	jobs   []*job
	begun  time.Time

	mu     sync.Mutex
	events []string
	counts map[string]int
}

func newSoak(t *testing.T, o options) *soak {
	t.Helper()
	s := &soak{options: o, t: t, host: testenv.NewHost(t, 2, "--mib-per-gpu", "512"), dir: t.TempDir(), begun: time.Now(), counts: make(map[string]int)}
	s.host.Setenv("CUCRIU_CONFIG", s.host.Config("version: 1\nlock: {timeout: 2s, try: 500ms}\nforce: [gpu-in-use]\n"))
	s.driver = s.host.Driver()
	// The first criu on a machine tries the kernel with children that stop themselves, and hangs if somebody else continues one
	// ([soak.continueFromOutside]). It keeps what it has found for the others.
	const found = "/run/criu.kdat"
	if output, err := s.host.Command(testenv.Criu(t), "check", "--feature", "clone3_set_tid").CombinedOutput(); err != nil || !testenv.Exists(found) {
		t.Fatalf("criu has left no %s: %v\n%s", found, err, output)
	}
	for i, kind := range []struct {
		name      string
		processes int
		args      []string
	}{
		{"one", 1, []string{"--mib", "2", "--spin", "event-sync"}},
		{"large", 1, []string{"--mib", "2", "--ballast", "24", "--spin", "stream-sync", "--threads", "2"}},
		{"two", 2, []string{"--procs", "2", "--gpus", "0,1", "--mib", "2", "--spin", "event-sync"}},
		{"ranks", 2, []string{"--ranks", "2", "--gpus", "0,1", "--mib", "2"}},
		{"moved", 1, []string{"--mib", "2", "--ballast", "24", "--spin", "event-query"}},
		{"shares", 2, []string{"--ranks", "2", "--mesh", "2", "--gpus", "0,1", "--mib", "2"}},
		{"cpu", 0, nil},
	} {
		if !o.has(kind.name) {
			continue
		}
		j := &job{soak: s, name: kind.name, random: rand.New(rand.NewPCG(o.seed, uint64(i)))}
		j.start(kind.processes, kind.args)
		s.jobs = append(s.jobs, j)
	}
	return s
}

func (s *soak) run() {
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("what happened:\n%s", s.history())
		}
		testenv.SoakDone(s.t, s.counts)
	})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		s.endanger(rand.New(rand.NewPCG(s.seed, 1000)), stop)
	}()
	until := time.Now().Add(s.length)
	s.t.Run("jobs", func(t *testing.T) {
		for _, j := range s.jobs {
			t.Run(j.name, func(t *testing.T) {
				t.Parallel()
				t.Cleanup(func() {
					if t.Failed() {
						t.Logf("what had happened:\n%s", s.history())
					}
				})
				if !time.Now().Before(until) {
					t.Error("the job has waited for the others to end")
				}
				for time.Now().Before(until) || s.missing() != "" && time.Now().Before(until.Add(grace)) {
					j.act(t)
				}
			})
		}
	})
	close(stop)
	<-stopped
	if s.t.Failed() {
		return
	}
	s.note("in the end")
	for _, j := range s.jobs {
		j.finish(s.t)
	}
	s.nothingIsLeft()
	if deed := s.missing(); deed != "" {
		s.t.Errorf("%s has not been done with success in the whole time: this test has proved little", deed)
	}
}

// missing returns a deed that has not been done with success. A short soak need not do everything.
func (s *soak) missing() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, deed := range []string{"dump", "dump -R", "restore", "suspend", "resume", "kill"} {
		if s.every && s.has(deed) && s.counts[deed] == 0 {
			return deed
		}
	}
	return ""
}

// nothingIsLeft fails the test if anything of ours, or a second copy of a job, exists when
// all is over.
func (s *soak) nothingIsLeft() {
	programs := []string{"cucriu-hook", "cucriu", "criu"}
	testenv.Eventually(s.t, testenv.Soon, "hooks, watchers and criu have ended", func() bool {
		return !slices.ContainsFunc(programs, func(name string) bool { return len(testenv.Running(name)) > 0 })
	})
	if out, err := s.host.Cucriu("recover"); err != nil || !strings.Contains(out, "nothing to recover") {
		s.t.Errorf("cucriu recover in the end: %v\n%s", err, out)
	}
	for _, session := range s.host.Sessions() {
		if session.Outcome == "" {
			s.t.Errorf("the journal of session %s is open at step %s", session.Name(), session.Step)
		}
	}
	want := 0
	for _, j := range s.jobs {
		if j.cuda() {
			want += len(j.pids)
		}
		if held := testenv.Held(s.t, s.driver, j.pids); held != "" {
			s.t.Errorf("job %s: %s", j.name, held)
		}
	}
	var got []int // a killed copy may not have ended
	defer func() {
		if len(got) != want {
			s.t.Logf("processes %v of jobs are there", got)
		}
	}()
	testenv.Eventually(s.t, testenv.Soon, fmt.Sprintf("there are %d processes of jobs", want), func() bool {
		got = testenv.Running("cudawork")
		return len(got) == want
	})
	if left, _ := filepath.Glob(filepath.Join(s.host.RunDir, "sessions", "*", "threads-*")); len(left) > 0 {
		s.t.Errorf("left behind: %v", left)
	}
}

// note records an event, which is shown if the test fails.
func (s *soak) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const most = 2000
	if len(s.events) > most {
		s.events = s.events[most/2:]
	}
	s.events = append(s.events, fmt.Sprintf("%8.3fs ", time.Since(s.begun).Seconds())+fmt.Sprintf(format, args...))
}

func (s *soak) history() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.events, "\n")
}

func (s *soak) count(deed string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[deed]++
}
