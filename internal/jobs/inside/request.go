// Package inside is what the supervisor of a long job has done in the job's sandbox, by a program that
// it starts there: criu, its hook and the watcher see the job's pids and clocks as the job does. It knows
// one request, and nothing of stores and schedules.
package inside

import (
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/checkpoint"
	"cucriu/hooks/image"
	"cucriu/internal/jobs/job"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/kit/files"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
)

// Command is the hidden command that serves a request: see [Serve].
const Command = "job-inside"

// Op is what is to be done in a sandbox.
type Op string

// The operations.
const (
	Dump    Op = "dump"
	Restore Op = "restore"
	Recover Op = "recover"
	Pause   Op = "pause"
	Unpause Op = "unpause"
	Check   Op = "check"
	Probe   Op = "probe"
	Run     Op = "run" // a program beside the job
)

// What says what is done, to people.
func (o Op) What() string {
	return map[Op]string{
		Dump: "the dump", Restore: "the restore", Recover: "recovery of what an earlier supervisor had begun",
		Pause: "the pause", Unpause: "the resume", Check: "the inspection of the job", Probe: "the trial restore",
		Run: "the program of --on-started",
	}[o]
}

// Request is what is to be done in a sandbox.
type Request struct {
	Op     Op     `json:"op"`
	Images string `json:"images,omitempty"`
	Root   int    `json:"root,omitempty"`
	// Own says that the pid namespace is the job's own, and not that of a job that was adopted.
	Own bool `json:"own,omitempty"`
	// PIDs are those of the job's processes outside the sandbox.
	PIDs PIDs `json:"pids,omitempty"`
	// Sandbox is the folder of the sandbox's records.
	Sandbox string `json:"sandbox,omitempty"`
	// Mounts are where the job has mounted or unmounted something.
	Mounts []string `json:"mounts,omitempty"`
	// NoTerminal is for a job that was adopted and has no terminal open.
	NoTerminal bool `json:"no_terminal,omitempty"`
	// Output is the file for the job's output. A job that wrote into a pipe to somebody else when it was adopted, or whose
	// file was renamed or removed, writes there after a restore.
	Output string `json:"output,omitempty"`
	// Undo is where a restore notes how to undo what it does to the job's files.
	Undo files.UndoFile `json:"undo"`
	// Copies says that a restore changes files that are fresh copies.
	Copies bool `json:"copies,omitempty"`
	// Dumped says that the image is that of a dump, which holds no files of the job.
	Dumped bool `json:"dumped,omitempty"`
	// Program runs once all processes are restored and before any of them does.
	Program *job.Program `json:"program,omitempty"`
	// End says that a dump ends the job once its image is complete.
	End bool `json:"end,omitempty"`
	// WaitAll says that a dump of what the command has left when it ended is of use.
	WaitAll bool `json:"wait_all,omitempty"`
	// Base is the checkpoint with which a dump is compared: see [checkpoint.Options].
	Base            string `json:"base,omitempty"`
	VerifyUnchanged bool   `json:"verify_unchanged,omitempty"`
	// Files says which files of the job belong to a dump.
	Files files.Options `json:"files"`
	// Tried are the kinds of what was tried before: see [image.Trial].
	Tried string `json:"tried,omitempty"`
	// Staged is what is known of a dump before it is made.
	Staged Staged `json:"staged"`
	// Told are warnings that are not to be repeated.
	Told []string `json:"told,omitempty"`
	// Expected is how long it probably takes; 0 if that is not known.
	Expected time.Duration `json:"-"`
}

// Answer says how it went.
type Answer struct {
	// Told are the warnings that were told.
	Told   []string          `json:"told,omitempty"`
	Result checkpoint.Result `json:"result"`
	Clocks sandbox.Clocks    `json:"clocks"` // of the job when it was dumped
	// Changes is what was done to the job's files.
	Changes []files.Change `json:"changes,omitempty"`
	Notes   []string       `json:"notes,omitempty"`
	Error   string         `json:"error,omitempty"`
	Trial   *image.Trial   `json:"trial,omitempty"`
	// NotBack says that the job has yet to be restored, for which its image may be needed.
	NotBack bool `json:"not_back,omitempty"`
	// Refused says that the job was not touched.
	Refused bool `json:"refused,omitempty"`
	// NotReady says that the program which was to run before the job has failed.
	NotReady bool `json:"not_ready,omitempty"`
	// NoRoom says that the job stood still when its image was found not to fit where it was to go.
	NoRoom bool `json:"no_room,omitempty"`
}

