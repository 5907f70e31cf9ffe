package cudackpt_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"cucriu/cudackpt"
)

// The example takes the GPU half of a process off its GPU and puts it back. A program that does
// this to a real job must stop the job's CPU threads in between.
func Example() {
	const pid = 4711

	driver, err := cudackpt.Open()
	if err != nil {
		log.Fatal(err)
	}
	if err := driver.Supports(cudackpt.FeatureCheckpoint); err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	process := driver.Process(pid)

	err = process.Suspend(ctx, cudackpt.LockOptions{Timeout: 10 * time.Second})
	switch {
	case errors.Is(err, cudackpt.ResultNotReady):
		log.Fatal("it is too busy, and goes on: ", err)
	case errors.Is(err, cudackpt.ResultNotInitialized):
		log.Fatal("it has no CUDA: ", err)
	case err != nil:
		log.Fatal(err)
	}
	if err := process.Resume(ctx, cudackpt.RestoreOptions{}); err != nil {
		log.Fatal(err)
	}
}

func ExampleParseUUID() {
	uuid, err := cudackpt.ParseUUID("5A3C11F0-9d2b-4e6f-8a7b-0123456789ab")
	fmt.Println(uuid, err)

	_, err = cudackpt.ParseUUID("MIG-5a3c11f0-9d2b-4e6f-8a7b-0123456789ab")
	fmt.Println(errors.Is(err, cudackpt.ErrInvalidArgument))
	// Output:
	// GPU-5a3c11f0-9d2b-4e6f-8a7b-0123456789ab <nil>
	// true
}

func ExampleError() {
	err := error(&cudackpt.Error{Call: "cuCheckpointProcessLock", PID: 4711, Result: cudackpt.ResultNotReady})
	fmt.Println(err)
	fmt.Println(errors.Is(err, cudackpt.ResultNotReady))
	// Output:
	// cuCheckpointProcessLock of process 4711: CUDA_ERROR_NOT_READY (600): GPU work was still in flight when the timeout expired; the process is running as before: give the lock more time; lock processes that wait for each other (NCCL ranks) at the same time
	// true
}
