package migrate

import (
	"fmt"
	"regexp"

	"cucriu/internal/journal"
	"cucriu/internal/migrate/commit"
	"cucriu/internal/migrate/prepare"
	"cucriu/internal/timeline"
)

// protocolVersion is that of the protocol between the two programs. Both must have the same.
const protocolVersion = 4

// What the source says.
const (
	sayHello   = "hello"   // the destination answers with its own
	sayPrepare = "prepare" // the destination answers with its judgement
	sayLater   = "later"   // as sayPrepare, once the job stands still and uses more than it did then
	sayClock   = "clock"   // the destination answers with its own
	sayRound   = "round"   // the destination answers where it listens
	sayRestore = "restore" // the destination answers that it is ready, or has failed
	saySettle  = "settle"  // over a connection of its own; the destination answers as to commit and abort
	sayCommit  = string(commit.Commit)
	sayAbort   = string(commit.Abort)
)

// What the destination says.
const (
	sayJudged    = "judged"
	sayListening = "listening"
	sayProgress  = "progress"
	sayFailed    = "failed"
	sayReady     = string(commit.Ready)
	sayRunning   = string(commit.Running)
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

// round announces data: a whole image, or what has changed since an earlier round.
type round struct {
	Number int `json:"number"`
	// Probe says that what comes only shows how fast the way is. It is dropped, and such a round
	// has no number.
	Probe bool `json:"probe,omitempty"`
}

type listening struct {
	Addresses []string `json:"addresses"`
}

// restoreMessage asks for the restore of the last round.
type restoreMessage struct {
	// Links names files of an earlier round that this image has as well.
	Links []link      `json:"links,omitempty"`
	TCP   prepare.TCP `json:"tcp"`
	// Sockets are those of which the source keeps second names. A destination that sees these gives
	// the paths back if its copy does not go on.
	Sockets []journal.Socket `json:"sockets,omitempty"`
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
	Decision string `json:"decision"` // sayCommit or sayAbort
}

type running struct {
	PID int `json:"pid"`
	// Steps are those of the restore, with times since the destination's boot.
	Steps timeline.Phases `json:"steps,omitempty"`
}

var validID = regexp.MustCompile(`^[0-9a-f]{16}$`)

// checkID refuses what is no name of a migration: it becomes part of the names of files.
func checkID(id string) error {
	if !validID.MatchString(id) {
		return fmt.Errorf("%.40q is not the name of a migration, which has 16 hexadecimal digits", id)
	}
	return nil
}
