package migrate

import (
	"errors"
	"fmt"
	"regexp"

	"cucriu/hooks/timeline"
	"cucriu/internal/jobs"
	"cucriu/internal/kit/netlock"
	"cucriu/internal/migrate/commit"
	"cucriu/internal/migrate/prepare"
)

// protocolVersion is that of the protocol between the two programs. Both must have the same.
const protocolVersion = 6

// What the source says.
const (
	sayHello   = "hello"   // the destination answers with its own
	sayPrepare = "prepare" // a process tree: the destination answers with its judgement
	sayLater   = "later"   // as sayPrepare, once the job is paused and uses more than it did then
	sayJob     = "job"     // a long job: the destination answers what it has of it
	sayClock   = "clock"   // the destination answers with its own
	sayRound   = "round"   // the destination answers where it listens
	sayTake    = "take"    // a long job: the destination answers that it has verified what was sent or, of the last round, that it is ready
	sayBlock   = "block"   // a process tree: the destination answers that no packet of the connections reaches it
	sayRestore = "restore" // a process tree: the destination answers that it is ready, or has failed
	saySettle  = "settle"  // over a connection of its own; the destination answers as to commit and abort
	sayCommit  = string(commit.Commit)
	sayAbort   = string(commit.Abort)
)

// What the destination says.
const (
	sayJudged    = "judged"
	sayWelcome   = "welcome"
	sayListening = "listening"
	sayTaken     = "taken"
	sayBlocked   = "blocked"
	sayProgress  = "progress"
	sayFailed    = "failed"
	sayReady     = string(commit.Ready)
	sayRunning   = string(commit.Running)
	sayReturned  = "returned" // it cannot resume a long job, and never will
	sayEnded     = string(commit.Ended)
	sayUnknown   = string(commit.Unknown)
)

// hello begins a connection, in both directions.
type hello struct {
	Version     int    `json:"version"` // of the protocol
	Program     string `json:"program"` // what it is, for people
	ID          string `json:"id"`      // of the migration
	Host        string `json:"host"`
	Fingerprint string `json:"fingerprint"` // of the certificate for the data
}

// requireSameProtocol refuses a program of the other host that speaks another protocol.
func (h hello) requireSameProtocol(theirs hello) error {
	if theirs.Version != h.Version {
		return fmt.Errorf("%.60q on the other host speaks version %d of the protocol, and %q here version %d: install the same cucriu on both hosts",
			theirs.Program, theirs.Version, h.Program, h.Version)
	}
	return nil
}

type prepareMessage struct {
	Job  *prepare.Job `json:"job"`
	TCP  prepare.TCP  `json:"tcp"`
	Copy prepare.Copy `json:"copy"`
	// Ahead says that the job's memory will be sent ahead.
	Ahead bool `json:"ahead,omitempty"`
	// Force names findings that are overridden on both hosts.
	Force []string `json:"force,omitempty"`
	// HostMark is that of the source: see hostMark.
	HostMark string `json:"host_mark,omitempty"`
}

type laterMessage struct {
	Job *prepare.Job `json:"job"`
}

// round announces data: a whole image, what has changed since an earlier round, or checkpoints.
type round struct {
	Number int `json:"number"`
	// Probe says that what comes only shows how fast the way is. It is dropped, and such a round
	// has no number.
	Probe bool `json:"probe,omitempty"`
}

type listening struct {
	Addresses []string `json:"addresses"`
}

// blockMessage names the connections that are kept, before their address moves to the destination.
type blockMessage struct {
	Connections []netlock.Connection `json:"connections"`
}

// restoreMessage asks for the restore of the last round.
type restoreMessage struct {
	// Links names files of an earlier round that this image has as well.
	Links []link      `json:"links,omitempty"`
	TCP   prepare.TCP `json:"tcp"`
	// Sockets are those in the image, which may be more than a description can know: those with a
	// relative name.
	Sockets []prepare.UNIXSocket `json:"sockets,omitempty"`
}

type link struct {
	Round int    `json:"round"`
	Name  string `json:"name"`
	// Parent says that the file is to be where criu looks for memory that has not changed.
	Parent bool `json:"parent,omitempty"`
}

type progressMessage struct {
	Phase string `json:"phase"`
}

type failure struct {
	Error   string `json:"error"`
	Refused bool   `json:"refused"`
	Asked   string `json:"asked,omitempty"` // the kind of the message that asked for what has failed
}

type settleMessage struct {
	Decision string `json:"decision"`      // sayCommit or sayAbort
	Dir      string `json:"dir,omitempty"` // of a long job
}

type running struct {
	PID int `json:"pid"`
	// Steps are those of the restore, with times since the destination's boot.
	Steps timeline.Phases `json:"steps,omitempty"`
}

// jobMessage describes a long job.
type jobMessage struct {
	jobs.Announced
	Start string `json:"start,omitempty"`
}

// jobWelcome says which checkpoints a destination has of a job.
type jobWelcome struct {
	Have []jobs.Listed `json:"have"` // without files
}

// jobManifest comes as a file of each round, and says what the others are.
type jobManifest struct {
	Checkpoints []jobCheckpoint `json:"checkpoints"`
	Others      []jobFile       `json:"others"`
	// Newest is in the last round: the checkpoint from which the job is to resume.
	Newest string `json:"newest,omitempty"`
}

const jobManifestName = "manifest"

// jobCheckpoint is a checkpoint that comes. Sent has a file of the round for each file of it that
// has no SameAs, else "".
type jobCheckpoint struct {
	jobs.Listed
	Sent []string `json:"sent"`
}

type jobFile struct {
	Name string `json:"name"` // one of [jobs.Luggage].Files
	Sent string `json:"sent"`
}

type jobReturned struct {
	Why string `json:"why"`
}

var validID = regexp.MustCompile(`^[0-9a-f]{16}$`)

// checkID refuses an invalid name of a migration: it becomes part of the names of files.
func checkID(id string) error {
	if !validID.MatchString(id) {
		return fmt.Errorf("%.40q is not the ID of a migration, which has 16 hexadecimal digits", id)
	}
	return nil
}

var errNoJob = errors.New("the source has described no job")
