package sandbox

import (
	"errors"
	"io/fs"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/job"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
)

// What is in the folder of a sandbox.
var (
	specKind = records.Kind[Spec]{Name: "spec.json", Version: 1} // what init is to do
	// recordKind says who init is. The maker writes it, also on a full disk: a job that is not on record as running
	// is ended by the next supervisor.
	recordKind = records.Kind[Record]{Name: "place.json", Version: 1, InPlace: true}
	exitKind   = records.Kind[Exit]{Name: "exit.json", Version: 1} // how the job's root process has ended; written by init
)

const aliveName = "alive" // locked by init as long as it lives

// Spec is what a sandbox is made for.
type Spec struct {
	// Clocks is what the clocks inside show when the sandbox begins; nil if they show what the
	// host's do.
	Clocks *Clocks `json:"clocks,omitempty"`
	// FirstPID is about where the pids inside begin.
	FirstPID int `json:"first_pid"`
	// Hide are files that do not exist in the sandbox: device nodes of GPUs that are not the job's.
	Hide []string `json:"hide,omitempty"`
	// Params is the file by which the kernel's driver tells its libraries whether to make device
	// nodes that are missing. In the sandbox it says no if anything is hidden.
	Params string `json:"params,omitempty"`
	// Memory is a directory on which a file system in memory is mounted; empty for none.
	Memory string `json:"memory,omitempty"`
	// PrivateTmp says that the sandbox has a /tmp of its own, in memory.
	PrivateTmp bool `json:"private_tmp,omitempty"`
	// OwnNetwork says that the sandbox has a network of its own: loopback, and nothing else.
	OwnNetwork bool `json:"own_network,omitempty"`
	// Network is the path of a network namespace that the sandbox has; empty for a network of its own, or the host's.
	Network string `json:"network,omitempty"`
	// Addresses are what its loopback interface has beside its own.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// OwnTerminals says that the sandbox has pseudo terminals of its own, whose numbers nobody else can have.
	OwnTerminals bool `json:"own_terminals,omitempty"`
	// Shown are the directories that the job sees in place of others, in the order in which they are mounted.
	Shown []Shown `json:"shown,omitempty"`
	// HostDir is the job's folder in the run directory.
	HostDir string `json:"host_dir,omitempty"`
	// Fence ends the sandbox once the job belongs to another one.
	Fence Fence `json:"fence"`
	// Terminal is for a job to which an earlier version gave a terminal.
	Terminal *TerminalSpec `json:"terminal,omitempty"`
	// Start is the job to be started; nil if one will be restored.
	Start *Start `json:"start,omitempty"`
	// Root is the pid inside of the root process of a job that will be restored.
	Root int `json:"root,omitempty"`
	// Adopted is the root process of a job that is adopted.
	Adopted *proc.Ident `json:"adopted,omitempty"`
}

// Shown is a directory that a sandbox shows at a path where the host has another one.
type Shown struct {
	Dir      string `json:"dir"`
	At       string `json:"at"` // an existing directory; no symbolic link is on the way to either
	ReadOnly bool   `json:"read_only,omitempty"`
	Optional bool   `json:"optional,omitempty"` // the job runs without it where it cannot be shown
}

// Start is a job to be started in a sandbox.
type Start struct {
	Args   []string            `json:"args"`
	Env    []string            `json:"env"`
	Dir    string              `json:"dir"`
	Output string              `json:"output"` // the file to which its output is appended
	User   *syscall.Credential `json:"user,omitempty"`
	First  string              `json:"first,omitempty"` // see [job.Command]
	// Before runs before the job, which is not started if it fails; nil for none.
	Before *job.Program `json:"before,omitempty"`
	// FileSize is how large files it may write; nil for what this program may.
	FileSize *unix.Rlimit `json:"file_size,omitempty"`
}

// TerminalSpec says what terminal a job is to have.
type TerminalSpec struct {
	Output string `json:"output"` // the file to which is appended what the job writes there
	// User is whose it is; nil if it is ours.
	User *syscall.Credential `json:"user,omitempty"`
}

// Clocks are readings of the two clocks that a time namespace shifts.
type Clocks struct {
	Monotonic time.Duration `json:"monotonic_ns"`
	Boottime  time.Duration `json:"boottime_ns"`
}

// ReadClocks reads the clocks of the caller's time namespace.
func ReadClocks() (Clocks, error) {
	monotonic, boottime, err := proc.Clocks()
	return Clocks{monotonic, boottime}, err
}

// Exit says how the root process of a job has ended.
type Exit struct {
	Status unix.WaitStatus `json:"wait_status"`
	At     time.Time       `json:"at"`
	// Unknown says that it is not known how: only the parent of an adopted job was told.
	Unknown bool `json:"unknown,omitempty"`
}

// Code is the exit status that a shell would show: 128+n if signal n has ended the process. It is
// [job.StatusFailed] if that is not known.
func (e Exit) Code() int {
	if e.Unknown {
		return job.StatusFailed
	}
	if e.Status.Signaled() {
		return 128 + int(e.Status.Signal())
	}
	return e.Status.ExitStatus()
}

// readExit returns nil if the root process has not ended.
func readExit(dir string) (*Exit, error) {
	exit, err := exitKind.Read(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &exit, nil
}

// Record is what is known of a sandbox by whoever attaches to it.
type Record struct {
	BootID string     `json:"boot_id"`
	First  proc.Ident `json:"init"`    // see [Sandbox.Init]
	Root   int        `json:"root"`    // pid of the job's root process inside
	RunDir string     `json:"run_dir"` // of the hook inside
	// Running says that the job has run in the sandbox: it was started there, or its restore is
	// over. What has ended before was no job.
	Running bool `json:"running"`
	// Leaving says that the job was told to leave, or that a dump is to end it: how it ends then does
	// not say whether it has finished.
	Leaving bool `json:"leaving,omitempty"`
	// OwnNetwork says that the sandbox has another network than the host.
	OwnNetwork bool `json:"own_network,omitempty"`
	// Adopted is the root process of a job that was not started in a sandbox: see [Adopt].
	Adopted *proc.Ident `json:"adopted,omitempty"`
}

// Exit tells how the job's root process has ended; nil if it has not.
func (p *Sandbox) Exit() (*Exit, error) { return readExit(p.Dir) }

// LastExit tells how the root process in a sandbox that may be gone has ended; nil if that is not
// known, or if it was to leave.
func LastExit(dir string) (*Exit, error) {
	if r, err := recordKind.ReadOr(dir, Record{}); err != nil || r.Leaving {
		return nil, err
	}
	return readExit(dir)
}

// SetRunning records that the job runs.
func (p *Sandbox) SetRunning() error {
	return p.change(func(r *Record) { r.Running = true })
}

// SetLeaving records whether the job is to leave: see [Record].
func (p *Sandbox) SetLeaving(is bool) error {
	return p.change(func(r *Record) { r.Leaving = is })
}

// change changes the record. If it cannot be saved it stays as it was, so that the next call tries again.
func (p *Sandbox) change(how func(*Record)) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	before := p.Record
	if how(&p.Record); p.Record == before {
		return nil
	}
	err := p.save()
	if err != nil {
		p.Record = before
	}
	return err
}

func (p *Sandbox) save() error { return recordKind.Write(p.Dir, p.Record) }
