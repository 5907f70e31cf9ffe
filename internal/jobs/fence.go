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

	"cucriu/internal/durable"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/proc"
)

const fenceName = "host" // in the job's directory: where the job runs

// raiseFence says in the job's directory that the job belongs here. If it may still run
// elsewhere, because its sandbox there was not ended, raiseFence waits until that sandbox must have
// seen it and ended.
func (s *supervisor) raiseFence(ctx context.Context) (sandbox.Fence, error) {
	self, err := proc.IdentOf(os.Getpid())
	if err != nil {
		return sandbox.Fence{}, err
	}
	boot, err := proc.BootID()
	if err != nil {
		return sandbox.Fence{}, err
	}
	owner, err := s.store.Owner()
	if err != nil {
		return sandbox.Fence{}, err
	}
	fence := sandbox.Fence{Path: filepath.Join(s.Dir, fenceName), Text: sandbox.FenceText(boot, self.PIDNamespace, owner.Generation)}
	before, err := os.ReadFile(fence.Path)
	isFirst := errors.Is(err, fs.ErrNotExist)
	info, statErr := os.Stat(fence.Path)
	if !isFirst && errors.Join(err, statErr) != nil {
		return fence, fmt.Errorf("where the job runs: %w", errors.Join(err, statErr))
	}
	err = renameio.WriteFile(fence.Path, []byte(fence.Text), 0o600, renameio.WithTempDir(s.Dir))
	if err := durable.OnFullDisk(err, fence.Path, []byte(fence.Text)); err != nil {
		return fence, fmt.Errorf("where the job runs: %w", err)
	}
	switch {
	case isFirst: // and nobody need ever be waited for because of it
		return fence, os.Chtimes(fence.Path, time.Time{}, time.Now().Add(-2*sandbox.FencePeriod))
	case strings.HasPrefix(string(before), fmt.Sprintf("%s %d ", boot, self.PIDNamespace)):
		// Sandboxes elsewhere have had to end since this host's first fence.
		if err := os.Chtimes(fence.Path, time.Time{}, info.ModTime()); err != nil {
			return fence, fmt.Errorf("where the job runs: %w", err)
		}
		return fence, s.awaitFence(ctx, fence, "this host had just taken the job over")
	}
	return fence, s.awaitFence(ctx, fence, fmt.Sprintf("%s ran on another host, or before a reboot, and was not ended there (%s)", s.record.Name, strings.TrimSpace(string(before))))
}

// awaitFence waits until every sandbox elsewhere must have seen the fence, and ended.
func (s *supervisor) awaitFence(ctx context.Context, fence sandbox.Fence, why string) error {
	info, err := os.Stat(fence.Path)
	if err != nil {
		return fmt.Errorf("where the job runs: %w", err)
	}
	wait := 2*sandbox.FencePeriod - max(0, time.Since(info.ModTime()))
	if left, err := s.sandboxDirs(); err != nil || wait <= 0 || len(left) == 0 {
		return err
	}
	s.say(fmt.Sprintf("%s: waiting for %v, until it must have ended", why, wait.Round(time.Second)))
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(wait):
		return nil
	}
}
