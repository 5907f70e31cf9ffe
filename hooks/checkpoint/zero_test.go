package checkpoint

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"google.golang.org/protobuf/proto"

	"cucriu/hooks"
	"cucriu/hooks/config"
	"cucriu/internal/core/session"
)

// TestAZeroHookHasTheDefaults: a program that forgets the constructor gets errors, and no
// panic.
func TestAZeroHookHasTheDefaults(t *testing.T) {
	nobody := []int{1 << 22} // the kernel gives no process this pid
	var h hooks.Hook
	for name, call := range map[string]func() error{
		"Run":     func() error { return hooks.Run(t.Context(), &h, func(string) string { return "" }) },
		"Lock":    func() error { return Lock(t.Context(), &h, nobody) },
		"Unlock":  func() error { _, err := Unlock(t.Context(), &h, nobody); return err },
		"Suspend": func() error { _, err := Suspend(t.Context(), &h, nobody); return err },
		"Resume":  func() error { _, err := Resume(t.Context(), &h, nobody, false); return err },
		"States":  func() error { _, err := States(t.Context(), &h, nobody); return err },
		"Watch":   func() error { return hooks.Watch(&h, t.TempDir()) },
		"check a job": func() error {
			_, err := session.Of(&h).Host().CheckJob(t.Context(), nobody[0], "")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := call(); err == nil {
				t.Error("it succeeded")
			}
		})
	}
	if _, err := session.Of(&h).NewPartial(filepath.Join(t.TempDir(), "images")); err != nil {
		t.Error(err)
	}
	if h.Filled().Config.RunDir != config.Default().RunDir || h.Config.RunDir != "" {
		t.Error("it has not got the defaults, or keeps them")
	}
}

// TestAZeroHookDumpsIntoTheCurrentDirectory as far as to a criu that is missing: what is warned of on the way is logged
// nowhere.
func TestAZeroHookDumpsIntoTheCurrentDirectory(t *testing.T) {
	job := exec.Command("sleep", "1h")
	if err := job.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = job.Process.Kill()
		_ = job.Wait()
	})
	t.Chdir(t.TempDir())
	options := Options{Path: "/nonexistent", ByHand: true, RPC: &rpc.CriuOpts{Pid: proto.Int32(int32(job.Process.Pid))}}
	if _, err := Dump(t.Context(), new(hooks.Hook), ".", options); err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("%v", err)
	}
}
