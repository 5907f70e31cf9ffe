package cudackpt

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// Every result that the driver was seen to give for a call must be explained, with a remedy.
func TestEverySeenResultIsExplained(t *testing.T) {
	for _, row := range []struct {
		call   string
		result Result
		gone   bool
		says   []string
	}{
		{callLock, ResultNotReady, false, []string{"CUDA_ERROR_NOT_READY (600)", "still in flight", "running as before"}},
		{callLock, ResultIllegalState, false, []string{"CUDA_ERROR_ILLEGAL_STATE (401)", "not running"}},
		{callLock, ResultNotSupported, false, []string{"without a profiler (CUPTI)", "MIG"}},
		{callLock, ResultNotInitialized, false, []string{"CUDA_ERROR_NOT_INITIALIZED (3)", "does not use CUDA"}},
		{callLock, ResultOperatingSystem, true, []string{"CUDA_ERROR_OPERATING_SYSTEM (304)", "no such process", "check the pid"}},
		{callGetState, ResultOperatingSystem, false, []string{"cannot be reached"}},
		{callGetState, ResultNotInitialized, false, []string{"forked"}},
		{callCheckpoint, ResultNotSupported, false, []string{"CUDA_ERROR_NOT_SUPPORTED (801)", "managed memory", "run it without"}},
		{callCheckpoint, ResultIllegalState, false, []string{"not locked", "lock it first"}},
		{callCheckpoint, ResultOperatingSystem, true, []string{"died before its checkpoint"}},
		{callRestore, ResultNotSupported, false, []string{"fewer GPUs", "IPC", "nothing was restored"}},
		{callRestore, ResultInvalidValue, false, []string{"CUDA_ERROR_INVALID_VALUE (1)", "map was refused", "nothing was restored"}},
		{callRestore, ResultOutOfMemory, false, []string{"CUDA_ERROR_OUT_OF_MEMORY (2)", "every further restore", "from an image"}},
		{callRestore, ResultOperatingSystem, false, []string{"ran out of GPU memory", "lost"}},
		{callRestore, ResultOperatingSystem, true, []string{"died"}},
		{callRestore, ResultIllegalState, false, []string{"not checkpointed"}},
		{callUnlock, ResultIllegalState, false, []string{"not locked"}},
		{callUnlock, ResultUnknown, false, []string{"CUDA_ERROR_UNKNOWN (999)", "Xid"}},
	} {
		t.Run(row.call+" "+row.result.String(), func(t *testing.T) {
			e := &Error{Call: row.call, PID: 4711, Result: row.result, Gone: row.gone}
			text := e.Error()
			for _, says := range append(row.says, row.call, "process 4711") {
				if !strings.Contains(text, says) {
					t.Errorf("%s with %v: %q does not say %q", row.call, row.result, text, says)
				}
			}
			if e.Meaning() == "" || e.Remedy() == "" {
				t.Errorf("%s with %v has meaning %q and remedy %q", row.call, row.result, e.Meaning(), e.Remedy())
			}
		})
	}
}

func TestUnknownNumbersAreShown(t *testing.T) {
	if got, want := (&Error{Call: callLock, PID: 1, Result: 12345}).Error(), "cuCheckpointProcessLock of process 1: CUresult 12345"; got != want {
		t.Errorf("error is %q, want %q", got, want)
	}
	if got, want := State(7).String(), "state(7)"; got != want {
		t.Errorf("state is %q, want %q", got, want)
	}
}

func TestErrorsAreFoundByCode(t *testing.T) {
	err := callError(callLock, 1, ResultNotReady)
	if !errors.Is(err, ResultNotReady) || errors.Is(err, ResultIllegalState) {
		t.Errorf("%v is not found by its code alone", err)
	}
	if callError(callLock, 1, ResultSuccess) != nil {
		t.Error("success is an error")
	}
	if err := error(&StateError{}); !errors.Is(err, ResultIllegalState) {
		t.Errorf("%v is not found as an illegal state", err)
	}
	if err := error(&InterruptedError{Err: context.Canceled}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v is not found as context.Canceled", err)
	}
}
