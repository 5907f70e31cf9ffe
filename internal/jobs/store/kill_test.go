package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const killVariable = "CUCRIU_STORE_KILL" // DIR STAGED STEP: a change of the store is killed there

func TestMain(m *testing.M) {
	if order := os.Getenv(killVariable); order != "" {
		if err := change(order); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// change publishes a checkpoint and prunes the older ones. It dies at a step, and prints how
// many there are.
func change(order string) error {
	var dir, staged string
	var last int
	if _, err := fmt.Sscan(order, &dir, &staged, &last); err != nil {
		return err
	}
	s, err := Open(dir, OpenOptions{})
	if err != nil {
		return err
	}
	steps := 0
	s.interrupt = func(string) error {
		if steps++; steps == last {
			return unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		return nil
	}
	stage, err := s.StageDir(filepath.Dir(staged), nil)
	if err != nil {
		return err
	}
	var info Info
	all, err := s.Checkpoints()
	if err != nil {
		return err
	}
	info = all[0].Info
	c, err := s.Publish(context.Background(), staged, info)
	if err != nil {
		return err
	}
	if err := s.Verify(context.Background(), c, 1, nil); err != nil {
		return err
	}
	if _, err := s.Prune(context.Background(), Policy{Keep: 1}); err != nil {
		return err
	}
	fmt.Println(steps)
	return errors.Join(s.RemoveStage(stage), s.Close())
}

// TestAKilledChangeHarmsNothing kills a publication and a pruning at every step. Afterwards
// every checkpoint that is listed is whole, and nothing else is left.
func TestAKilledChangeHarmsNothing(t *testing.T) {
	base := onTmpfs(t, "size=512m")
	cpu := newProcess("9", 9, 1, 2)
	staged := stageImage(t, filepath.Join(base, "image"), 3, changed(newMemory(2, 4), 3, 1))
	stageMemory(t, staged, cpu.with(9, 3))
	steps := 0
	run := func(t *testing.T, last int) (dir string, killed bool) {
		dir = filepath.Join(base, fmt.Sprint("job", last))
		s := openStore(t, dir)
		publish(t, s, 1, newMemory(1, 4), cpu)
		must(t, s.Verify(t.Context(), publish(t, s, 2, newMemory(2, 4), cpu.with(9, 5)), 1, nil))
		must(t, s.Close())
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d", killVariable, dir, staged, last))
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL {
			return dir, true
		}
		must(t, err)
		steps, err = strconv.Atoi(strings.TrimSpace(string(out)))
		must(t, err)
		return dir, false
	}
	if _, killed := run(t, 0); killed || steps < 16 {
		t.Fatalf("%d steps, killed %t", steps, killed)
	}
	for last := 1; last <= steps; last++ {
		t.Run(strconv.Itoa(last), func(t *testing.T) {
			dir, killed := run(t, last)
			if !killed {
				t.Fatal("it was not killed")
			}
			s := openStore(t, dir)
			if _, err := s.RemoveLeftovers(); err != nil {
				t.Fatal(err)
			}
			all := list(t, s)
			switch got := names(all); got {
			case "000001 000002", "000001 000002 000003", "000002 000003", "000003":
				wantWhole(t, s, got)
			default:
				t.Errorf("checkpoints %q", got)
			}
			entries, err := os.ReadDir(s.path(CheckpointsDir))
			must(t, err)
			left, err := filepath.Glob(filepath.Join(base, stagePrefix+"*"))
			must(t, err)
			records, err := os.ReadDir(s.path(stagedDir))
			must(t, err)
			if len(entries) != len(all) || len(left) > 0 || len(records) > 0 {
				t.Errorf("left over: %v, %v, %v", entries, left, records)
			}
			if c := publish(t, s, 4, newMemory(4, 2), cpu.with(9, 6)); c.Shared < 2<<20 {
				t.Errorf("%d bytes are shared afterwards", c.Shared)
			}
		})
	}
}
