package migrate

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"cucriu/internal/jobs/store"
)

// A long job moves as checkpoints: no process of it is on two hosts, and none is held.
//
//	source (cucriu migrate --job)              destination (cucriu receive --job)
//	job        describe it                     may it come: nothing is touched yet
//	round 1    its checkpoints go ahead, while the job runs on; verified there
//	stop       a last checkpoint ends the job; its supervisor waits
//	round 2    the last checkpoint, as far as it is new, and the job's other files
//	promise                                    the newest is whole: ready
//	commit     "left" in its directory         "arrived"; a supervisor resumes it: running
//	                                           or it cannot, and never will: returned
//
// The records of both sides are in the job's directory: see [jobs.Move]. A destination that cannot
// resume the job gives it back. That is a move in the other direction, whose commit point is the
// record "left" there, and for which the source has everything already.

// jobArg is the option of cucriu receive.
const jobArg = "--job"

// What the source says of a long job. The rest is as of a tree of processes.
const (
	sayJob       = "job"         // the destination answers what it has of it
	sayJobRound  = "job-round"   // the destination answers where it listens
	sayJobTake   = "job-take"    // the destination answers that it has what was sent
	sayPromise   = "job-promise" // the destination answers that it is ready, or has failed
	saySettleJob = "job-settle"  // over a connection of its own
)

// What the destination says.
const (
	sayWelcome  = "job-welcome"
	sayTaken    = "job-taken"
	sayReturned = "job-returned"
)

// jobMessage describes a long job.
type jobMessage struct {
	Dir   string    `json:"dir"`
	Name  string    `json:"name"`
	Begun time.Time `json:"begun"`
	Owner string    `json:"owner"` // tells whether both hosts see one directory
	// Bytes is how much the checkpoints have that the destination gets.
	Bytes int64  `json:"bytes"`
	Start string `json:"start,omitempty"`
}

func (m jobMessage) validate() error {
	switch {
	case !filepath.IsAbs(m.Dir) || filepath.Clean(m.Dir) != m.Dir || len(m.Dir) > 4000 || m.Dir == "/" || strings.ContainsRune(m.Dir, 0):
		return fmt.Errorf("%.80q is not the directory of a job", m.Dir)
	case m.Begun.IsZero() || m.Name == "" || printable(m.Name, 255) != m.Name:
		return errors.New("the source has described no job")
	}
	return nil
}

// jobWelcome says which checkpoints a destination has of a job.
type jobWelcome struct {
	Have []store.Listed `json:"have"` // without files
}

// jobManifest comes as a file of each round, and says what the others are.
type jobManifest struct {
	Checkpoints []jobCheckpoint `json:"checkpoints"`
	Others      []jobFile       `json:"others"`
}

// jobCheckpoint is a checkpoint that comes. Sent has a file of the round for each file of it that
// has no SameAs, else "".
type jobCheckpoint struct {
	store.Listed
	Sent []string `json:"sent"`
}

type jobFile struct {
	Name string `json:"name"` // one of [jobs.TravelFiles]
	Sent string `json:"sent"`
}

const jobManifestName = "manifest"

type jobPromise struct {
	Newest string `json:"newest"` // the checkpoint from which the job is to go on
}

type jobSettle struct {
	Dir      string `json:"dir"`
	Decision string `json:"decision"` // sayCommit or sayAbort
}

type jobReturned struct {
	Why string `json:"why"`
}
