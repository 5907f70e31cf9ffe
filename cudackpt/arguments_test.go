package cudackpt

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

// Nothing here may reach the driver: the addresses of the API are not those of functions.
func TestArgumentsAreRefusedBeforeTheDriverIsAsked(t *testing.T) {
	d := &Driver{version: 13000, api: completeAPI()}
	ctx := context.Background()
	a, b, c := UUID{1}, UUID{2}, UUID{3}
	restore := func(pairs ...GPUPair) func() error {
		return func() error { return d.Process(1).Restore(ctx, RestoreOptions{Pairs: pairs}) }
	}
	for name, row := range map[string]struct {
		do   func() error
		says string
	}{
		"pid 0":                {func() error { return d.Process(0).Unlock(ctx) }, "0 is not a process ID"},
		"negative pid":         {func() error { return d.Process(-1).Checkpoint(ctx) }, "-1 is not a process ID"},
		"pid beyond an int":    {func() error { return d.Process(math.MaxInt32 + 1).Unlock(ctx) }, "not a process ID"},
		"state of pid 0":       {func() error { _, err := d.Process(0).State(ctx); return err }, "not a process ID"},
		"thread of pid 0":      {func() error { _, err := d.Process(0).RestoreThreadID(ctx); return err }, "not a process ID"},
		"GPUs of pid 0":        {func() error { _, err := d.VisibleGPUs(0); return err }, "not a process ID"},
		"library of pid 0":     {func() error { return d.CheckLibrary(0) }, "not a process ID"},
		"negative timeout":     {func() error { return d.Process(1).Lock(ctx, LockOptions{Timeout: -1}) }, "negative"},
		"negative try":         {func() error { _, err := d.Process(1).TryLock(ctx, -time.Second); return err }, "negative"},
		"timeout beyond count": {func() error { return d.Process(1).Lock(ctx, LockOptions{Timeout: math.MaxUint32*time.Millisecond + 1}) }, "longer than the driver's maximum"},
		"old twice":            {restore(GPUPair{a, b}, GPUPair{a, c}), "GPU pair 1: GPU-01000000-0000-0000-0000-000000000000 is already the source of another pair"},
		"new twice":            {restore(GPUPair{a, c}, GPUPair{b, c}), "two captured GPUs cannot map to the same one"},
		"no old":               {restore(GPUPair{UUID{}, c}), "is missing a GPU on one side"},
		"no new":               {restore(GPUPair{c, UUID{}}), "is missing a GPU on one side"},
		"unknown feature":      {func() error { return d.Supports("teleportation") }, "unknown feature"},
		"relative root":        {func() error { _, err := Open(WithRoot("sim")); return err }, "not an absolute path"},
	} {
		t.Run(name, func(t *testing.T) {
			err := row.do()
			if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), row.says) {
				t.Errorf("%s: error %v, want an invalid argument that says %q", name, err, row.says)
			}
		})
	}
}

func TestSwapIsAMap(t *testing.T) {
	d := &Driver{version: 13000, api: completeAPI()}
	if _, err := d.checkPairs([]GPUPair{{UUID{1}, UUID{2}}, {UUID{2}, UUID{1}}}); err != nil {
		t.Error(err)
	}
}

// A timeout that is rounded to 0 would wait for ever.
func TestLockTimeoutInMilliseconds(t *testing.T) {
	forEver := context.Background()
	for timeout, want := range map[time.Duration]uint32{
		0:                                 0,
		1:                                 1,
		time.Millisecond:                  1,
		time.Millisecond + 1:              2,
		10 * time.Second:                  10_000,
		math.MaxUint32 * time.Millisecond: math.MaxUint32,
	} {
		t.Run(timeout.String(), func(t *testing.T) {
			if got := lockMillis(forEver, timeout); got != want {
				t.Errorf("timeout %v is %d ms, want %d", timeout, got, want)
			}
		})
	}
}

func TestLockTimeoutIsBoundedByTheDeadline(t *testing.T) {
	soon, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, timeout := range []time.Duration{0, time.Hour} {
		if got := lockMillis(soon, timeout); got == 0 || got > 60_000 || got < 1000 {
			t.Errorf("timeout %v under a deadline of 1m is %d ms, want a little less than 60000", timeout, got)
		}
	}
	if got := lockMillis(soon, 7*time.Millisecond); got != 7 {
		t.Errorf("timeout 7ms under a deadline of 1m is %d ms", got)
	}
	past, cancel := context.WithTimeout(context.Background(), -time.Second)
	defer cancel()
	if got := lockMillis(past, 0); got != 1 {
		t.Errorf("timeout past the deadline is %d ms, want 1", got)
	}
	far, cancel := context.WithTimeout(context.Background(), 1000*24*time.Hour)
	defer cancel()
	if got := lockMillis(far, 0); got != math.MaxUint32 {
		t.Errorf("a deadline beyond what can be counted is %d ms, want %d", got, uint32(math.MaxUint32))
	}
}

func TestOldDriverIsNamed(t *testing.T) {
	none := &Driver{root: "testdata/asleep", version: 12040}
	err := none.Process(1).Lock(context.Background(), LockOptions{})
	wantUnsupported(t, err, "the checkpoint API needs NVIDIA driver 570 or newer, this is driver 550.54.15 with CUDA 12.4")
	wantUnsupported(t, none.Supports(FeatureGPUPairs), "needs NVIDIA driver 580")

	noPairs := &Driver{root: "testdata/nowhere", version: 12080, api: completeAPI()}
	if err := noPairs.Supports(FeatureCheckpoint); err != nil {
		t.Error(err)
	}
	err = noPairs.Process(1).Restore(context.Background(), RestoreOptions{Pairs: []GPUPair{{UUID{1}, UUID{1}}}})
	wantUnsupported(t, err, "GPU pairs at restore needs NVIDIA driver 580 or newer, this is CUDA 12.8")

	oneMissing := completeAPI()
	oneMissing.restore = 0
	wantUnsupported(t, (&Driver{version: 13000, api: oneMissing}).Supports(FeatureCheckpoint), "570")
}

func wantUnsupported(t *testing.T, err error, says string) {
	t.Helper()
	if !errors.Is(err, ErrNotSupported) || !strings.Contains(err.Error(), says) {
		t.Errorf("error %v, want ErrNotSupported that says %q", err, says)
	}
	if _, ok := errors.AsType[*UnsupportedError](err); !ok {
		t.Errorf("error %v is a %T, want *UnsupportedError", err, err)
	}
}
