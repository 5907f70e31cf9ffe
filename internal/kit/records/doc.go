// Package records keeps records: files with one value as JSON that are read after a crash, or by another program,
// maybe of another version. It knows nothing of what is in them.
//
// A record is replaced as a whole, so who reads one needs no lock. Its first fields are a checksum of the rest, and
// the version of what is in it:
//
//	{"crc32c": 1234, "version": 1, ...}
//
// Earlier versions wrote neither, and did not look for them: records with and without them are read by old and new
// programs. An unknown field is ignored, so a version is counted up only if who does not know of the change must not
// read it. A [Kind] with a Key has its value apart from the two, and one that is Strict has no checksum of its own. A
// value that is no object has neither, nor has one of which a part is of use. Who edits a record by hand takes the
// checksum out.
//
// Who changes a record that others change as well, has the lock of what it is about: "lock" in the directory of a
// session and of a store, move.lock in that of a long job, ID.lock of a migration.
//
// What is no such record stays out: lines that are appended (package jsonlines: the events of a job, what is made for
// a migration), and what programs say to each other; a fence, which is one line of text; timelines, which other
// programs read; the states and listings of GPU memory, which are binary (package pages); and CRIU's images.
package records
