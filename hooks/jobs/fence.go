package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"cucriu/criuutil/proc"
	"cucriu/hooks/jobs/place"
)

const fenceName = "host" // in the job's directory: where the job runs

// raiseFence says in the job's directory that the job belongs here. If it may still run
// elsewhere, because its place there was not ended, raiseFence waits until that place must have
// seen it and ended.
func (s *supervisor) raiseFence(ctx context.Context) (place.Fence, error) {
	self, err := proc.IdentOf(os.Getpid())
	if err != nil {
		return place.Fence{}, err
	}
	boot, err := place.BootID()
	if err != nil {
		return place.Fence{}, err
	}
	fence := place.Fence{Path: filepath.Join(s.Dir, fenceName), Text: fmt.Sprintf("%s %d\n", boot, self.PIDNamespace)}
	before, err := os.ReadFile(fence.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fence, fmt.Errorf("where the job runs: %w", err)
	}
	if string(before) == fence.Text {
		return fence, nil
	}
	if err := renameio.WriteFile(fence.Path, []byte(fence.Text), 0o600, renameio.WithTempDir(s.Dir)); err != nil {
		return fence, fmt.Errorf("where the job runs: %w", err)
	}
	left, err := s.placeDirs()
	if err != nil || len(left) == 0 || len(before) == 0 {
		return fence, err
	}
	wait := 2 * place.FencePeriod
	s.say(fmt.Sprintf("%s ran on another host, or before a reboot, and was not ended there: waiting for %v, until it must have ended (%s)", s.record.Name, wait, strings.TrimSpace(string(before))))
	select {
	case <-ctx.Done():
		return fence, context.Cause(ctx)
	case <-time.After(wait):
		return fence, nil
	}
}
