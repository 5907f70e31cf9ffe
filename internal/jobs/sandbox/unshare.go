package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/netns"
	"cucriu/internal/kit/self"
)

// The hidden commands of the program that makes sandboxes.
const (
	CommandUnshare = "sandbox-unshare"
	CommandInit    = "sandbox-init"
)

// readyFD is the descriptor by which init says that the sandbox is ready, and goFD the one by which
// it hears that the sandbox is on record. If nobody says so, init ends: a sandbox that nobody can find
// would run a second copy of the job one day.
const (
	readyFD = 3
	goFD    = 4
)

// timePrecision is that of the start times of processes in /proc. Offsets that are multiples of
// it shift all start times alike.
const timePrecision = 10 * time.Millisecond

// Unshare makes the time namespace of a sandbox and becomes the program that makes the others. It
// returns only errors. It must be called on the main thread: the clocks can be set only there.
func Unshare(dir string) error {
	spec, err := specKind.Read(dir)
	if err != nil {
		return err
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return fmt.Errorf("unshare(1) of util-linux: %w", err)
	}
	if err := unshareTime(spec.Clocks); err != nil {
		return err
	}
	if spec.Network != "" {
		if err := netns.Join(spec.Network); err != nil {
			return err
		}
	}
	// What our caller has inherited, such as a lock, is not to be held as long as the job runs.
	if err := unix.CloseRange(goFD+1, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close inherited descriptors: %w", err)
	}
	path, err := self.Open()
	if err != nil {
		return err
	}
	// What the host mounts later is mounted for the job, too: an automounter's trap leads nowhere without it.
	args := []string{"unshare", "--pid", "--mount", "--fork", "--propagation", "slave"}
	if spec.OwnNetwork {
		args = append(args, "--net")
	}
	args = append(args, "--", path, CommandInit, dir)
	return fmt.Errorf("%s: %w", unshare, unix.Exec(unshare, args, os.Environ()))
}

func unshareTime(want *Clocks) error {
	if _, err := os.Stat("/proc/self/ns/time_for_children"); errors.Is(err, fs.ErrNotExist) {
		return nil // the kernel has none, which the supervisor says
	}
	if unix.Gettid() != unix.Getpid() {
		return errors.New("the clocks can be set on the main thread only")
	}
	if err := unix.Unshare(unix.CLONE_NEWTIME); err != nil {
		return fmt.Errorf("make a time namespace: %w", err)
	}
	if want == nil {
		return nil
	}
	// The offsets are to the clocks of the initial namespace, and ours may be shifted already.
	base, err := readOffsets()
	if err != nil {
		return err
	}
	now, err := ReadClocks()
	if err != nil {
		return err
	}
	offset := func(base, want, now time.Duration) string {
		d := (base + want - now).Round(timePrecision)
		seconds := d / time.Second
		if d%time.Second < 0 {
			seconds--
		}
		return fmt.Sprintf("%d %d", seconds, d-seconds*time.Second)
	}
	text := "monotonic " + offset(base.Monotonic, want.Monotonic, now.Monotonic) + "\n" +
		"boottime " + offset(base.Boottime, want.Boottime, now.Boottime) + "\n"
	if err := os.WriteFile(offsetsFile, []byte(text), 0); err != nil {
		return fmt.Errorf("set the clocks: %w", err)
	}
	return nil
}

const offsetsFile = "/proc/self/timens_offsets"

// readOffsets reads how far the clocks for our children are shifted.
func readOffsets() (Clocks, error) {
	file, err := os.Open(offsetsFile)
	if err != nil {
		return Clocks{}, fmt.Errorf("clocks: %w", err)
	}
	defer file.Close()
	var c Clocks
	for range 2 {
		var name string
		var seconds, nanoseconds int64
		if _, err := fmt.Fscan(file, &name, &seconds, &nanoseconds); err != nil {
			return Clocks{}, fmt.Errorf("clocks: %s: %w", offsetsFile, err)
		}
		d := time.Duration(seconds)*time.Second + time.Duration(nanoseconds)
		switch name {
		case "monotonic":
			c.Monotonic = d
		case "boottime":
			c.Boottime = d
		}
	}
	return c, nil
}
