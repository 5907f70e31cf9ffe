package hosts

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// A remote shell without keys, for machines without sshd. It goes over the link between the
// hosts, as ssh does, so a cut cuts it. The client sends the command as a line of JSON and
// then its standard input; the server answers with frames: a kind, a length, and that many
// bytes.
const (
	rshPort      = "514"
	rshScript    = ".rsh" // in the home of root
	rshPIDFile   = "/run/rshd.pid"
	rshOutput    = 'o'
	rshErrors    = 'e'
	rshStatus    = 's'
	rshFrameSize = 5
	rshFailed    = 255
)

// RSH returns a program on this host that is used as ssh is: RSH HOST COMMAND. It runs the
// command in a shell on the other host.
func (h *Host) RSH() string {
	t := h.pair.t
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join("home", rshScript)
	h.file(script, fmt.Sprintf("#!/bin/sh\n%s=%s exec '%s' \"$@\"\n", roleVariable, roleRSH, self))
	if err := os.Chmod(h.path(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if !h.other.runs(rshPIDFile) {
		cmd := h.other.Command(h.pair.root.Context(), self, net.JoinHostPort(h.other.Addr.String(), rshPort))
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + h.other.home, roleVariable + "=" + roleRSHServer}
		h.other.serve(cmd, rshPIDFile)
	}
	return filepath.Join(h.home, rshScript)
}

// runRSH is the client.
func runRSH(args []string) (int, error) {
	if len(args) < 2 {
		return 0, errors.New("usage: rsh HOST COMMAND")
	}
	_, host, found := strings.Cut(args[0], "@")
	if !found {
		host = args[0]
	}
	conn, err := net.Dial("tcp", net.JoinHostPort(host, rshPort))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := json.NewEncoder(conn).Encode(strings.Join(args[1:], " ")); err != nil {
		return 0, err
	}
	go func() {
		_, _ = io.Copy(conn, os.Stdin)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	for {
		header := make([]byte, rshFrameSize)
		if _, err := io.ReadFull(conn, header); err != nil {
			return 0, fmt.Errorf("the connection to %s: %w", host, err)
		}
		n := binary.BigEndian.Uint32(header[1:])
		switch to := os.Stdout; header[0] {
		case rshStatus:
			return int(n), nil
		case rshErrors:
			to = os.Stderr
			fallthrough
		default:
			if _, err := io.CopyN(to, conn, int64(n)); err != nil {
				return 0, err
			}
		}
	}
}

// serveRSH is the server.
func serveRSH(addr string) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	if err := os.WriteFile(rshPIDFile, fmt.Appendln(nil, os.Getpid()), 0o600); err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			if err := serveCommand(conn); err != nil {
				fmt.Fprintln(os.Stderr, "rshd:", err)
			}
		}()
	}
}

func serveCommand(conn net.Conn) error {
	in := bufio.NewReader(conn)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	var command string
	if err := json.Unmarshal(line, &command); err != nil {
		return err
	}
	cmd := exec.Command("/bin/sh", "-c", command)
	cmd.Dir = os.Getenv("HOME")
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	environment, err := os.ReadFile(filepath.Join(cmd.Dir, ".ssh/environment"))
	if err != nil {
		return err
	}
	cmd.Env = append(os.Environ(), strings.Split(strings.TrimSpace(string(environment)), "\n")...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	frames := &frames{conn: conn}
	cmd.Stdout, cmd.Stderr = frames.of(rshOutput), frames.of(rshErrors)
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(stdin, in)
		_ = stdin.Close()
	}()
	_ = cmd.Wait()
	status := cmd.ProcessState.ExitCode()
	if status < 0 {
		status = rshFailed
	}
	return frames.send(rshStatus, uint32(status), nil)
}

// frames sends frames that several write.
type frames struct {
	mu   sync.Mutex
	conn net.Conn
}

func (f *frames) send(kind byte, n uint32, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	frame := append([]byte{kind}, binary.BigEndian.AppendUint32(nil, n)...)
	_, err := f.conn.Write(append(frame, data...))
	return err
}

func (f *frames) of(kind byte) io.Writer { return frameWriter{f, kind} }

type frameWriter struct {
	*frames
	kind byte
}

func (w frameWriter) Write(data []byte) (int, error) {
	return len(data), w.send(w.kind, uint32(len(data)), data)
}
