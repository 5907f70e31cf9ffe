package run

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// TestALongJobSurvivesEverything does what the seed says to one job.
func TestALongJobSurvivesEverything(t *testing.T) {
	if testenv.RealDriver() {
		t.Skip("needs the simulated driver: all processes of the host are the test's own")
	}
	length, seed, _ := testenv.Soak(t, 10*time.Second)
	testenv.IsolatedFor(t, length+10*time.Minute, func(t *testing.T) {
		s := &soak{random: rand.New(rand.NewPCG(seed, 2)), begun: time.Now(), counts: make(map[string]int)}
		s.group, s.limitFile = testenv.MemoryGroup(t) // its processes end with the world
		if s.group != "" {
			s.limit(t, plenty)
		}
		s.world = newMixedWorld(t)
		s.run(t, length)
	})
}

// soak is one run.
type soak struct {
	*world
	random *rand.Rand
	begun  time.Time
	counts map[string]int
	events []string

	group, limitFile string // the memory control group of the job; empty if there can be none

	now     *run
	leaving *run            // which has got SIGTERM
	output  *os.File        // the pipe into which it and the job write
	reading sync.Mutex      // held while nobody reads the pipe
	damaged map[string]bool // checkpoints
	resumes int             // how many the log has
	sizes   []sizes
}

// sizes is what a supervisor takes.
type sizes struct {
	descriptors, threads int
	rss, disk            int64 // bytes
}

// diskSize is that of D: a few checkpoints of the job fit.
const diskSize = "128m"

func (s *soak) run(t *testing.T, length time.Duration) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what happened:\n%s", strings.Join(s.events, "\n"))
		}
	})
	defer func() {
		testenv.SoakDone(t, fmt.Sprintf("%v, %d checkpoints, %d resumes", s.counts, s.made(), s.resumes))
	}()
	testenv.SmallDisk(t, filepath.Dir(s.dir), diskSize)
	t.Cleanup(func() { s.kills(allKilled) }) // while D still says what there is
	s.mounts = mounts(t)
	s.damaged = make(map[string]bool)
	s.begin(t)
	s.now.verified(1)
	until := time.Now().Add(length)
	for time.Now().Before(until) && !t.Failed() {
		s.act(t)
		s.settle(t)
	}
	if t.Failed() {
		return
	}
	for s.leaving == s.now {
		s.settle(t) // it ends with another status than the job, and another one takes its place
	}
	s.note("in the end")
	s.finish(s.now)
	if s.counts["full disk"] == 0 { // the output of the job is on the same one
		inOrder(t, s.world)
	}
	s.flat(t)
}

