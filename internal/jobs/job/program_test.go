package job

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestAProgramRunsAsItsUserAndSaysLittle: its output is bounded, and what it leaves in its process group is ended.
func TestAProgramRunsAsItsUserAndSaysLittle(t *testing.T) {
	p := Program{Option: "--on-start", Args: []string{"sh", "-c", "id -u; id -g; pwd; sleep 600 & yes | head -c 100000"}}
	p.User = &syscall.Credential{Uid: 65534, Gid: 65534}
	begun := time.Now()
	note, err := p.Run(t.Context())
	if err != nil || !strings.HasPrefix(note, "--on-start: 65534\n65534\n/\ny\ny\n") || len(note) > 2*mostOutput {
		t.Errorf("%q (%v)", note, err)
	}
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("it took %v", took)
	}
}

// TestAProgramEndsWithItsContext, and says why.
func TestAProgramEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("nobody waits for it")
	time.AfterFunc(100*time.Millisecond, func() { cancel(cause) })
	p := Program{Option: "--on-start", Args: []string{"sh", "-c", "echo begun; sleep 600"}}
	if note, err := p.Run(ctx); note != "" || !errors.Is(err, cause) || !strings.HasSuffix(err.Error(), ": begun") {
		t.Errorf("%q (%v)", note, err)
	}
}
