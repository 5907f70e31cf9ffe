// Package store keeps the checkpoints of one long job in a directory, D:
//
//	D/lock, D/owner.json       who owns D: one supervisor, on one host
//	D/checkpoints/NAME/        an image directory of its own, which a restore can take as it is
//	    checkpoint.json        what the checkpoint is, with the checksum of every file but those of GPU
//	                           state, which have their own; written last
//	    parent/                memory that is the same in an earlier checkpoint, as links to its files
//	    verified.json, pinned  marks, which are no part of the checkpoint
//	D/checkpoints/.partial-*   checkpoints that are being written, or removed
//	D/staged/                  the staging directories, or records of those elsewhere
//
// A checkpoint is complete or absent, and stands alone: any other one may be deleted. What two
// checkpoints have in common they may share by hard links.
//
// What a supervisor that was killed has left is not lost: the next one makes a checkpoint of a staged image
// that is complete (resume.go in package jobs), and removes the rest ([Store.RemoveLeftovers]).
//
// A [Store] that is open has the lock and is the owner. Each owner has a generation, and one
// that finds a later one in owner.json is fenced: it no longer changes anything.
//
// The package knows files and image directories, and of criu's images those of memory. It must
// not know sandboxes and schedules.
package store
