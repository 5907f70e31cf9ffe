package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"cucriu/cudackpt"
	"cucriu/internal/gpumap"
	"cucriu/internal/session"
)

// CompleteRestore does the driver's part of post-resume.
func CompleteRestore(ctx context.Context, s *session.Session) error {
	driver, targets, err := OpenTargets(s)
	if err != nil {
		return err
	}
	defer CloseTargets(targets)
	if len(targets) != len(s.Members) {
		return errors.New("a restored CUDA process has ended before its GPU state was back")
	}
	if len(targets) > 0 {
		if err := PlanPairs(driver, s); err != nil {
			return err
		}
	}
	return BringBack(ctx, driver, s, targets)
}

// PlanPairs makes the plan from the GPUs that the processes see now (a container may see less than its
// host), and gives every member its pairs.
func PlanPairs(driver *cudackpt.Driver, s *session.Session) error {
	var visible []cudackpt.GPU
	captured := make([][]cudackpt.GPU, len(s.Members))
	for i, member := range s.Members {
		sees, err := driver.VisibleGPUs(member.PID)
		if err != nil {
			return fmt.Errorf("process %d (%s): %w", member.PID, member.Name, err)
		}
		captured[i] = member.GPUs
		if i == 0 {
			visible = sees
		} else {
			visible = slices.DeleteFunc(visible, func(gpu cudackpt.GPU) bool { return !slices.Contains(sees, gpu) })
		}
	}
	plan, err := gpumap.Make(gpumap.Union(captured...), visible, s.Env.Config.GPUs.Map, s.Env.Config.GPUs.Unmapped)
	if err != nil {
		return err
	}
	for i := range s.Members {
		s.Members[i].Pairs = plan.Pairs(gpumap.UUIDsOf(s.Members[i].GPUs))
	}
	return nil
}
