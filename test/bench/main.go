// Command bench measures where the downtime of dump and restore goes. It runs the same jobs
// in three ways: with plain CRIU and one driver call after the other, as a CUDA plugin
// makes them; with cucriu-hook; and with the hook's fast lane. It runs on simulated GPUs,
// or with CUCRIU_TEST_DRIVER=real on this machine's.
//
// It writes results.json and results.md, and replaces them after each run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv/reaper"
)

// The bench runs itself again below an init of its own: see package reaper.
const (
	roleVariable = "CUCRIU_BENCH_ROLE"
	roleInit     = "init"
	roleBench    = "bench"
)

func main() {
	status, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: error:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

func run() (status int, err error) {
	opts, err := parseOptions(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return 0, nil
	}
	if err != nil {
		return 2, err
	}
	switch os.Getenv(roleVariable) {
	case roleInit:
		// The bench below cleans up and ends on these signals. Until then it needs its
		// init.
		signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGTERM)
		os.Setenv(roleVariable, roleBench)
		return reaper.Run(opts.namespaces())
	case roleBench:
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
		defer stop()
		return 0, measureAll(ctx, opts, os.Stdout)
	}
	return isolate(opts)
}

// isolate starts the bench again as its own init.
func isolate(opts options) (status int, err error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("criu needs root: run make bench as root")
	}
	runtime.LockOSThread() // the child is killed when the thread that started it ends
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), roleVariable+"="+roleInit)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = reaper.SysProcAttr(opts.namespaces())
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGTERM)
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil // it has printed the reason
	}
	return 0, err
}
