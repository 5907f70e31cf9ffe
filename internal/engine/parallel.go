package engine

import (
	"errors"
	"sync"
)

// Parallel does one step for all targets at once and waits for every one of them, whatever the others
// return.
func Parallel(targets []*Target, do func(*Target) error) error {
	return ParallelUpTo(len(targets), len(targets), func(i int) error { return do(targets[i]) })
}

// ParallelUpTo does a step n times, for the numbers from 0 on, and at most so many of them at once. It
// waits for all of them.
func ParallelUpTo(most, n int, do func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	free := make(chan struct{}, max(most, 1))
	for i := range n {
		free <- struct{}{}
		wg.Go(func() {
			errs[i] = do(i)
			<-free
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
