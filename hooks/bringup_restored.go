package hooks

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"cucriu/cudackpt"
	"cucriu/internal/gpumap"
)

// bringUpRestored does the driver's part of post-resume.
func bringUpRestored(ctx context.Context, s *session) error {
	driver, targets, err := openTargets(s)
	if err != nil {
		return err
	}
	defer closeTargets(targets)
	if len(targets) != len(s.Members) {
		return errors.New("a restored CUDA process has ended before its GPU state was back")
	}
	if len(targets) > 0 {
		if err := planPairs(driver, s); err != nil {
			return err
		}
	}
	return bringBack(ctx, driver, s, targets)
}

// planPairs makes the plan from the GPUs that the processes see now (a container may see less
// than its host), and gives every member its pairs.
func planPairs(driver *cudackpt.Driver, s *session) error {
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
	plan, err := gpumap.Make(gpumap.Union(captured...), visible, s.env.Config.GPUs.Map, s.env.Config.GPUs.Unmapped)
	if err != nil {
		return err
	}
	for i := range s.Members {
		s.Members[i].Pairs = plan.Pairs(gpumap.UUIDsOf(s.Members[i].GPUs))
	}
	return nil
}
