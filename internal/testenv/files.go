package testenv

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Soon bounds waits for what should happen at once, on a busy machine.
const Soon = 20 * time.Second

// Script writes an action script.
func Script(t testing.TB, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script.sh")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// CaughtWriting reports whether an image was made while the job wrote one of its
// files. It cannot be restored once the job has gone on and renamed that.
func CaughtWriting(t testing.TB, images string) bool {
	t.Helper()
	files, err := os.ReadFile(filepath.Join(images, "files.img"))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(files, []byte(".tmp"))
}

// Copy copies a folder of images, as to another host.
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