// begin starts a supervisor, in the group, that writes into a pipe.
func (s *soak) begin(t *testing.T) {
	t.Helper()
	cmd := s.host.CucriuCommand(slices.Concat([]string{"run", "--dir", s.dir}, s.flags, []string{"--"}, s.command)...)
	if s.group != "" {
		cmd = s.host.Command("sh", append([]string{"-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(s.group, "cgroup.procs")}, cmd.Args...)...)
	}
	read, write, err := os.Pipe()
	must(t, err)
	_, err = unix.FcntlInt(write.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize())
	must(t, err)
	cmd.Stdout, cmd.Stderr = write, write
	r := s.start(cmd, s.flags)
	s.now, s.output = r, write
	said := create(t, r.err)
	go func() {
		defer read.Close()
		for buffer := make([]byte, 4096); ; {
			n, err := read.Read(buffer)
			if err != nil {
				return
			}
			s.reading.Lock()
			_, _ = said.Write(buffer[:n])
			s.reading.Unlock()
		}
	}()
	go func() {
		<-r.done
		write.Close()
	}()
}

func (s *soak) made() int {
	n, _ := strconv.Atoi(s.newest())
	return n
}

// act does something to the job, at a random moment.
func (s *soak) act(t *testing.T) {
	time.Sleep(time.Duration(s.random.IntN(2500)) * time.Millisecond)
	n := s.random.IntN(30)
	switch {
	case n < 14:
		s.kill(everybody[n%len(everybody)])
	case n < 16: // two of them
		s.kill(everybody[s.random.IntN(len(everybody))])
		s.kill(everybody[s.random.IntN(len(everybody))])
	case n < 18:
		s.note("SIGTERM")
		s.count("preempted")
		_ = s.now.cmd.Process.Signal(unix.SIGTERM)
		s.leaving = s.now
		time.Sleep(time.Duration(s.random.IntN(1500)) * time.Millisecond)
		if s.random.IntN(2) == 0 {
			s.kill(everybody[s.random.IntN(len(everybody))])
		}
	case n < 20:
		s.fill(t)
	case n < 22:
		s.damage(t)
	case n < 24:
		s.look(t)
	case n < 26:
		s.vanish(t)
	case n < 28:
		s.stopReading(t)
	case s.group != "":
		s.tighten(t)
	}
}

// vanish takes D away, or puts something else in its place, for a while. The same command must not
// start a second copy meanwhile.
func (s *soak) vanish(t *testing.T) {
	if s.leaving == s.now {
		return // the job is stopped for its last checkpoint, and stays so until D is back if its supervisor is killed
	}
	all := vanishes()
	what := slices.Sorted(maps.Keys(all))[s.random.IntN(len(all))]
	backup := filepath.Join(t.TempDir(), "backup")
	defer os.RemoveAll(backup)
	_ = exec.Command("cp", "-a", s.dir, backup).Run() // some files are removed meanwhile
	for _, place := range glob(backup, "place-*") {
		must(t, os.RemoveAll(place))
	}
	s.note("D: %s", what)
	s.count("D swapped")
	dir := s.dir
	all[what].do(t, s.world, backup)
	if s.random.IntN(2) == 0 {
		s.now.kill()
		s.note("killed %s", supervisorKilled)
	}
	s.world.run().ends(125)
	s.ticks(3)
	s.onlyOnce(t)
	all[what].undo(t, s.world)
	s.dir = dir
	s.note("D is back")
}

// stopReading has nobody read what the supervisor and the job say, with a full pipe. Checkpoints are
// made meanwhile, and a preempted job leaves.
func (s *soak) stopReading(t *testing.T) {
	s.reading.Lock()
	defer s.reading.Unlock()
	// Opened once more, because to wait or not is a property of an open file.
	pipe, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", s.output.Fd()), unix.O_WRONLY|unix.O_NONBLOCK, 0)
	must(t, err)
	defer unix.Close(pipe)
	for err == nil {
		_, err = unix.Write(pipe, []byte(" "))
	}
	s.note("nobody reads")
	s.count("reader stopped")
	before, ended := s.newest(), false
	testenv.Eventually(t, 4*testenv.Soon, "a checkpoint, or the end of who had got SIGTERM before", func() bool {
		select {
		case <-s.now.done:
			ended = true
		default:
		}
		return ended || s.newest() > before && testenv.Exists(filepath.Join(s.dir, "checkpoints", s.newest(), "verified.json"))
	})
	if !ended && s.leaving != s.now && s.random.IntN(2) == 0 {
		s.now.signal(unix.SIGTERM)
		s.now.ends(requeue)
	}
}

// tighten leaves the group too little memory for a checkpoint. The checkpoint is refused, and the job
// runs on.
func (s *soak) tighten(t *testing.T) {
	if s.leaving == s.now {
		return // it may end without another checkpoint
	}
	quiet := func() bool {
		return len(glob(s.dir, "staged/*")) == 0 && !slices.ContainsFunc([]who{insideKilled, criuKilled, watcherKilled}, func(k who) bool { return len(s.victims(k)) > 0 })
	}
	for begin := time.Now(); !quiet() && time.Since(begin) < 2*time.Second; time.Sleep(time.Millisecond) {
	}
	hierarchies, err := proc.System{}.Hierarchies()
	must(t, err)
	groups, err := hierarchies.MemoryGroups(s.now.cmd.Process.Pid)
	must(t, err)
	if len(groups) == 0 {
		return // the supervisor has ended
	}
	oom, err := hierarchies.CountOOMKills(s.now.cmd.Process.Pid)
	must(t, err)
	before := s.refusals()
	defer s.limit(t, plenty)
	s.limit(t, groups[0].Limit-groups[0].Room()+20<<20)
	s.note("the group is tight")
	s.count("group tight")
	if !quiet() {
		return // a checkpoint has begun before that, and may take more than there is
	}
	s.now.awaits("a checkpoint is refused", func() bool { return s.refusals() > before })
	if n := oom.Kills(); n > 0 {
		t.Errorf("the out-of-memory killer has ended %d processes", n)
	}
}

// refusals returns for how many checkpoints the group had too little memory.
func (s *soak) refusals() int {
	data, _ := os.ReadFile(filepath.Join(s.dir, "events.jsonl"))
	return strings.Count(string(data), preflight.FindingMemoryCgroup)
}

const plenty = 4 << 30 // bytes

func (s *soak) limit(t *testing.T, bytes uint64) {
	t.Helper()
	testenv.WriteFile(t, filepath.Join(s.group, s.limitFile), strconv.FormatUint(bytes, 10))
}

func (s *soak) kill(k who) {
	if k == insideKilled || k == criuKilled || k == watcherKilled {
		// They are there only during a checkpoint.
		for begin := time.Now(); len(s.victims(k)) == 0 && time.Since(begin) < 2*time.Second; time.Sleep(5 * time.Millisecond) {
		}
		time.Sleep(time.Duration(s.random.IntN(200)) * time.Millisecond)
	}
	if k == criuKilled && !s.criuWaits() {
		return
	}
	if s.kills(k) {
		if k == supervisorKilled || k == allKilled {
			<-s.now.done
		}
		s.note("killed %s", k)
		s.count("killed " + string(k))
	}
}

// criuWaits reports whether criu waits for the program that drives it. While its own code is in
// a process, a kill of criu can kill that, too.
func (s *soak) criuWaits() bool {
	for _, pid := range s.victims(criuKilled) {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
		if fields := strings.Fields(string(data)); len(fields) > 1 && fields[1] == "0x3" {
			return true
		}
	}
	return false
}

// fill takes all room on the disk for a while.
func (s *soak) fill(t *testing.T) {
	ballast := filepath.Join(s.dir, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 1<<20))
	}
	f.Close()
	s.note("the disk is full")
	s.count("full disk")
	time.Sleep(time.Duration(s.random.IntN(3000)) * time.Millisecond)
	if s.random.IntN(3) == 0 {
		s.kill(everybody[s.random.IntN(len(everybody))])
	}
	time.Sleep(100 * time.Millisecond)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	s.note("the disk has room again")
}

// damage damages the newest checkpoint, unless it is the only one that is whole, while nobody
// works on it, and has the job begin again from what there is.
func (s *soak) damage(t *testing.T) {
	s.kill(allKilled)
	<-s.now.done
	s.noProcesses()
	whole := s.whole()
	if len(whole) < 2 {
		return
	}
	newest := whole[len(whole)-1]
	dir := filepath.Join(s.dir, "checkpoints", newest)
	files := filesOf(t, dir)
	file, how := files[s.random.IntN(len(files))], damages[s.random.IntN(len(damages))]
	how.do(t, filepath.Join(dir, file))
	s.damaged[newest] = true
	s.note("checkpoint %s: %s: %s", newest, how.name, file)
	s.count("damaged")
}

// whole lists the checkpoints that can be used.
func (s *soak) whole() []string {
	var names []string
	for _, name := range s.checkpoints() {
		if !s.damaged[name] && !testenv.Exists(filepath.Join(s.dir, "checkpoints", name, "given-up.json")) {
			names = append(names, name)
		}
	}
	return names
}

// settle has the job run supervised again, and checks the promise.
func (s *soak) settle(t *testing.T) {
	t.Helper()
	begun := time.Now()
	for {
		ended := false
		select {
		case <-s.now.done:
			ended = true
		default:
		}
		if !ended && s.ticksOn(3*time.Second) {
			break
		}
		if ended {
			whole := s.whole()
			s.note("cucriu run ended (%v): %s", s.now.cmd.ProcessState, lastLine(s.now.said()))
			s.begin(t)
			s.sayResume(t, whole)
		}
		if time.Since(begun) > 4*testenv.Soon {
			out, _ := exec.Command("sh", "-c", `ps -eLo pid,ppid,tid,stat,comm,wchan:20,args; grep -H "^Tracer" /proc/[0-9]*/status | grep -v "\s0$"; tail -n 20 `+s.host.RunDir+`/jobs/*/run/logs/*/*.log`).CombinedOutput()
			t.Logf("%s", out)
			t.Fatalf("the job does not go on: %s", s.now.said())
		}
	}
	if r := s.report(); r.Bad != 0 {
		t.Fatalf("the job found something wrong: %+v", r)
	}
	s.onlyOnce(t)
}

var resumesFrom = regexp.MustCompile(`D resumes from checkpoint (\S+) of `) // it is read as it comes

// sayResume waits until the supervisor has the job under care, or has ended, and fails the test if
// it goes on from another checkpoint than from the newest that is whole.
func (s *soak) sayResume(t *testing.T, whole []string) {
	t.Helper()
	over := func() bool {
		said := s.now.said()
		select {
		case <-s.now.done:
			return true
		default:
			return resumesFrom.MatchString(said) || strings.Contains(said, "is supervised again")
		}
	}
	testenv.Eventually(t, 4*testenv.Soon, "the job is under care", over)
	said := s.now.said()
	s.note("%s", strings.TrimSpace(said))
	resumed := resumesFrom.FindStringSubmatch(said)
	if resumed == nil {
		return
	}
	s.resumes++
	from := resumed[1]
	want := whole[len(whole)-1]
	// It may have been staged in memory, where only the supervisor finds it.
	if from != want && (from < want || !strings.Contains(said, from+" was made from the image that an earlier supervisor had staged")) {
		t.Fatalf("it goes on from %s, and the newest that is whole was %s", from, want)
	}
}

// ticksOn reports whether the job ticks on, with its CUDA process.
func (s *soak) ticksOn(within time.Duration) bool {
	cuda := testenv.JobOf(s.t, 0)
	cuda.Dirs = []string{s.cuda}
	from, fromCUDA := s.report().Tick, cuda.Ticks()[0]
	for begin := time.Now(); time.Since(begin) < within; time.Sleep(10 * time.Millisecond) {
		if s.report().Tick > from+3 && cuda.Ticks()[0] > fromCUDA+3 {
			return true
		}
	}
	return false
}

// look lets the job run for a while, compares all its memory, and notes what its supervisor takes.
func (s *soak) look(t *testing.T) {
	select {
	case <-s.now.done:
		return
	default:
	}
	if s.leaving == s.now {
		return // it makes no more checkpoints
	}
	s.note("looking")
	s.now.verified(2)
	s.checks()
	pid := s.now.cmd.Process.Pid
	var z sizes
	z.descriptors = len(glob(fmt.Sprintf("/proc/%d/fd", pid), "*"))
	z.threads = len(glob(fmt.Sprintf("/proc/%d/task", pid), "*"))
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if fields := strings.Fields(string(data)); len(fields) > 1 {
		pages, _ := strconv.ParseInt(fields[1], 10, 64)
		z.rss = pages * int64(os.Getpagesize())
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(s.dir, &fs); err != nil {
		t.Fatal(err)
	}
	z.disk = int64(fs.Blocks-fs.Bfree) * fs.Bsize
	s.note("%+v", z)
	s.sizes = append(s.sizes, z)
}

// flat fails the test if what a supervisor takes has grown.
func (s *soak) flat(t *testing.T) {
	t.Helper()
	if len(s.sizes) < 2 {
		return
	}
	first := s.sizes[0]
	for _, now := range s.sizes[1:] {
		if now.descriptors > first.descriptors+5 || now.threads > first.threads+16 || now.rss > first.rss+(64<<20) || now.disk > first.disk+(48<<20) {
			t.Errorf("a supervisor took %+v, and then %+v", first, now)
		}
	}
	t.Logf("sizes: %+v", s.sizes)
}

func (s *soak) note(format string, args ...any) {
	s.events = append(s.events, fmt.Sprintf("%8.3fs tick %d: ", time.Since(s.begun).Seconds(), s.report().Tick)+fmt.Sprintf(format, args...))
}

func (s *soak) count(deed string) { s.counts[deed]++ }

func glob(dir, pattern string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, pattern))
	return files
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
