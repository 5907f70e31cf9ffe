package hooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
	"cucriu/cudackpt"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/hooks/timeline"
	"cucriu/internal/durable"
)

// Kind tells the sessions of a dump from those of a restore.
type Kind string

// The kinds of session.
const (
	KindDump    Kind = "dump"
	KindRestore Kind = "restore"
	// KindSuspend is a checkpoint in place, without criu, until its resume.
	KindSuspend Kind = "suspend"
)

// Outcome says what became of a session's processes. It is empty while the
// session is open.
type Outcome string

// The outcomes of a session.
const (
	OutcomeDumped  Outcome = "dumped"  // criu wrote the image and ended the processes
	OutcomeRunning Outcome = "running" // the processes run (or stay stopped as they were before)
	OutcomeStopped Outcome = "stopped" // GPU state restored, left stopped as criu's -s asked
	OutcomeKilled  Outcome = "killed"  // a restore failed: its processes were ended, the image is intact
	OutcomeGone    Outcome = "gone"    // the processes ended by themselves or with a criu that failed
	OutcomeLeft    Outcome = "left"    // a restore failed: left stopped for inspection, as configured
)

// Session is the journal of one dump or restore. It is written ahead of every
// step, so that the watcher and the recover command can take a job to a good
// end from wherever its hook died. It also carries what a restore's later
// stages need, when criu's image directory is no longer in reach.
type Session struct {
	Kind         Kind          `json:"kind"`
	BootID       string        `json:"boot_id"` // start times mean nothing after a reboot
	Created      time.Time     `json:"created"`
	CreatedClock time.Duration `json:"created_clock"`      // the same moment as time since boot: the origin of the phases
	Criu         proc.Ident    `json:"criu"`               // of KindSuspend: the command that suspends or resumes
	CriuExe      string        `json:"criu_exe,omitempty"` // of a restore: what its half-restored tasks are known by
	Watcher      *proc.Ident   `json:"watcher,omitempty"`
	Client       *proc.Ident   `json:"client,omitempty"` // who serves criu over RPC, if not an action script
	ImageDir     string        `json:"image_dir"`
	CommittedDir string        `json:"publish_as,omitempty"` // where the complete image goes, if elsewhere
	Root         *proc.Ident   `json:"root,omitempty"`
	RootParent   *proc.Ident   `json:"root_parent,omitempty"` // of a restore, if it is not criu
	Mark         uint64        `json:"mark,omitempty"`        // of a restore: what its criu creates is known by it
	Tree         []proc.Ident  `json:"tree,omitempty"`        // what a restore was seen to create
	LeaveStopped bool          `json:"leave_stopped"`         // criu -s
	LeaveRunning bool          `json:"leave_running"`         // criu -R
	LazyPages    bool          `json:"lazy_pages,omitempty"`  // criu --lazy-pages
	RPC          bool          `json:"rpc"`                   // criu was driven over RPC: its options are not known
	Step         string        `json:"step"`                  // the step that was begun last
	Back         bool          `json:"back"`                  // after criu's end, what it left alive was begun to be brought back
	Restored     bool          `json:"restored"`              // no process is checkpointed any more: none is to be stopped
	Members      []Member      `json:"members"`               // the CUDA processes
	Ancestors    []proc.Ident  `json:"ancestors,omitempty"`   // above them, which did not stand still before
	// Others are the processes without CUDA that a restore holds back until the
	// GPU state is there.
	Others []proc.Ident `json:"others,omitempty"`
	// Paused are the freezers that were frozen when the dump began: the
	// container was paused.
	Paused   []proc.Freezer  `json:"paused,omitempty"`
	Manifest *image.Manifest `json:"manifest,omitempty"`
	Written  *image.Written  `json:"written,omitempty"` // of a dump
	Phases   timeline.Phases `json:"phases"`
	Outcome  Outcome         `json:"outcome"`
	Message  string          `json:"message"`
	Stuck    bool            `json:"stuck,omitempty"` // the last try to take it to its end has failed; the message says why

	dir      string
	lock     *flock.Flock
	progress func(*Session, string)
	by       string     // whose time a phase is: see [timeline.Phase.By]
	over     time.Time  // when the job was where it is to be
	mu       sync.Mutex // guards Phases and the members' Pages.Dropped, and puts saves in order
}

