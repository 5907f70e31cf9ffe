package testenv

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Soon is how long to wait for what should happen at once. It only ends a test that would wait for ever: beside two busy
// loops in one session, a program has waited for the CPU for 107 of 108 seconds (Linux 6.18).
const Soon = 5 * time.Minute

// Script writes an action script.
func Script(t testing.TB, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script.sh")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// WaitsForGo writes a script that makes the file reached in a directory, and waits there for the file go.
func WaitsForGo(t testing.TB, dir string) string {
	t.Helper()
	return Script(t, "cd "+dir+" && touch reached && until [ -e go ]; do sleep 0.05; done")
}

// CaughtWriting reports whether an image was made while the job was writing one of its
// files. Such an image cannot be restored once the job has gone on and renamed that file.
func CaughtWriting(t testing.TB, images string) bool {
	t.Helper()
	files, err := os.ReadFile(filepath.Join(images, "files.img"))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(files, []byte(".tmp"))
}

// Copy copies a folder of images, as if to another host.
func Copy(t testing.TB, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// WriteFile writes a file that only its owner can read.
func WriteFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// StuckPipe returns the end of a full pipe whose reader has stopped.
func StuckPipe(t testing.TB) *os.File {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close(); writer.Close() })
	if err := writer.SetWriteDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = writer.Write(make([]byte, 4096))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return writer
}

// SmallDisk mounts a tmpfs of a given size (such as "32m") at dir.
func SmallDisk(t testing.TB, dir, size string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// FreePort returns a TCP port of the loopback interface on which nobody listens. Unlike
// other things of a test, it is shared with other runs of the tests.
func FreePort(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
}

// Exists reports whether a file exists.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
