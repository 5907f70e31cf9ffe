package hooks

import (
	"errors"
	"sync"
)

// parallel does one step for all targets at once and waits for every one of
// them, whatever the others return.
func parallel(targets []*target, do func(*target) error) error {
	errs := make([]error, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		wg.Go(func() { errs[i] = do(t) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