// Member is one CUDA process of a session.
type Member struct {
	preflight.Process
	// PrivateBefore is how much private memory it had mapped before the checkpoint,
	// in bytes.
	PrivateBefore uint64 `json:"private_before,omitempty"`
	// Pairs is the GPU map for its restore; none means the same devices.
	Pairs []cudackpt.GPUPair `json:"pairs,omitempty"`
	// Pages is what the fast lane has of its memory.
	Pages *MemberPages `json:"pages,omitempty"`
}

// membersOf are processes as the members of a session.
func membersOf(processes []preflight.Process) []Member {
	members := make([]Member, len(processes))
	for i, p := range processes {
		members[i].Process = p
	}
	return members
}

// inspectedOf are the members as they were inspected.
func inspectedOf(members []Member) []preflight.Process {
	processes := make([]preflight.Process, len(members))
	for i, m := range members {
		processes[i] = m.Process
	}
	return processes
}

const (
	// timelineFile is the file name of a timeline in its session's directory.
	timelineFile = "timeline.json"
	sessionFile  = "session.json"
	keepSessions = 64 // closed ones, as a record of what became of the jobs
)

var errSessionBusy = errors.New("session is in use by its hook or watcher")

// sessionsDir makes the run directory, 0700 and owned by us, and returns the
// folder of the sessions in it.
func sessionsDir(runDir string) (string, error) {
	dir := filepath.Join(runDir, "sessions")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("run directory: %w", err)
	}
	for _, d := range []string{runDir, dir} {
		var stat unix.Stat_t
		if err := unix.Lstat(d, &stat); err != nil {
			return "", fmt.Errorf("run directory %s: %w", d, err)
		}
		if stat.Mode&unix.S_IFMT != unix.S_IFDIR || int(stat.Uid) != os.Geteuid() || stat.Mode&0o022 != 0 {
			return "", fmt.Errorf("run directory %s must be a directory owned by uid %d that nobody else can write (mode 0700): %w", d, os.Geteuid(), os.ErrPermission)
		}
	}
	return dir, nil
}

// isForeignRunDir reports whether the run directory is out of this program's reach,
// which does not run as root: nothing in it is about what it dumps, and only a dump
// with CUDA needs it.
func isForeignRunDir(runDir string) bool {
	if os.Geteuid() == 0 {
		return false
	}
	_, err := sessionsDir(runDir)
	return errors.Is(err, os.ErrPermission)
}

// Name is what the session is called in the run directory.
func (s *Session) Name() string { return filepath.Base(s.dir) }

func sessionPath(sessions string, kind Kind, criu proc.Ident) string {
	return filepath.Join(sessions, fmt.Sprintf("%s-%d-%d", kind, criu.PID, criu.StartTime))
}

// newSession creates the session of a running criu and locks it. A process may
// be in one open session only, and so may a criu.
func (h *Hook) newSession(s *Session) (*Session, error) {
	runDir := h.Config.RunDir
	sessions, err := sessionsDir(runDir)
	if err != nil {
		return nil, err
	}
	creating := flock.New(filepath.Join(runDir, "lock"))
	if err := creating.Lock(); err != nil {
		return nil, fmt.Errorf("session: %w", err)
	}
	defer creating.Close()
	if err := tidySessions(runDir); err != nil {
		return nil, err
	}
	if other, err := openSessionOf(runDir, s.Criu, s.Members); err != nil || other != nil {
		return nil, errors.Join(err, other.conflict())
	}
	if err := s.checkUnclaimed(runDir); err != nil {
		return nil, err
	}
	s.dir, s.progress, s.by = sessionPath(sessions, s.Kind, s.Criu), h.Progress, h.by
	s.Created, s.CreatedClock = time.Now().UTC(), timeline.SinceBoot()
	if h.begun > 0 {
		s.CreatedClock = h.begun
		s.Created = s.Created.Add(h.begun - timeline.SinceBoot())
	}
	if s.BootID, err = bootID(); err != nil {
		return nil, err
	}
	// One criu may serve several requests, one after the other.
	other := &Session{dir: s.dir}
	switch err := other.read(); {
	case err == nil && other.Outcome == "":
		return nil, other.conflict() // with the same pid, in another pid namespace
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return nil, err // what parked threads need may lie beside it
	}
	if err := os.RemoveAll(s.dir); err != nil {
		return nil, fmt.Errorf("session: %w", err)
	}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("session: %w", err)
	}
	if err := s.lockWait(); err != nil { // for who looks whether it is orphaned
		return nil, err
	}
	if err := s.save(); err != nil {
		s.unlock()
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	return s, nil
}

