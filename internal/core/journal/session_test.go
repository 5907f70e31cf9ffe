package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"cucriu/cudackpt"
	"cucriu/internal/core/inspect"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/pages"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
	"cucriu/internal/kit/rundir"
)

// ident makes the identity of a process of this pid namespace.
func ident(t testing.TB, pid int, start uint64) proc.Ident {
	t.Helper()
	id, err := proc.IdentOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	id.PID, id.StartTime = pid, start
	return id
}

func testSession(t *testing.T, runDir string, pid int) *Session {
	t.Helper()
	s, err := Create(runDir, Record{Kind: KindDump, Criu: ident(t, pid, 1)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Unlock)
	return s
}

// closed closes a session.
func closed(s *Session, outcome Outcome) error {
	s.Outcome = outcome
	return s.Save()
}

func TestASessionIsLockedByOne(t *testing.T) {
	s := testSession(t, t.TempDir(), 7)
	if _, err := Load(s.Dir(), false); !errors.Is(err, ErrBusy) {
		t.Fatalf("a second user of a session: %v", err)
	}
	s.Unlock()
	again, err := Load(s.Dir(), false)
	if err != nil {
		t.Fatal(err)
	}
	again.Unlock()
}

// TestADamagedJournalIsNotReplaced: the registers of parked threads may lie beside it.
func TestADamagedJournalIsNotReplaced(t *testing.T) {
	runDir := t.TempDir()
	s := testSession(t, runDir, 7)
	parked := filepath.Join(s.Dir(), "parked-8.json")
	for file, text := range map[string]string{recordKind.Path(s.Dir()): "{", parked: "{}"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Create(runDir, Record{Kind: KindDump, Criu: s.Criu}, 0); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Fatalf("a session over a damaged one: %v", err)
	}
	if _, err := os.Stat(parked); err != nil {
		t.Fatal(err)
	}
}

func TestTheRunDirectoryMustBeOurs(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"writable by others": func(dir string) error { return os.Chmod(dir, 0o777) },
		"of another user":    func(dir string) error { return os.Chown(dir, 12345, -1) },
		"a symbolic link": func(dir string) error {
			if err := os.Rename(dir, dir+".real"); err != nil {
				return err
			}
			return os.Symlink(dir+".real", dir)
		},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		if _, err := rundir.MakeSessions(dir); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Fatalf("the run directory is made with mode %v, %v", info.Mode(), err)
		}
		if err := spoil(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := rundir.MakeSessions(dir); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestAClosedSessionIsListedAsItIs, although it is read only once as long as it does not change.
func TestAClosedSessionIsListedAsItIs(t *testing.T) {
	runDir := t.TempDir()
	s := testSession(t, runDir, 1)
	for _, outcome := range []Outcome{"", OutcomeRunning, OutcomeRunning, OutcomeKilled, ""} {
		if err := closed(s, outcome); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			all, err := List(runDir)
			if err != nil || len(all) != 1 || all[0].Outcome != outcome || all[0].Dir() != s.Dir() {
				t.Fatalf("%v, %v; want outcome %q", all, err, outcome)
			}
		}
	}
	if err := os.RemoveAll(s.Dir()); err != nil {
		t.Fatal(err)
	}
	if all, err := List(runDir); err != nil || len(all) != 0 {
		t.Fatalf("%v, %v; want none", all, err)
	}
}

func TestOldClosedSessionsAreDroppedAndOpenOnesKept(t *testing.T) {
	runDir := t.TempDir()
	open := testSession(t, runDir, 1)
	for i := range keepSessions + 9 {
		s := testSession(t, runDir, 2+i)
		if err := closed(s, OutcomeRunning); err != nil {
			t.Fatal(err)
		}
	}
	testSession(t, runDir, 1000) // removes the oldest closed sessions beyond keepSessions
	sessions, err := List(runDir)
	if err != nil {
		t.Fatal(err)
	}
	if len(sessions) != keepSessions+2 {
		t.Errorf("%d sessions are kept, want %d", len(sessions), keepSessions+2)
	}
	if sessions[0].dir != open.dir {
		t.Error("an open session was dropped")
	}
}

// TestADecisionIsKeptUntilItIsTold: a destination that is told late must not hear that the job
// goes on at its source.
func TestADecisionIsKeptUntilItIsTold(t *testing.T) {
	runDir := t.TempDir()
	var holds []*Session
	for i, hold := range []Hold{
		{ID: "untold", IfAbandoned: RunHere, Decision: EndHere},
		{ID: "told", IfAbandoned: RunHere, Decision: EndHere, PeerKnows: true},
	} {
		s := testSession(t, runDir, 1+i)
		hold.Holder = s.Criu
		s.Hold = &hold
		if err := closed(s, OutcomeMoved); err != nil {
			t.Fatal(err)
		}
		holds = append(holds, s)
	}
	for i := range 2 * keepSessions {
		s := testSession(t, runDir, 10+i)
		if i%2 == 0 {
			s.Hold = &Hold{ID: "later", Holder: s.Criu, IfAbandoned: RunHere, Decision: RunHere}
		}
		if err := closed(s, OutcomeRunning); err != nil {
			t.Fatal(err)
		}
	}
	testSession(t, runDir, 1000)
	if _, err := FindHold(runDir, "untold"); err != nil {
		t.Error(err)
	}
	if _, err := FindHold(runDir, "told"); err == nil {
		t.Errorf("%s is kept for ever", holds[1].Name())
	}
}

func TestAProcessIsInOneOpenSessionOnly(t *testing.T) {
	runDir := t.TempDir()
	member := Member{Process: inspect.Process{Ident: ident(t, 4711, 5)}}
	make := func(criu int) (*Session, error) {
		return Create(runDir, Record{Kind: KindDump, Criu: ident(t, criu, 1), Members: []Member{member}}, 0)
	}
	first, err := make(1)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Unlock()
	if _, err := make(2); err == nil || !strings.Contains(err.Error(), "has not finished") {
		t.Fatalf("a second session of the same process: %v", err)
	}
	if _, err := make(1); err == nil || !strings.Contains(err.Error(), "configured twice") {
		t.Fatalf("a second session of the same criu: %v", err)
	}
	if err := closed(first, OutcomeRunning); err != nil {
		t.Fatal(err)
	}
	second, err := make(1)
	if err != nil {
		t.Fatalf("the next request of the same criu: %v", err)
	}
	second.Unlock()
}

// TestADirectoryIsInOneOpenDumpOnly: a file system without locks leaves this to the journals.
func TestADirectoryIsInOneOpenDumpOnly(t *testing.T) {
	runDir, images := t.TempDir(), t.TempDir()
	alias := filepath.Join(t.TempDir(), "alias")
	if err := os.Symlink(images, alias); err != nil {
		t.Fatal(err)
	}
	make := func(criu int, dir string) (*Session, error) {
		return Create(runDir, Record{Kind: KindDump, Criu: ident(t, criu, 1), ImageDir: dir}, 0)
	}
	first, err := make(1, images)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Unlock()
	if _, err := make(2, alias); err == nil || !strings.Contains(err.Error(), "in use by a dump of criu process 1") {
		t.Fatalf("a second dump into the same directory: %v", err)
	}
	if err := closed(first, OutcomeRunning); err != nil {
		t.Fatal(err)
	}
	second, err := make(2, alias)
	if err != nil {
		t.Fatal(err)
	}
	second.Unlock()
}

func TestASessionRefusesWhatNobodyWrote(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":                    "",
		"a later version":            `{"version":3,"kind":"dump","criu":{"pid":7}}`,
		"no object":                  "[]",
		"another kind":               `{"kind":"nonsense","criu":{"pid":7}}`,
		"no criu":                    `{"kind":"dump"}`,
		"a process group":            `{"kind":"dump","criu":{"pid":7},"members":[{"pid":-7}]}`,
		"every process":              `{"kind":"restore","criu":{"pid":7},"manifest":{},"root":{"pid":-1}}`,
		"a restore without manifest": `{"kind":"restore","criu":{"pid":7}}`,
		"pages without files":        `{"kind":"dump","criu":{"pid":7},"members":[{"pid":7,"pages":{"watcher_fd":3}}]}`,
		"pages outside of the image": `{"kind":"dump","criu":{"pid":7},"members":[{"pid":7,"pages":{"watcher_fd":3,"listing":{"id":"../../../../../..","shard_bytes":[0]}}}]}`,
		"pages of the journal":       `{"kind":"dump","criu":{"pid":7},"members":[{"pid":7,"pages":{"watcher_fd":2,"listing":{"id":"0123456789abcdef","shard_bytes":[0]}}}]}`,
		"dropped before the copy":    `{"kind":"dump","criu":{"pid":7},"members":[{"pid":7,"pages":{"watcher_fd":3,"dropped":true,"listing":{"id":"0123456789abcdef","shard_bytes":[0]}}}]}`,
		"a suspend of nobody":        `{"kind":"suspend","criu":{"pid":7}}`,
	} {
		if _, _, err := recordKind.Parse("x", []byte(text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzParseSession(f *testing.F) {
	gpu := cudackpt.GPU{UUID: cudackpt.UUID{1}, Model: "NVIDIA H200", PCIBusID: "0000:41:00.0"}
	listing := &pages.Listing{ID: "0123456789abcdef", Bytes: 1, IndexBytes: 4128, ShardBytes: []int64{4097}}
	manifest := imagedir.Manifest{
		Version: 1, DriverVersion: "580.159.04", RootPID: 7,
		Processes: []imagedir.Process{{PID: 8, Name: "python3", GPUs: []cudackpt.GPU{gpu}, Pages: listing}},
	}
	id := ident(f, 7, 8)
	for _, kind := range []Kind{KindDump, KindRestore, KindSuspend} {
		data, err := json.Marshal(Record{Kind: kind, Criu: id, Root: &id, Watcher: &id, Members: []Member{{Process: inspect.Process{Ident: id}, Pages: &MemberPages{Listing: listing, WatcherFD: FirstWatcherFD, Dropped: true}}}, Manifest: &manifest})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, _, err := recordKind.Parse("x", data)
		if err != nil {
			return
		}
		s := Session{Record: r}
		_ = s.Conflict().Error()
		if s.Suspended() && len(s.Members) == 0 || s.Kind == KindRestore && s.Manifest == nil {
			t.Fatalf("accepted: %s", data)
		}
	})
}

// TestASessionThatWasKilledBeforeItsJournalIsRemoved: the next session that is made removes it.
func TestASessionThatWasKilledBeforeItsJournalIsRemoved(t *testing.T) {
	runDir := t.TempDir()
	first := testSession(t, runDir, 1)
	killed := filepath.Join(runDir, "sessions", "dump-7-7")
	if err := errors.Join(os.Mkdir(killed, 0o700), os.WriteFile(filepath.Join(killed, "lock"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	testSession(t, runDir, 2)
	if _, err := os.Stat(killed); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if _, err := os.Stat(first.dir); err != nil {
		t.Errorf("an open session was removed: %v", err)
	}
}

// TestASessionOfANewerVersionIsLeftToIt while it is open: nobody here knows its processes.
func TestASessionOfANewerVersionIsLeftToIt(t *testing.T) {
	runDir := t.TempDir()
	newer := testSession(t, runDir, 1)
	write := func(outcome Outcome) {
		t.Helper()
		newer.Version, newer.Outcome = gatedVersion+1, outcome
		if err := newer.Save(); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	_, err := Create(runDir, Record{Kind: KindDump, Criu: ident(t, 2, 1)}, 0)
	if !errors.Is(err, records.ErrNewer) || strings.Contains(err.Error(), "remove it") {
		t.Errorf("a dump beside it: %v", err)
	}
	write(OutcomeRunning)
	testSession(t, runDir, 2) // it is closed
}

// TestASessionThatCannotBeReadIsNotTakenForNone: somebody would believe that a job was never held.
func TestASessionThatCannotBeReadIsNotTakenForNone(t *testing.T) {
	runDir := t.TempDir()
	sessions, err := rundir.MakeSessions(runDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(sessions, "dump-1-1", recordKind.Name), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := FindHold(runDir, "a"); !errors.Is(err, syscall.EISDIR) || errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// Once the hook has frozen again what the engine had frozen, the freezers are others' to set: also while the image gets its
// name.
func TestTheFreezersAreTheEnginesOnceTheyAreFrozenAgain(t *testing.T) {
	before := []Step{StepNone, StepLock, StepStop, StepPark, StepChildren, StepTrace, StepCheckpoint, StepRelease, StepDevices, StepCopy, StepDrop, StepFreeze}
	after := []Step{StepManifest, StepDumping, StepPublish, StepTransferring, StepDumped}
	for i, step := range append(before, after...) {
		r := Record{Kind: KindDump, Step: step}
		if got, want := r.Refrozen(), i >= len(before); got != want {
			t.Errorf("at step %q they are frozen again: %t, want %t", step, got, want)
		}
	}
}

func TestASessionSharesTheProcessesThatItHolds(t *testing.T) {
	with, without, stranger := Member{}, ident(t, 2, 1), Member{}
	with.Ident, stranger.Ident = ident(t, 1, 1), ident(t, 3, 1)
	s := &Session{Record: Record{Members: []Member{with}, Others: []proc.Ident{without}}}
	other := Member{}
	other.Ident = without
	if !s.Shares([]Member{with}) || !s.Shares([]Member{stranger, other}) {
		t.Error("a process of the session is not shared")
	}
	if s.Shares([]Member{stranger}) || s.Shares(nil) {
		t.Error("a process that is not in the session is shared")
	}
}

// TestAListedSessionIsTheCallersOwn: what one caller changes in it, the next one does not get.
func TestAListedSessionIsTheCallersOwn(t *testing.T) {
	runDir := t.TempDir()
	member := Member{Process: inspect.Process{Ident: ident(t, 4711, 5), Name: "job"}}
	s, err := Create(runDir, Record{Kind: KindDump, Criu: ident(t, 1, 1), Members: []Member{member}, Root: &member.Ident}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Unlock()
	if err := closed(s, OutcomeRunning); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		all, err := List(runDir)
		if err != nil || len(all) != 1 || all[0].Members[0].Name != "job" || all[0].Root.PID != 4711 {
			t.Fatalf("%+v, %v", all, err)
		}
		all[0].Members[0].Name, all[0].Root.PID = "changed", 1
	}
}

// TestSandboxesAreFoundBelowAnyPath, also below one that looks like a pattern.
func TestSandboxesAreFoundBelowAnyPath(t *testing.T) {
	host := filepath.Join(t.TempDir(), "run [1]*")
	inner := filepath.Join(host, rundir.Jobs, "job", rundir.Inner)
	if err := os.MkdirAll(inner, 0o700); err != nil {
		t.Fatal(err)
	}
	if found := related(host); !slices.Equal(found, []string{inner}) {
		t.Errorf("%q, want %q", found, inner)
	}
}

// TestSessionsAreMadeOneAfterAnother: two dumps of a process may begin at the same moment.
func TestSessionsAreMadeOneAfterAnother(t *testing.T) {
	runDir := t.TempDir()
	testSession(t, runDir, 1)
	other := flock.New(lockPath(runDir)) // as another program has it that makes a session
	if err := other.Lock(); err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	info, err := os.Stat(lockPath(runDir))
	if err != nil {
		t.Fatal(err)
	}
	waits := regexp.MustCompile(fmt.Sprintf(`-> FLOCK .*:%d `, info.Sys().(*syscall.Stat_t).Ino))
	made := make(chan error, 1)
	record := Record{Kind: KindDump, Criu: ident(t, 2, 1)}
	go func() {
		s, err := Create(runDir, record, 0)
		if err == nil {
			s.Unlock()
		}
		made <- err
	}()
	for locks := []byte(nil); !waits.Match(locks); time.Sleep(time.Millisecond) {
		select {
		case err := <-made:
			t.Fatalf("made beside another one: %v", err)
		default:
		}
		if locks, err = os.ReadFile("/proc/locks"); err != nil {
			t.Fatal(err)
		}
	}
	other.Close()
	if err := <-made; err != nil {
		t.Error(err)
	}
}
