package journal

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"cucriu/cudackpt"
	"cucriu/internal/core/inspect"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/rundir"
)

func TestWhatIsPromisedOfTheGPUs(t *testing.T) {
	const mib, margin = 1 << 20, 16 << 20
	gpu := cudackpt.UUID{1}
	holds := map[cudackpt.UUID]uint64{gpu: 100 * mib}
	ident, err := proc.IdentOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	ended := ident
	ended.StartTime--
	members := func(ident proc.Ident) []Member {
		return []Member{{Process: inspect.Process{Ident: ident, Name: "job", MemoryBytes: holds}}}
	}
	dump := Record{
		Kind: KindDump, Criu: ident, Step: StepDumping,
		Members: members(ident),
	}
	restore := Record{
		Kind: KindRestore, Criu: ident, Step: StepPreRestore, Created: time.Unix(100, 0),
		HostMemory: inspect.HostNeed{Bytes: 100, Groups: []uint64{7}},
		Manifest: &imagedir.Manifest{
			Version: 1, DriverVersion: "580.159.04", RootPID: 1,
			Processes: []imagedir.Process{{PID: 1, Name: "job", GPUs: []cudackpt.GPU{{UUID: gpu}}, MemoryBytes: holds}},
		},
	}
	but := func(r Record, change func(*Record)) Record {
		change(&r)
		return r
	}
	later := func(r *Record) { r.Created = time.Unix(300, 0) }
	held := but(dump, func(r *Record) { r.Hold = &Hold{ID: "a", Holder: ident, IfAbandoned: RunHere} })
	asked := &Session{dir: "asked", Record: Record{Kind: KindRestore, Created: time.Unix(200, 0)}}
	for name, test := range map[string]struct {
		record  Record
		ended   bool // the watcher
		of      *Session
		hold    *Hold
		inner   bool
		nothing bool
		memory  uint64 // of the host
	}{
		"a dump":                        {record: dump},
		"a dump in a sandbox":           {record: dump, inner: true},
		"a dump that began later":       {record: but(dump, later), of: asked},
		"a dump that has freed nothing": {record: but(dump, func(r *Record) { r.Step = StepLock }), nothing: true},
		"a dump whose job has ended": {
			record: but(dump, func(r *Record) { r.Members = members(ended) }), nothing: true,
		},
		"a dump that is over": {record: but(dump, func(r *Record) { r.Outcome = OutcomeRunning }), nothing: true},
		"what is back":        {record: but(dump, func(r *Record) { r.Restored = true }), nothing: true},
		"what nobody watches": {record: dump, ended: true, nothing: true},
		"what is suspended": {
			record: but(dump, func(r *Record) { r.Kind, r.Step = KindSuspend, StepSuspended }), nothing: true,
		},
		"a restore":                    {record: restore, memory: 100},
		"a restore that began earlier": {record: restore, of: asked, memory: 100},
		"what has a part of its memory": {
			record: but(restore, func(r *Record) { r.Resident = 60 }), memory: 40,
		},
		"what has all of its memory": {record: but(restore, func(r *Record) { r.Resident = 101 })},
		"a restore that has failed": {
			record: but(restore, func(r *Record) { r.Outcome = OutcomeKilled }), nothing: true,
		},
		"a restore that began later":   {record: but(restore, later), of: asked, nothing: true},
		"what another migration holds": {record: held, hold: &Hold{ID: "b"}},
		"what the same one holds":      {record: held, hold: &Hold{ID: "a"}, nothing: true},
	} {
		t.Run(name, func(t *testing.T) {
			runDir := t.TempDir()
			in := runDir
			if test.inner {
				in = filepath.Join(runDir, rundir.Jobs, "job", rundir.Inner)
			}
			dir := filepath.Join(in, rundir.Sessions, "session")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := recordKind.Write(dir, test.record); err != nil {
				t.Fatal(err)
			}
			log, err := os.OpenFile(filepath.Join(dir, WatcherLog), os.O_CREATE|os.O_WRONLY, 0o600)
			if err == nil {
				err = LockLog(log)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			if test.ended {
				log.Close()
			}
			want := inspect.MemoryNeed{gpu: 100*mib + margin}
			if test.nothing {
				want = inspect.MemoryNeed{}
			}
			if got := Promised(runDir, test.of, test.hold); !reflect.DeepEqual(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
			var memory []inspect.HostNeed
			if test.memory > 0 {
				memory = append(memory, inspect.HostNeed{Bytes: test.memory, Groups: []uint64{7}})
			}
			if got := PromisedMemory(runDir, test.of, test.hold); !reflect.DeepEqual(got, memory) {
				t.Errorf("%v of the host's memory, want %v", got, memory)
			}
		})
	}
}
