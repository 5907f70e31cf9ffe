// Package programs has tests that take programs, written as people write them, through
// cucriu dump and cucriu restore without one option, and tell what became of each: works,
// refused, or lost. The programs are in test/workload/programs and need GPUs; on the
// simulated driver the tests prove that the harness tells these apart.
package programs

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"cucriu/internal/testenv"
	"cucriu/internal/testenv/quick"
	"cucriu/internal/testenv/reaper"
)

// The tests run again below an init that reaps, all in one: see package reaper. Unlike those
// of other packages they print as they go, so that a run that is cut off shows what it has
// measured.
const (
	roleVariable = "CUCRIU_PROGRAMS_ROLE"
	roleInit     = "init"
	roleTest     = "test"
)

func TestMain(m *testing.M) {
	namespaces := os.Getenv("CUCRIU_TEST_NAMESPACES") != "off"
	switch os.Getenv(roleVariable) {
	case roleTest:
		if err := quick.Choose(); err != nil {
			panic(err)
		}
		// The programs wait most of the time. How many run at once, the tests decide.
		if err := flag.Set("test.parallel", "64"); err != nil {
			panic(err)
		}
		os.Exit(m.Run())
	case roleServer, roleClient:
		do := serve
		if len(os.Args) > 1 {
			do = func() error { return ask(os.Args[1]) }
		}
		if err := do(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case roleInit:
		os.Setenv(roleVariable, roleTest)
		status, err := reaper.Run(namespaces)
		if err != nil {
			fmt.Fprintln(os.Stderr, "test init:", err)
			status = 125
		}
		os.Exit(status)
	}
	runtime.LockOSThread() // the child is killed when the thread that started it ends
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), roleVariable+"="+roleInit)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = reaper.SysProcAttr(namespaces)
	if err := cmd.Run(); cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, "cannot run the tests below an init (they need root):", err)
		os.Exit(125)
	}
	os.Exit(cmd.ProcessState.ExitCode())
}

// TestPrograms is the table of programs in docs/limits.md.
func TestPrograms(t *testing.T) {
	if !testenv.RealDriver() {
		t.Skip("needs GPUs and the programs' libraries (make test-gpu)")
	}
	growMemory(t)
	bench := newBench(t)
	t.Cleanup(func() {
		if len(bench.report.rows) == 0 {
			t.Error("no program was measured: what does -test.run select?")
		}
	})
	t.Run("alone", func(t *testing.T) {
		for _, p := range table() {
			if p.alone {
				t.Run(p.name, func(t *testing.T) { bench.measure(t, p) })
			}
		}
	})
	t.Run("together", func(t *testing.T) {
		for _, p := range table() {
			if !p.alone {
				t.Run(p.name, func(t *testing.T) {
					t.Parallel()
					bench.measure(t, p)
				})
			}
		}
	})
}
