// Package testenv gives tests a host to work on: real criu, the hook, the workloads, and
// the simulated or the real driver. If something is missing, the test fails with the
// command that provides it. A test is skipped only if this machine's kernel or number of
// GPUs cannot do it.
//
// The words of the tests: a [Host] has GPUs, and [Host.Start] starts a [Job] on it, which ticks and
// checks its memory. [Host.Dump] and [Host.Restore] use criu with the hook; [Exits] runs cucriu and
// wants a status. [Check], [Foretold] and [Refused] are about what is found before anything is
// touched. A test runs in namespaces of its own by [Isolated], or by [Simulated] if it needs the
// simulated driver. Package hosts has two hosts with a link between them.
//
// A machine with a GPU sets these variables:
//
//	CUCRIU_TEST_ROOT            the folder that holds bin and build
//	CUCRIU_TEST_CRIU            the path of criu
//	CUCRIU_TEST_CRIU_PLUGIN     a directory with criu's own CUDA plugin; its tests are skipped without
//	CUCRIU_TEST_RUNC            the path of runc, for the tests with containers
//	CUCRIU_TEST_SSH             a directory with OpenSSH, for the tests with two hosts
//	CUCRIU_TEST_IPTABLES        a directory with an iptables that speaks nftables
//	CUCRIU_TEST_DRIVER=real     use the real driver, not the simulated one
//	CUCRIU_TEST_NAMESPACES=off  a real driver may not know pid namespaces
package testenv

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// RealDriver reports whether the tests run against NVIDIA's driver.
func RealDriver() bool { return os.Getenv("CUCRIU_TEST_DRIVER") == "real" }

// Root returns the folder that holds bin and build: the repository, or a bundle.
func Root(t testing.TB) string {
	t.Helper()
	if root := os.Getenv("CUCRIU_TEST_ROOT"); root != "" {
		return root
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatal("no go.mod above the working directory: run the tests in the repository, or set CUCRIU_TEST_ROOT")
	return ""
}

// Artefact returns the path of a build output. If it does not exist, it fails the test and
// names the remedy.
func Artefact(t testing.TB, remedy string, path ...string) string {
	t.Helper()
	file := filepath.Join(append([]string{Root(t)}, path...)...)
	if _, err := os.Stat(file); err != nil {
		t.Fatalf("%v: run %s", err, remedy)
	}
	return file
}

// Guest returns the library that cucriu run --dir loads into a job. On simulated GPUs it makes parts of 4 MiB out of what
// has 8 MiB or more.
func Guest(t testing.TB) string {
	t.Helper()
	name := "small"
	if RealDriver() {
		name = "guest"
	}
	return Artefact(t, "make guest", "internal", "kit", "guest", "built", name+"-"+runtime.GOARCH+".so")
}

// WithGuest returns a command below which a program has it.
func WithGuest(t testing.TB) []string {
	t.Helper()
	return []string{"/usr/bin/env", "LD_PRELOAD=" + Guest(t)}
}

// Criu returns the path of the criu that the tests use.
func Criu(t testing.TB) string {
	t.Helper()
	path := os.Getenv("CUCRIU_TEST_CRIU")
	if path == "" {
		t.Fatal("CUCRIU_TEST_CRIU is not set: run make test, or export CUCRIU_TEST_CRIU=$(make -s which-criu)")
	}
	return path
}
