package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/failpoint"
	"cucriu/internal/journal"
	"cucriu/internal/session"
)

// The destination's criu removes the path of a UNIX socket and binds it anew. If both hosts see the
// same directory, that is the path of the source's socket, too. So the source keeps other names for
// the socket until it is known where the job goes on. criu takes a socket for removed if the name by
// which it was bound was removed and not renamed, so that name is put aside.
//
//	source                                     destination
//	link PATH to PATH.cucriu-ID
//	rename PATH to PATH.cucriu-ID.own
//	link that to PATH
//	                                           claim: rename PATH.cucriu-ID to PATH.cucriu-ID.there
//	                                           criu restores
//	                                           if its copy was ended: link PATH.cucriu-ID.there
//	                                           to PATH, and rename it back
//	if the job stays: remove PATH.cucriu-ID
//	(nobody can claim it then); if it is
//	claimed, wait until it is renamed back;
//	rename PATH.cucriu-ID.own to PATH
//	at the end, remove what is left
//
// A destination that finds the path, but nothing to claim, is too late. One that sees neither has
// another directory.

// releasePatience is how long a source waits for a destination to end its copy. One that was killed
// does not say that it has.
const releasePatience = 5 * time.Second

// KeepSockets keeps other names for the sockets of a held job that are bound to these paths, and
// returns them.
func KeepSockets(ctx context.Context, env *session.Env, id string, paths []string) ([]journal.Socket, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	s, err := holdNamed(ctx, env.Filled(), id)
	if err != nil {
		return nil, err
	}
	defer s.LetGo()
	for _, path := range paths {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK {
			s.Hold.Sockets = append(s.Hold.Sockets, journal.Socket{Path: path, Inode: st.Ino})
		}
	}
	if err := s.Save(); err != nil {
		return nil, err
	}
	for _, socket := range s.Hold.Sockets {
		own := kept(socket.Path, id) + ownSuffix
		err := os.Link(socket.Path, kept(socket.Path, id))
		if err == nil {
			err = os.Rename(socket.Path, own)
		}
		if err == nil {
			err = os.Link(own, socket.Path)
		}
		if err != nil {
			return nil, fmt.Errorf("the job's socket %s cannot be kept from a destination that sees its directory: %w", socket.Path, err)
		}
	}
	return s.Hold.Sockets, s.Failpoint(ctx, "dump.kept")
}

// ClaimSockets claims the sockets of a source before its job is restored. It fails if the source has
// the job back already.
func ClaimSockets(id string, sockets []journal.Socket) error {
	for _, socket := range sockets {
		err := socketAt(socket, id, func(d socketDir) error {
			err := unix.Renameat(d.fd, d.kept, d.fd, d.claimed)
			if err != nil && d.is(d.base, socket) {
				return fmt.Errorf("the job's socket %s is its source's again: the job goes on there", socket.Path)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ReleaseSockets makes paths names of the source's sockets again, as far as they are claimed here. No
// process of the copy is left.
func ReleaseSockets(env *session.Env, id string, sockets []journal.Socket) {
	eachSocket(env, id, sockets, func(socket journal.Socket, d socketDir) error {
		if !d.is(d.claimed, socket) {
			return nil
		}
		return errors.Join(d.giveBack(d.claimed, socket), unix.Renameat(d.fd, d.claimed, d.fd, d.kept))
	})
}

// takeBackSockets makes the paths names of the sockets of a job again that stays at its source. Nothing
// of it runs yet.
func takeBackSockets(env *session.Env, hold *journal.Hold) {
	deadline := time.Now().Add(failpoint.Patience(releasePatience))
	eachSocket(env, hold.ID, hold.Sockets, func(socket journal.Socket, d socketDir) error {
		for d.is(d.kept, socket) || d.is(d.claimed, socket) {
			err := unix.Unlinkat(d.fd, d.kept, 0)
			if !errors.Is(err, unix.ENOENT) || time.Now().After(deadline) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		return d.takeBack(socket)
	})
}

// GiveBackSockets makes the paths names of a job's sockets again that has stayed at its source: the
// destination's criu may have been late.
func GiveBackSockets(env *session.Env, id string) {
	s, err := env.Held(id)
	if err != nil || s.Kind != journal.KindDump || s.Hold.Decision == journal.DecisionEnd {
		return
	}
	eachSocket(env, id, s.Hold.Sockets, func(socket journal.Socket, d socketDir) error {
		if d.is(d.claimed, socket) {
			return d.giveBack(d.claimed, socket)
		}
		return d.takeBack(socket)
	})
}

// dropSockets removes the other names.
func dropSockets(env *session.Env, hold *journal.Hold) {
	eachSocket(env, hold.ID, hold.Sockets, func(socket journal.Socket, d socketDir) error {
		for _, name := range []string{d.kept, d.claimed, d.own} {
			if d.is(name, socket) {
				if err := unix.Unlinkat(d.fd, name, 0); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// eachSocket does something for each socket. It would help nobody to fail.
func eachSocket(env *session.Env, id string, sockets []journal.Socket, do func(journal.Socket, socketDir) error) {
	for _, socket := range sockets {
		if err := socketAt(socket, id, func(d socketDir) error { return do(socket, d) }); err != nil {
			env.Log.Warn("a UNIX socket of the job may have no name, so that nobody can connect to it, or other ones", "path", socket.Path, "error", err)
		}
	}
}

func kept(path, id string) string { return path + ".cucriu-" + id }

const ownSuffix = ".own"

// socketDir is the directory of a socket, with the names of the socket in it.
type socketDir struct {
	fd                       int
	base, kept, claimed, own string
}

func socketAt(socket journal.Socket, id string, do func(socketDir) error) error {
	fd, err := unix.Open(filepath.Dir(socket.Path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // it is not on this host
	}
	defer unix.Close(fd)
	base := filepath.Base(socket.Path)
	return do(socketDir{fd: fd, base: base, kept: kept(base, id), claimed: kept(base, id) + ".there", own: kept(base, id) + ownSuffix})
}

// is reports whether a name is that of the source's socket.
func (d socketDir) is(name string, socket journal.Socket) bool {
	var st unix.Stat_t
	err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Ino == socket.Inode && st.Mode&unix.S_IFMT == unix.S_IFSOCK
}

// giveBack makes the path a name of the socket that has another name.
func (d socketDir) giveBack(from string, socket journal.Socket) error {
	if d.is(d.base, socket) {
		return nil
	}
	link := d.kept + ".back"
	if err := unix.Unlinkat(d.fd, link, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := unix.Linkat(d.fd, from, d.fd, link, 0); err != nil {
		return err
	}
	return unix.Renameat(d.fd, link, d.fd, d.base)
}

// takeBack gives the name back by which the socket was bound. A rename to another name of the same
// socket does nothing.
func (d socketDir) takeBack(socket journal.Socket) error {
	if !d.is(d.own, socket) {
		return nil
	}
	if d.is(d.base, socket) {
		if err := unix.Unlinkat(d.fd, d.base, 0); err != nil {
			return err
		}
	}
	return unix.Renameat(d.fd, d.own, d.fd, d.base)
}
