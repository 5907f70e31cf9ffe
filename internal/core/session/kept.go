package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// While a process is dumped that goes on afterwards, the GPUs keep a copy of memory that its library has moved to the
// host. A socket has descriptors of that copy, and the watcher holds it: as a message in another socket, which it
// inherits and never reads. Nobody needs the copy. It goes when the watcher is killed, and the way back is a longer one.

// OpenKeeper makes the socket that the watcher is to inherit, as the descriptor fd.
func (s *Session) OpenKeeper(fd int) (forWatcher *os.File, err error) {
	s.keeper, forWatcher, err = SocketPair("keeper")
	s.KeeperFD = fd
	return forWatcher, err
}

// Keeps reports whether there is a keeper.
func (s *Session) Keeps() bool { return s.keeper != nil }

// Keep gives the watcher a socket of a process.
func (s *Session) Keep(pid int, socket *os.File) error {
	return SendFiles(s.keeper, binary.LittleEndian.AppendUint32(nil, uint32(pid)), socket)
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

// SocketPair makes two sockets for messages with descriptors.
func SocketPair(name string) (ours, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(pair[0]), name), os.NewFile(uintptr(pair[1]), name), nil
}

// SendFiles sends files through a socket, with a message.
func SendFiles(through *os.File, message []byte, files ...*os.File) error {
	return sendAll(through, message, files, nil)
}

func sendAll(through *os.File, message []byte, files []*os.File, fds []int) error {
	if len(files) == 0 {
		return SendRights(through, message, fds...)
	}
	return proc.Use(files[0], func(fd int) error { return sendAll(through, message, files[1:], append(fds, fd)) })
}

// SendRights sends descriptors through a socket, with a message.
func SendRights(through *os.File, message []byte, fds ...int) error {
	return proc.Use(through, func(socket int) error {
		return unix.Sendmsg(socket, message, unix.UnixRights(fds...), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
}

// ReceiveRights receives a message, and the descriptors that come with it, no more than most. They may be
// anything, so they are no [os.File], which changes their mode. Without a message, n is 0.
func ReceiveRights(from *os.File, message []byte, most int) (n int, fds []int, err error) {
	control := make([]byte, unix.CmsgSpace(4*most))
	var size, flags int
	err = proc.Use(from, func(fd int) (err error) {
		n, size, flags, _, err = unix.Recvmsg(fd, message, control, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		return err
	})
	if errors.Is(err, unix.EAGAIN) {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, fmt.Errorf("recvmsg: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:size])
	for _, m := range messages {
		rights, parseErr := unix.ParseUnixRights(&m)
		fds, err = append(fds, rights...), errors.Join(err, parseErr)
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.Join(err, errors.New("a message is larger than expected, or this program has too many open files"))
	}
	if err != nil {
		CloseRights(fds)
		return 0, nil, err
	}
	return n, fds, nil
}

// CloseRights closes descriptors that were received. It waits for none: a file system in user space may
// not answer.
func CloseRights(fds []int) {
	go func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
}

// receiveSocket returns no socket if there is no more.
func receiveSocket(from *os.File) (pid int, socket *os.File, err error) {
	message := make([]byte, 4)
	n, fds, err := ReceiveRights(from, message, 1)
	if err != nil || n == 0 {
		return 0, nil, err
	}
	if len(fds) != 1 || n != len(message) { // only this program's own writes there
		CloseRights(fds)
		return 0, nil, errors.New("an unexpected message in the keeper")
	}
	return int(binary.LittleEndian.Uint32(message)), os.NewFile(uintptr(fds[0]), "kept"), nil
}