// stagedKind is in an image: what only its maker knows.
var stagedKind = records.Kind[Staged]{Name: "cucriu-job.json", Version: 1}

// Staged describes an image that is not yet a checkpoint.
type Staged struct {
	// BootID is that of the host. What was not synced before a reboot may be anything.
	BootID string    `json:"boot_id"`
	Begun  time.Time `json:"begun"`
	// JobBegun is when the job began; zero in an image of an earlier version.
	JobBegun time.Time `json:"job_begun,omitzero"`
	// Number is that of the checkpoint which was to be made of it, or less.
	Number uint64         `json:"number"`
	Reason string         `json:"reason"`
	Root   int            `json:"root"` // pid of the job's root process, where the job runs
	Clocks sandbox.Clocks `json:"clocks"`
	// Dir is the directory of the job as the job sees it; empty in an image of an earlier version.
	Dir string `json:"dir,omitempty"`
	// Private are the directories of which the job has copies of its own: elsewhere its files are not.
	Private []string `json:"private,omitempty"`
	// OwnNetwork says that the job had another network than the host.
	OwnNetwork bool `json:"own_network,omitempty"`
	// Terminal is criu's name for the job's terminal; empty if it had none.
	Terminal string `json:"terminal,omitempty"`
	// Output is criu's name for the file of the job's output, if that was renamed or removed.
	Output string `json:"output,omitempty"`
	// Outside are the processes of a job that ran in no sandbox, which does not end them when the root process ends.
	Outside []proc.Ident `json:"outside,omitempty"`
	// OutsideGroups are the control groups of their root process; empty if others were in them, too.
	OutsideGroups string `json:"outside_groups,omitempty"`
}

// Survivors returns the processes of a job that ran in no sandbox which live, although its root process may not: those
// that the image has, and those that began after it and whose parents may have ended. These stay in their session and
// process group, which no other process can get while its leader was the job's, and in their control groups.
func (of Staged) Survivors() (pids []int, err error) {
	if boot, err := proc.BootID(); err != nil || of.BootID != boot || len(of.Outside) == 0 {
		return nil, err
	}
	all, err := proc.All()
	if err != nil {
		return nil, err
	}
	own, err := proc.ControlGroups(os.Getpid())
	if err != nil {
		return nil, err
	}
	var roots []int
	leaders := make(map[int]bool) // by pid
	for _, id := range of.Outside {
		now, err := proc.IdentOf(id.PID)
		leaders[id.PID] = err != nil || now == id // another process with its pid leads what has its number
		if id.Alive() {
			roots = append(roots, id.PID)
		}
	}
	for _, pid := range all {
		session, _ := unix.Getsid(pid) // it may have ended
		group, _ := unix.Getpgid(pid)
		in, _ := proc.ControlGroups(pid)
		if !leaders[session] && !leaders[group] && (of.OutsideGroups == "" || in != of.OutsideGroups || in == own) {
			continue
		}
		id, err := proc.IdentOf(pid)
		if err != nil { // it has ended
			continue
		}
		isLater, err := id.BeganAfter(of.Clocks.Boottime)
		if err != nil {
			return nil, err
		}
		if isLater && id.Alive() {
			roots = append(roots, pid)
		}
	}
	for _, root := range roots {
		tree, err := proc.Tree(root)
		if err != nil && !errors.Is(err, proc.ErrGone) {
			return nil, err
		}
		pids = append(pids, tree...)
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// ReadStaged reads what an image says of itself.
func ReadStaged(images string) (Staged, error) { return stagedKind.Read(images) }
