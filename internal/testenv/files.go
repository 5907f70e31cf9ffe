package testenv

import (
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