// checkUnclaimed refuses a dump into the directory of another that is not over.
func (s *Session) checkUnclaimed(runDir string) error {
	if s.Kind != KindDump {
		return nil
	}
	dir, err := os.Stat(s.ImageDir)
	if err != nil {
		return nil // no other dump goes there either
	}
	into, err := sessionsInto(runDir, dir)
	for _, other := range into {
		if other.Outcome == "" {
			return other.claimConflict()
		}
	}
	return err
}

// openSessionOf finds an open session of a criu or of any of the processes.
func openSessionOf(runDir string, criu proc.Ident, members []Member) (*Session, error) {
	all, err := Sessions(runDir)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if s.Outcome != "" {
			continue
		}
		if s.Criu == criu {
			return s, nil
		}
		for _, member := range s.Members {
			if slices.ContainsFunc(members, func(m Member) bool { return m.Ident == member.Ident }) {
				return s, nil
			}
		}
	}
	return nil, nil
}

func (s *Session) conflict() error {
	if s == nil {
		return nil
	}
	if s.Kind == KindSuspend {
		return s.suspendConflict()
	}
	return fmt.Errorf("a %s by criu process %d, begun %s, is not over (step %s): wait for it; if criu and its watcher are gone, cucriu recover ends it; "+
		"if it is this criu's own, cucriu-hook is configured twice, in two of criu's configuration files",
		s.Kind, s.Criu.PID, s.Created.Local().Format(time.TimeOnly), s.Step)
}

// loadSession reads a session and locks it, waiting for whoever has the lock
// if wait is set.
func loadSession(dir string, wait bool) (*Session, error) {
	s := Session{dir: dir}
	lock := s.lockNow
	if wait {
		lock = s.lockWait
	}
	if err := lock(); err != nil {
		return nil, err
	}
	if err := s.read(); err != nil {
		s.unlock()
		return nil, err
	}
	return &s, nil
}

func (s *Session) read() error {
	data, err := os.ReadFile(filepath.Join(s.dir, sessionFile))
	if err != nil {
		return fmt.Errorf("session: %w", err)
	}
	if err := s.parse(data); err != nil {
		return fmt.Errorf("session %s is damaged: %w: look for processes that it left stopped (cucriu status), then remove it", s.dir, err)
	}
	return nil
}

// parse refuses what nobody here can have written: the pids in it are signalled.
func (s *Session) parse(data []byte) error {
	if err := json.Unmarshal(data, s); err != nil {
		return err
	}
	for _, member := range s.Members {
		if err := member.Pages.validate(); err != nil {
			return err
		}
	}
	for _, id := range s.idents() {
		if id.PID <= 0 {
			return fmt.Errorf("it names a process with pid %d", id.PID)
		}
		if err := id.Complete(); err != nil {
			return err
		}
	}
	switch {
	case s.Kind == KindRestore && s.Manifest == nil:
		return errors.New("it is of a restore and has no manifest")
	case s.Kind == KindSuspend && len(s.Members) == 0:
		return errors.New("it suspends no process")
	case s.Kind != KindDump && s.Kind != KindRestore && s.Kind != KindSuspend:
		return fmt.Errorf("it is of kind %q", s.Kind)
	case s.Manifest != nil:
		return s.Manifest.Validate()
	}
	return nil
}

// idents are all the processes that the journal names.
func (s *Session) idents() []*proc.Ident {
	idents := []*proc.Ident{&s.Criu}
	for _, id := range []*proc.Ident{s.Watcher, s.Client, s.Root, s.RootParent} {
		if id != nil {
			idents = append(idents, id)
		}
	}
	for i := range s.Members {
		idents = append(idents, &s.Members[i].Ident)
	}
	for _, others := range [][]proc.Ident{s.Tree, s.Others, s.Ancestors} {
		for i := range others {
			idents = append(idents, &others[i])
		}
	}
	return idents
}

// Elsewhere reports whether the session is an open one of another pid namespace: it
// is left to those who are there.
func (s *Session) Elsewhere() bool { return s.Outcome == "" && s.Criu.Elsewhere() }

func (s *Session) lockNow() error {
	s.lock = flock.New(filepath.Join(s.dir, "lock"))
	locked, err := s.lock.TryLock()
	if err == nil && !locked {
		err = errSessionBusy
	}
	return err
}

