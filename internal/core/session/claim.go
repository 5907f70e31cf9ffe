package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/internal/core/journal"
	"cucriu/internal/kit/proc"
)

// A dump claims its image directory before it touches anything: two dumps into one directory would
// replace each other's files, and both jobs would be ended. The claim is a lock on the directory, which
// holds across run directories and pid namespaces. It is on criu's own descriptor, and the watcher
// shares it for as long as the job may be restored from the files.

// ImageClaim is the claim of one dump.
type ImageClaim struct {
	*Env
	Criu *criuutil.Criu
	Dir  string
	Name string   // of dir, for messages
	Root int      // of the tree
	File *os.File // nil until the directory is claimed
}

func (c *ImageClaim) Close() {
	if c.File != nil {
		c.File.Close()
	}
}

// Take claims the image directory. If an earlier dump of the same tree still has it, Take returns
// without it. The caller claims again, with last set, when that dump is over.
func (c *ImageClaim) Take(ctx context.Context, last bool) error {
	if c.File != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.Config.Lock.Timeout)
	defer cancel()
	dir, err := c.Criu.ShareImageDir(c.Dir)
	if err != nil {
		c.Log.Debug("criu's descriptor of the image directory cannot be shared", "error", err)
		if dir, err = os.Open(c.Dir); err != nil {
			return fmt.Errorf("image directory: %w", err)
		}
	}
	for begun := time.Now(); ; {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil:
			c.File = dir
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			c.Log.Debug("the file system of the image directory does not support locks: other dumps into it are detected only through the journals", "error", err)
			c.File = dir
			return nil
		}
		again, err := c.claimedByOther(ctx, dir, last)
		if again {
			continue
		}
		if errors.Is(err, errLocked) && time.Since(begun) < exitTime {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if err != nil || c.File == nil {
			dir.Close()
		}
		return err
	}
}

// errLocked is the error for a directory that nobody is known to have claimed.
var errLocked = errors.New("is in use by another dump, or locked by another program: nothing was touched; dump into another directory")

// exitTime is how long a watcher that has ended may take to give its lock back.
const exitTime = 5 * time.Second

// claimedByOther decides what to do about a directory that somebody else has claimed, and reports
// whether to try again. If not, and without an error, the claim is left for later, or an ancestor's
// lock serves as ours.
func (c *ImageClaim) claimedByOther(ctx context.Context, dir *os.File, last bool) (again bool, err error) {
	info, err := dir.Stat()
	if err != nil {
		return false, err
	}
	all, err := journal.List(c.Config.RunDir)
	if err != nil {
		return false, err
	}
	tree, err := MembersOfTree(c.Root)
	if err != nil {
		return false, err
	}
	for _, s := range journal.DumpsInto(all, info) {
		switch {
		case s.Outcome != "":
			// A watcher whose session is over is about to end.
			if ended, err := awaitWatcher(ctx, &s.Record); err != nil || ended {
				return ended, err
			}
		case !last && (s.Criu == proc.Ident(c.Criu.Ident) || s.Shares(tree)):
			return false, nil
		default:
			return false, s.ClaimConflict()
		}
	}
	if heldByAncestor(c.Criu.PID, info) { // flock(1) is one
		c.File = dir
		return false, nil
	}
	return false, fmt.Errorf("image directory %s %w", c.Name, errLocked)
}

// heldByAncestor reports whether an ancestor of a process has locked a directory. An ancestor locks it
// for what it then starts, so such a lock does not stand in the way.
func heldByAncestor(pid int, dir os.FileInfo) bool {
	for pid > 1 {
		status, err := proc.ReadStatus(pid)
		if err != nil {
			return false
		}
		if pid = status.PPID; pid == os.Getpid() {
			continue // this program serves criu over RPC: its lock is another dump's claim
		}
		open := filepath.Join("/proc", strconv.Itoa(pid), "fd")
		entries, err := os.ReadDir(open)
		if err != nil {
			continue
		}
		for _, entry := range entries {
			info, err := os.Stat(filepath.Join(open, entry.Name()))
			if err != nil || !os.SameFile(info, dir) {
				continue
			}
			data, err := proc.ReadText(filepath.Join("/proc", strconv.Itoa(pid), "fdinfo", entry.Name()))
			if err == nil && strings.Contains(string(data), "FLOCK") {
				return true
			}
		}
	}
	return false
}
