package soak

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// endanger kills and continues processes at random until it is told to stop.
func (s *soak) endanger(random *rand.Rand, stop <-chan struct{}) {
	for {
		pause := time.Duration(random.ExpFloat64() * float64(150*time.Millisecond))
		select {
		case <-stop:
			return
		case <-time.After(pause):
		}
		switch n := random.IntN(20); {
		case n < 6 && s.has("kill"):
			s.killOne(random)
		case n < 9 && s.has("kill-criu"):
			s.killCriu(random)
		case n == 9 && s.has("kill-all"):
			s.killCriu(random)
			for range testenv.Running("cucriu-hook") {
				s.killOne(random)
			}
		case n < 12 && s.has("delay"):
			s.delay(random)
		case n > 11 && s.has("continue"):
			if j := s.jobs[random.IntN(len(s.jobs))]; j.cuda() {
				s.continueFromOutside(j)
			}
		}
	}
}

// continueFromOutside continues a job, unless it is in criu's hands. No criu takes it meanwhile.
func (s *soak) continueFromOutside(j *job) {
	for _, pid := range testenv.Running("criu") {
		isBeingCreated := slices.ContainsFunc(s.jobs, func(j *job) bool { return slices.Contains(j.pids, pid) })
		criu, err := proc.Open(pid)
		if err != nil || isBeingCreated {
			continue
		}
		defer criu.Close()
		_ = proc.Stop(s.t.Context(), criu)
		defer func() { _ = criu.Signal(unix.SIGCONT) }()
	}
	if j.inCriusHands() {
		return
	}
	s.note("SIGCONT from outside to job %s", j.name)
	j.continueAll()
}

// delay makes one call of the driver take long, sometimes longer than lock.timeout.
// Whichever program comes by meanwhile must leave the job alone.
func (s *soak) delay(random *rand.Rand) {
	call := []string{"lock", "checkpoint", "restore", "unlock"}[random.IntN(4)]
	rule := fmt.Sprintf("%s delay %dms times 1", call, 100+random.IntN(3000))
	s.note("the driver: %s", rule)
	s.host.Faults(rule)
}

// killOne kills a hook, a watcher or a command.
func (s *soak) killOne(random *rand.Rand) {
	ours := slices.Concat(testenv.Running("cucriu-hook"), testenv.Running("cucriu"))
	if len(ours) == 0 {
		return
	}
	victim, err := proc.Open(ours[random.IntN(len(ours))])
	if err != nil {
		return // it has ended meanwhile
	}
	defer victim.Close()
	what, whose := commandLine(victim.PID), s.workOf(victim.PID)
	s.kills(whose, victim, "process %d: %s", victim.PID, what)
}

// kills kills a process that may work for these jobs. It counts the kill for the jobs
// beforehand, because a job may see the effect before this program goes on.
func (s *soak) kills(jobs []*job, victim *proc.Process, format string, args ...any) bool {
	for _, j := range jobs {
		j.kills.Add(1)
	}
	if victim.Signal(unix.SIGKILL) != nil {
		return false
	}
	s.count("kill")
	s.note("killed "+format, args...)
	return true
}

// workOf lists the jobs for which a process of ours may be at work. If that cannot be told,
// it lists all of them.
func (s *soak) workOf(pid int) []*job {
	text := commandLine(pid)
	environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	for variable := range strings.SplitSeq(string(environment), "\x00") {
		if dir, found := strings.CutPrefix(variable, "CRTOOLS_IMAGE_DIR="); found {
			images, _ := os.Readlink(dir)
			text += " " + images
		}
	}
	if i := strings.Index(text, "watch "); i >= 0 { // followed by the directory of its session
		journal, _ := os.ReadFile(filepath.Join(strings.Fields(text[i:])[1], "session.json"))
		text += string(journal)
	}
	for _, j := range s.jobs {
		if strings.Contains(text, filepath.Join(s.dir, j.name)+"-") || strings.Contains(text+" ", " -p "+strconv.Itoa(j.pids[len(j.pids)-1])+" ") {
			return []*job{j}
		}
	}
	return s.jobs
}

// killCriu kills a criu that waits for us: for its hook, or for the command that drives it.
// The hook or command is stopped meanwhile, so that criu goes on waiting.
func (s *soak) killCriu(random *rand.Rand) {
	all := testenv.Running("criu")
	random.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	for _, pid := range all {
		criu, err := proc.Open(pid)
		if err != nil {
			continue
		}
		defer criu.Close()
		killed := s.killWaiting(criu, random.IntN(2) == 0)
		if killed {
			return
		}
	}
}

func (s *soak) killWaiting(criu *proc.Process, serverToo bool) bool {
	args := strings.Split(commandLine(criu.PID), " ")
	var server int
	switch {
	case len(args) < 2 || args[1] != "dump" && worksIn(criu.PID, filepath.Join(s.dir, "cpu-")):
		return false // a swrk does not show whether it dumps or restores
	case args[1] == "swrk":
		status, err := proc.ReadStatus(criu.PID)
		if err != nil {
			return false
		}
		server = status.PPID
	default:
		children, err := proc.Children(criu.PID)
		if err != nil {
			return false
		}
		i := slices.IndexFunc(children, func(pid int) bool { return slices.Contains(testenv.Running("cucriu-hook"), pid) })
		if i < 0 {
			return false
		}
		server = children[i]
	}
	stopped, err := proc.Open(server)
	if err != nil {
		return false
	}
	defer stopped.Close()
	if name := testenv.ProcessName(server); name != "cucriu" && name != "cucriu-hook" {
		return false
	}
	if stopped.Signal(unix.SIGSTOP) != nil {
		return false
	}
	defer func() { _ = stopped.Signal(unix.SIGCONT) }()
	if !awaitStop(stopped) || args[1] == "swrk" && !waitsForClient(criu.PID) {
		return false
	}
	what, whose := commandLine(criu.PID), s.workOf(server)
	if !s.kills(whose, criu, "criu %d, which waited for process %d (%s): %s", criu.PID, server, testenv.ProcessName(server), what) {
		return false
	}
	if serverToo {
		s.kills(whose, stopped, "process %d as well", server)
	}
	return true
}

// awaitStop reports whether every thread of a process has come to its stop.
func awaitStop(process *proc.Process) bool {
	for range 200 {
		if !process.Alive() {
			return false
		}
		if stopped, err := proc.Stopped(process.PID); err == nil && stopped {
			return !process.Exiting()
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

// waitsForClient reports whether a criu swrk waits at its socket, descriptor 3. None of its
// code is inside a process then.
func waitsForClient(criu int) bool {
	for range 3 { // it must stay there
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", criu))
		fields := strings.Fields(string(data))
		if err != nil || len(fields) < 2 || fields[1] != "0x3" {
			return false
		}
		number, _ := strconv.Atoi(fields[0])
		if number != unix.SYS_READ && number != unix.SYS_RECVFROM && number != unix.SYS_RECVMSG {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

func commandLine(pid int) string { return strings.Join(testenv.CommandLine(pid), " ") }