func (s *Session) lockWait() error {
	s.lock = flock.New(filepath.Join(s.dir, "lock"))
	return s.lock.Lock()
}

func (s *Session) unlock() { _ = s.lock.Close() }

// save makes the session durable.
func (s *Session) save() error {
	s.mu.Lock()
	defer s.mu.Unlock() // till the end: an older journal must not replace a newer one
	if err := durable.WriteJSON(filepath.Join(s.dir, sessionFile), s); err != nil {
		return fmt.Errorf("write the session: %w", err)
	}
	return nil
}

// note writes the journal if it can be written: a full disk must not keep a job
// from coming back.
func (h *Hook) note(s *Session) {
	if err := s.save(); err != nil {
		h.Log.Warn("the run directory cannot be written; the job is brought back all the same", "error", err)
	}
}

// close records what became of the processes. Nothing more is to be done, so
// the watcher is ended: criu may live on for as long as the job that it has
// restored.
func (s *Session) close(outcome Outcome, message string) error {
	s.Outcome, s.Message, s.Stuck = outcome, message, false
	if err := failpoint(context.Background(), s, string(s.Kind)+".close"); err != nil {
		return err
	}
	s.over = time.Now()
	if outcome != OutcomeStopped { // else they are right to stand still
		s.continueAncestors()
	}
	if err := s.save(); err != nil {
		return err
	}
	_ = s.Timeline().Write(filepath.Join(s.dir, timelineFile)) // the journal has all of it
	return s.endWatcher()
}

// endWatcher ends the watcher of a session that waits for nobody.
func (s *Session) endWatcher() error {
	if s.Watcher == nil || s.Watcher.PID == os.Getpid() {
		return nil
	}
	watcher, err := proc.Reopen(*s.Watcher)
	if errors.Is(err, proc.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := watcher.Signal(unix.SIGKILL); err != nil && !errors.Is(err, proc.ErrGone) {
		return err
	}
	return nil
}

// step writes ahead that a step begins, does it, and notes how long it took.
func (s *Session) step(name string, do func() error) error {
	s.Step = name
	if err := s.save(); err != nil {
		return err
	}
	if err := failpoint(context.Background(), s, string(s.Kind)+"."+name); err != nil {
		return err
	}
	return s.timed(name, do)
}

// timed does a step of the session, and notes how long it took.
func (s *Session) timed(name string, do func() error) error {
	if s.progress != nil {
		s.progress(s, name)
	}
	return s.span(0, name, do)
}

// Sessions lists all sessions of the run directory, the oldest first. What
// cannot be read for a session is left out: one that is just being made, or a
// damaged one, which must not keep the others from being seen.
func Sessions(runDir string) ([]*Session, error) {
	dirs, err := sessionDirs(filepath.Join(runDir, "sessions"))
	if err != nil {
		return nil, err
	}
	sessions := []*Session{} // not nil: null is no list in JSON
	for _, dir := range dirs {
		s := &Session{dir: dir}
		if err := s.read(); err == nil {
			sessions = append(sessions, s)
		}
	}
	slices.SortFunc(sessions, func(a, b *Session) int { return a.Created.Compare(b.Created) })
	return sessions, nil
}

func sessionDirs(sessions string) ([]string, error) {
	entries, err := os.ReadDir(sessions)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("sessions: %w", err)
	}
	var dirs []string
	for _, entry := range entries {
		if entry.IsDir() {
			dirs = append(dirs, filepath.Join(sessions, entry.Name()))
		}
	}
	return dirs, nil
}

// tidySessions drops the oldest closed sessions, and what is left of those that were
// killed before they had a journal: nobody makes one just now.
func tidySessions(runDir string) error {
	dirs, err := sessionDirs(filepath.Join(runDir, "sessions"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if _, err := os.Lstat(filepath.Join(dir, sessionFile)); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		_ = os.RemoveAll(dir) // see below
	}
	all, err := Sessions(runDir)
	if err != nil {
		return err
	}
	closed := slices.DeleteFunc(all, func(s *Session) bool { return s.Outcome == "" })
	for _, s := range closed[:max(0, len(closed)-keepSessions)] {
		// Somebody who looks for orphaned jobs may be taking its lock, and make the
		// file anew. Then it stays until the next session is begun: a record too many
		// is no reason to refuse a job.
		_ = os.RemoveAll(s.dir)
	}
	return nil
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}
