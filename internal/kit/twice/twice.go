// Package twice has the rule that a job never runs twice.
//
// An image is what a dump or a checkpoint has made. It may be started any number of times, on any number of hosts: no
// rule is about an image. A job is what runs, with pids, addresses, files, a directory and a lease of its own. A
// start lets a job run from an image: the job that the image was made of, or another one.
//
// Before a start, that a job runs, or may run, is seen in five places. Each sees what the others do not:
//
//	the lock of an image    package job      another start of the job that it was made of is at work (cucriu restore asks)
//	where an image is       [KeptIn]         in the directory of a long job, which its supervisor alone starts
//	the owner of a store    package store    a supervisor of this host or of another has the job
//	the record of a move    package jobs     the job belongs to another host, or may
//	the pids in use         core/inspect     a process has a number that the image needs
//
// Each asks [May] with what it has seen, and finds its own words for a refusal; package jobs also reads in the
// record of a move where it stands. The supervisor that has a job decides in its resume and its lease about what an
// earlier one has left of it: a sandbox, here or elsewhere, or processes that it had adopted. What a place sees is
// a [Fact] about one job, and forbids no start of another; only numbers are had once in a pid namespace, whoever
// has them. Of the image of a plain dump, no more is seen than a restore at work and pids in use: that its job was
// restored before, into another pid namespace, is not. Whoever makes such namespaces, such as a container engine,
// restores it once.
//
// What else two jobs from an image cannot both have is decided where it is known: addresses and ports, once in a
// network, by AddressFindings of core/inspect; files, which are shared unless the job gets copies, by privateDirs of
// package jobs.
package twice

import "fmt"

// Job tells a job from others.
type Job string

// Dumped is the job that the image of a dump was made of. The image is named by its digest or, without one, by its
// directory.
func Dumped(image string) Job { return Job("of image " + image) }

// Long is the long job of a directory.
func Long(dir string) Job { return Job("in " + dir) }

// Start is a start of an image.
type Start struct {
	// As is the job that is to run. If it is empty, that is the job that the image was made of, whichever that is:
	// all facts are about it.
	As Job
	// Supervised says that who starts the job has its lease.
	Supervised bool
	// Takeover says that a person has made sure that the job no longer runs on the host that has it.
	Takeover bool
	// OwnPIDs says that the job runs in a pid namespace of its own.
	OwnPIDs bool
}

// Seen is what was seen of a job.
type Seen string

// What there is to see.
const (
	Starting  Seen = "another start of it is at work"
	Kept      Seen = "the image is in its directory, and its supervisor starts it"
	Busy      Seen = "another process of this host has it"
	Elsewhere Seen = "another host has it, and has not released it"
	Unknown   Seen = "its owner is unknown"
	Left      Seen = "it has moved to another host"
	Undecided Seen = "another host decides where it runs"
	PIDsTaken Seen = "its pids are in use"
)

// Fact is what was seen, and of which job.
type Fact struct {
	Seen Seen
	Of   Job
}

// Error says why a job could run twice.
type Error struct{ Fact }

func (e *Error) Error() string {
	return fmt.Sprintf("the job %s could run twice: %s", e.Of, e.Seen)
}

// May returns a [Error] with the first fact for which a start must not be.
func May(s Start, facts ...Fact) error {
	for _, f := range facts {
		may := s.As != "" && s.As != f.Of
		switch f.Seen {
		case Kept:
			may = may || s.Supervised
		case Elsewhere, Unknown:
			may = may || s.Takeover
		case PIDsTaken:
			may = s.OwnPIDs
		}
		if !may {
			return &Error{f}
		}
	}
	return nil
}
