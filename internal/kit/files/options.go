package files

import (
	"cmp"
	"time"
)

// The limits for the content that is saved, in bytes.
const (
	DefaultLimit     = 1 << 30
	DefaultTreeLimit = 16 << 30
)

// Options says what is saved. The paths are absolute.
type Options struct {
	// Limit is for the content of all files together that are open or mapped for writing,
	// in bytes. Holes do not count. 0 means [DefaultLimit].
	Limit int64
	// TreeLimit is the same for Shm and PrivateTmp together. 0 means [DefaultTreeLimit].
	TreeLimit int64
	// Except are files that are left alone, such as the job's output log.
	Except []string
	// Shm and PrivateTmp are directories of the job's own. All of them is saved; "" for none.
	Shm, PrivateTmp string
	// Elsewhere says that the files are put back on another host, which does not have them: a
	// file to which the job only appends is saved with its content, too.
	Elsewhere bool
	// Also are files that are saved with their content although the job only reads them, by
	// their paths, with their inodes: another file that has such a path by now is not saved.
	Also map[string]uint64
	// Patience is how long one file may keep everything waiting. 0 means a minute.
	Patience time.Duration
}

func (o Options) patience() time.Duration { return cmp.Or(o.Patience, time.Minute) }

// PutBackOptions says how files are put back.
type PutBackOptions struct {
	// Time is in the names of what is kept aside. The zero value means now.
	Time time.Time
	// Undo is where the record goes with which [Undo] makes the files again what they were; the zero
	// value is for none. There must be none yet.
	Undo UndoFile
	// Except is the path of a file that is left alone.
	Except string
	// Copies says that the files are copies of what others have, so that nothing is kept of what is newer in them.
	Copies bool
	// OnlyMissing refuses to change a file that is there.
	OnlyMissing bool
	// Making, if it is set, is told of each file, and each name of one, before it gets its name.
	// If it fails, the file is not made.
	Making func(Made) error
}
