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

	"cucriu/internal/testenv/quick"
)

const killVariable = "CUCRIU_STORE_KILL" // CHANGE DIR FROM STEP: a change of the store in DIR is killed there

func TestMain(m *testing.M) {
	if order := os.Getenv(killVariable); order != "" {
		if err := change(order); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := quick.Choose(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// change changes a store. It dies at a step, and prints how many there are.
func change(order string) error {
	var what, dir, from string
	var last int
	if _, err := fmt.Sscan(order, &what, &dir, &from, &last); err != nil {
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
	if what == "import" {
		err = importAll(s, from)
	} else {
		err = publishAndPrune(s, from)
	}
	fmt.Println(steps)
	return errors.Join(err, s.Close())
}

// publishAndPrune publishes a checkpoint and prunes the older ones.
func publishAndPrune(s *Store, staged string) error {
	stage, err := s.StageDir(filepath.Dir(staged), nil)
	if err != nil {
		return err
	}
	all, err := s.Checkpoints()
	if err != nil {
		return err
	}
	c, err := s.Publish(context.Background(), staged, all[0].Info)
	if err != nil {
		return err
	}
	if err := s.Verify(context.Background(), c, 1, nil); err != nil {
		return err
	}
	if _, err := s.Prune(context.Background(), Policy{Keep: 1}); err != nil {
		return err
	}
	return s.RemoveStage(stage)
}

// importAll imports what another store lists.
func importAll(s *Store, from string) error {
	other, err := View(from)
	if err != nil {
		return err
	}
	listed, err := other.List(all)
	if err != nil {
		return err
	}
	arriving, err := os.MkdirTemp(s.dir, ".arriving-*")
	if err != nil {
		return err
	}
	for _, l := range listed {
		arrived := func(number int) string {
			name := filepath.Join(arriving, l.Name+"-"+strconv.Itoa(number))
			err = errors.Join(err, os.Link(filepath.Join(other.checkpointDir(l.Name), l.Files[number].Name), name))
			return name
		}
		err = errors.Join(s.Import(context.Background(), l, arrived), err)
	}
	return errors.Join(err, os.RemoveAll(arriving))
}

// changeKilledAt has another process change a store, and reports whether it was killed, or how many steps the
// change has.
func changeKilledAt(t *testing.T, what, dir, from string, last int) (killed bool, steps int) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s %d", killVariable, what, dir, from, last))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL {
		return true, 0
	}
	must(t, err)
	steps, err = strconv.Atoi(strings.TrimSpace(string(out)))
	must(t, err)
	return false, steps
}

// killAtEachStep has run make a change that is killed at each of its steps, of which there are so many at
// least, and checks the store once the leftovers are removed. run kills at no step 0.
func killAtEachStep(t *testing.T, least int, run func(t *testing.T, last int) (dir string, killed bool, steps int), check func(t *testing.T, s *Store)) {
	t.Helper()
	_, killed, steps := run(t, 0)
	if killed || steps < least {
		t.Fatalf("%d steps, killed %t", steps, killed)
	}
	for last := 1; last <= steps; last++ {
		t.Run(strconv.Itoa(last), func(t *testing.T) {
			dir, killed, _ := run(t, last)
			if !killed {
				t.Fatal("it was not killed")
			}
			s := openStore(t, dir)
			if _, err := s.RemoveLeftovers(); err != nil {
				t.Fatal(err)
			}
			check(t, s)
		})
	}
}

// TestAKilledChangeHarmsNothing kills a publication and a pruning at every step. Afterwards
// every checkpoint that is listed is whole, and nothing else is left.
func TestAKilledChangeHarmsNothing(t *testing.T) {
	base := onTmpfs(t, "size=512m")
	cpu := newProcess("9", 9, 1, 2)
	staged := stageImage(t, filepath.Join(base, "image"), 3, changed(newMemory(2, 4), 3, 1))
	stageMemory(t, staged, cpu.with(9, 3))
	run := func(t *testing.T, last int) (dir string, killed bool, steps int) {
		dir = filepath.Join(base, fmt.Sprint("job", last))
		s := openStore(t, dir)
		publish(t, s, 1, newMemory(1, 4), cpu)
		must(t, s.Verify(t.Context(), publish(t, s, 2, newMemory(2, 4), cpu.with(9, 5)), 1, nil))
		must(t, s.Close())
		killed, steps = changeKilledAt(t, "publish", dir, staged, last)
		return dir, killed, steps
	}
	killAtEachStep(t, 16, run, func(t *testing.T, s *Store) {
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

// TestAKilledImportIsWholeOrAbsent kills at every step an import of two checkpoints, of which one replaces
// another of the same name. Afterwards each is an old one, the new one, or absent, and can be imported.
func TestAKilledImportIsWholeOrAbsent(t *testing.T) {
	base := onTmpfs(t, "size=512m")
	source := openStore(t, filepath.Join(base, "source"))
	publish(t, source, 1, newMemory(1, 4))
	publish(t, source, 2, newMemory(2, 4))
	want := names(list(t, source))
	run := func(t *testing.T, last int) (dir string, killed bool, steps int) {
		dir = filepath.Join(base, fmt.Sprint("job", last))
		s := openStore(t, dir)
		publish(t, s, 3, newMemory(3, 4))
		must(t, s.Close())
		killed, steps = changeKilledAt(t, "import", dir, source.dir, last)
		return dir, killed, steps
	}
	killAtEachStep(t, 7, run, func(t *testing.T, s *Store) {
		wantWhole(t, s, names(list(t, s)))
		if _, err := s.List(all); err != nil {
			t.Fatal(err)
		}
		must(t, importAll(s, source.dir))
		wantWhole(t, s, want)
		for i, c := range list(t, s) {
			if c.sum != list(t, source)[i].sum {
				t.Errorf("checkpoint %s is not the source's", c.Name)
			}
		}
		entries, err := os.ReadDir(s.path(CheckpointsDir))
		must(t, err)
		if len(entries) != 2 {
			t.Errorf("left over: %v", entries)
		}
	})
}
