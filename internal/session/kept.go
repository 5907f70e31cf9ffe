package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"cucriu/internal/proc"
)

// While a process is dumped that goes on afterwards, the GPUs keep a copy of memory that its library has moved to the
// host. A socket has descriptors of that copy, and the watcher holds it: as a message in another socket, which it
// inherits and never reads. Nobody needs the copy. It goes when the watcher is killed, and the way back is a longer one.

// OpenKeeper makes the socket that the watcher is to inherit, as the descriptor fd.
func (s *Session) OpenKeeper(fd int) (forWatcher *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	s.keeper, s.KeeperFD = os.NewFile(uintptr(pair[0]), "keeper"), fd
	return os.NewFile(uintptr(pair[1]), "keeper of the watcher"), nil
}

// Keeps reports whether there is a keeper.
func (s *Session) Keeps() bool { return s.keeper != nil }

// Keep gives the watcher a socket of a process.
func (s *Session) Keep(pid int, socket *os.File) error {
	return SendSocket(s.keeper, binary.LittleEndian.AppendUint32(nil, uint32(pid)), socket)
}

// CloseKeeper closes what this program has of it.
func (s *Session) CloseKeeper() {
	if s.keeper != nil {
		s.keeper.Close()
		s.keeper = nil
	}
	for pid := range s.kept.Range {
		s.ForgetKept(pid.(int))
	}
}

// TakeKept takes the sockets away from the watcher. This program has them then, until it is asked to forget them.
func (s *Session) TakeKept() error {
	if s.KeeperFD == 0 || s.Watcher == nil {
		return nil
	}
	watcher, err := proc.Reopen(*s.Watcher)
	if errors.Is(err, proc.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer watcher.Close()
	keeper, err := watcher.ShareSocket(s.KeeperFD)
	if err != nil {
		return err
	}
	defer keeper.Close()
	for {
		pid, socket, err := receiveSocket(keeper)
		if err != nil || socket == nil {
			return err
		}
		s.ForgetKept(pid)
		s.kept.Store(pid, socket)
	}
}

// Kept returns the socket of a process that this program has; nil if it has none.
func (s *Session) Kept(pid int) *os.File {
	socket, _ := s.kept.Load(pid)
	file, _ := socket.(*os.File)
	return file
}

// ForgetKept closes the socket of a process. Several may do so at the same time.
func (s *Session) ForgetKept(pid int) {
	if socket, has := s.kept.LoadAndDelete(pid); has {
		socket.(*os.File).Close()
	}
}

// SendSocket sends a socket through another one.
func SendSocket(through *os.File, message []byte, socket *os.File) error {
	return proc.Use(through, func(fd int) error {
		return proc.Use(socket, func(sent int) error {
			return unix.Sendmsg(fd, message, unix.UnixRights(sent), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		})
	})
}

// receiveSocket returns no socket if there is no more.
func receiveSocket(from *os.File) (pid int, socket *os.File, err error) {
	message, rights := make([]byte, 4), make([]byte, unix.CmsgSpace(4))
	var n, nRights int
	err = proc.Use(from, func(fd int) (err error) {
		n, nRights, _, _, err = unix.Recvmsg(fd, message, rights, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		return err
	})
	if errors.Is(err, unix.EAGAIN) || err == nil && n == 0 {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, fmt.Errorf("recvmsg: %w", err)
	}
	var fds []int
	messages, err := unix.ParseSocketControlMessage(rights[:nRights])
	if err == nil && len(messages) == 1 {
		fds, err = unix.ParseUnixRights(&messages[0])
	}
	if err != nil || len(fds) != 1 || n != len(message) { // only this program's own writes there
		return 0, nil, errors.Join(errors.New("an unexpected message in the keeper"), err)
	}
	return int(binary.LittleEndian.Uint32(message)), os.NewFile(uintptr(fds[0]), "kept"), nil
}
