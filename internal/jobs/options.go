package jobs

import (
	"io"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/ready"
	"cucriu/internal/jobs/relay"
	"cucriu/internal/kit/pages"
)

// Options say how a long job is run.
type Options struct {
	Dir     string   // holds all that is known of the job; root's alone
	Name    string   // the name of the job; empty is the last part of Dir
	Command []string // what to start; empty is what was started before
	Env     []string // nil is ours
	// Adopt is the root process of a running job to be adopted; 0 is none.
	Adopt int

	// Image is what a new job is started from in place of a command: the directory of an image or of another long job, or
	// job:NAME. It may be given again for a job that was started from it.
	Image string
	// CopyImage says whether a job that is started from Image has a copy of it. It is nil if the user has not said that.
	CopyImage *bool
	// Private are directories of which a job from an image gets copies, beside those in which the image was writing.
	Private []string

	// Net is the network of a job from an image: [NetOwn], [NetHost], or a prepared network namespace, by its name or
	// path.
	Net string
	// Publish are ports of the host that lead to those of a job from an image that has not the host's network.
	Publish []relay.Publish

	// User is whose the job is, by name or number; empty is root's.
	User string

	Every time.Duration // between checkpoints; 0 is none on a schedule
	// Overhead is for which part of its time the job may be paused for checkpoints, once
	// their cost is known; 0 leaves it at Every.
	Overhead float64
	// CheckpointWhen is when the first checkpoint is made; the zero Condition is on schedule.
	CheckpointWhen ready.Condition
	// MaxPause leaves out a checkpoint for which the job would probably be paused for longer;
	// 0 is no limit.
	MaxPause time.Duration
	// Stage is where images are written while the job is paused: a directory, [StageMemory],
	// [StageDisk] (the job's directory), or empty for memory if it fits, else disk.
	Stage string
	Keep  int // how many checkpoints to keep, at least
	// MaxBytes limits how much the checkpoints take together; 0 is no limit.
	MaxBytes int64
	// Compress says how GPU memory is compressed on its way into Dir; the zero Codec is none.
	Compress pages.Codec
	// VerifyUnchanged copies GPU memory that counts as unchanged all the same, and fails if it has changed.
	VerifyUnchanged bool
	// OnStart is a program, with its arguments, that runs before the job, and OnStarted one that runs once the job does,
	// each time it is started or resumed. If the first fails, the job does not run.
	OnStart, OnStarted []string
	// WaitAll ends the job with its last process, and not with its command.
	WaitAll bool
	// Takeover takes the job away from a host that has not given it back.
	Takeover bool

	// Preempt are the signals that say that the job must leave this host soon.
	Preempt []unix.Signal
	// Grace is how long it may take from such a signal until the job has left, with its
	// checkpoint; 0 is as long as it takes.
	Grace time.Duration
	// RequeueStatus is the exit status after a preemption.
	RequeueStatus int
	// MovedStatus is the exit status of the host from which the job has moved to another.
	MovedStatus int
	// Restart is when the job is started again after it has ended by itself.
	Restart Restart
	// Flags are the options as the user gave them, for the host to which the job may move.
	Flags []string

	// Metrics is a file for Prometheus, which is written after each event; empty is none.
	Metrics string

	// Settings are asked for by name, and NoSettings are left out. See [job.Settings].
	Settings, NoSettings []string
	// Guest brings a library into a job that sees GPUs: see package guest.
	Guest bool

	// FilesLimit is how much content of the job's open files may belong to a checkpoint, in
	// bytes; 0 is [files.DefaultLimit].
	FilesLimit int64
	// PrivateTmp gives the job a /tmp of its own, which belongs to its checkpoints.
	PrivateTmp bool
	// NotSaved are files of the job that are left as they are.
	NotSaved []string

	// Probe tries whether checkpoints can be restored, beside the job.
	Probe bool

	Criu string // the criu to run; empty is the one that is found

	Quiet    bool      // say nothing but warnings and errors
	Verbose  bool      // say why each setting of the environment is there
	Output   io.Writer // gets what the job writes
	Messages io.Writer // gets what the supervisor says
}

// Where images are written while the job is paused.
const (
	StageMemory = "memory"
	StageDisk   = "disk"
)
