package criuutil

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"google.golang.org/protobuf/proto"
)

// TestACriuThatHangsIsKilled before it has begun, when somebody gives up, with what a wrapper has started.
func TestACriuThatHangsIsKilled(t *testing.T) {
	for name, program := range map[string]string{"criu": "exec sleep 1000", "a wrapper": "sleep 1000; exit 1"} {
		t.Run(name, func(t *testing.T) { hangsAndIsKilled(t, program) })
	}
}

func hangsAndIsKilled(t *testing.T, program string) {
	path := filepath.Join(t.TempDir(), "criu")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+program+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	swrk, err := StartSwrk(path, os.Environ(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	given := errors.New("got SIGTERM")
	time.AfterFunc(50*time.Millisecond, func() { cancel(given) })
	_, err = swrk.Do(ctx, rpc.CriuReqType_DUMP, &rpc.CriuOpts{ImagesDirFd: proto.Int32(-1)}, func(context.Context, string, int) error {
		t.Error("it has announced something")
		return nil
	})
	if !errors.Is(err, given) {
		t.Errorf("it was given up with %v, want %v", err, given)
	}
	if err := swrk.Close(); err == nil {
		t.Error("criu ended by itself")
	}
}
