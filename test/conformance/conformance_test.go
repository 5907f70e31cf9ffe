package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"cucriu/internal/testenv"
)

// The roles in which the test program starts itself again.
const (
	roleVariable   = "CUCRIU_CONFORMANCE_ROLE"
	roleTarget     = "target"     // DEV MINORS COMMAND...: runs COMMAND so that it sees only these GPUs
	roleController = "controller" // see runController
	roleProgram    = "program"    // a CUDA program, see runProgram
)

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	var err error
	switch role {
	case "":
		testenv.Main(m)
		return
	case roleTarget:
		err = becomeTarget(os.Args[1:])
	case roleController:
		err = runController(os.Args[1:])
	case roleProgram:
		err = runProgram(os.Args[1:])
	default:
		err = errors.New("no such role")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
		os.Exit(3)
	}
	os.Exit(0)
}

// becomeTarget executes a target's program in its view of the GPUs.
func becomeTarget(args []string) error {
	if len(args) < 3 {
		return fmt.Errorf("%d arguments", len(args))
	}
	minors, err := parseMinors(args[1])
	if err != nil {
		return err
	}
	if err := enterView(args[0], minors); err != nil {
		return err
	}
	// Some die of SIGSEGV, as they should.
	if err := syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}); err != nil {
		return err
	}
	command := args[2:]
	self, err := os.Executable()
	if err != nil {
		return err
	}
	os.Unsetenv(roleVariable)
	if command[0] == self {
		os.Setenv(roleVariable, roleProgram)
	}
	return syscall.Exec(command[0], command, os.Environ())
}

// TestTheDriverIsAsTheTableSays checks the table, case after case. On the simulated driver parts of it are
// checked side by side, each on a host of its own, unless a document is to be written: they mostly wait.
func TestTheDriverIsAsTheTableSays(t *testing.T) {
	type part struct {
		name  string
		cases []testCase
	}
	parts := []part{{"entry", entryCases()}, {"memory", memoryCases()}, {"kinds", kindCases()}, {"peer", peerCases()}, {"map", mapCases()}}
	for _, c := range slices.Concat(stoppedCases(), hazardCases(), severalCases(), probeCases()) { // slow ones
		parts = append(parts, part{c.name, []testCase{c}})
	}
	if testenv.RealDriver() || os.Getenv(outVariable) != "" {
		var all []testCase
		for _, p := range parts {
			all = append(all, p.cases...)
		}
		check(t, all)
		return
	}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) { check(t, p.cases) })
		})
	}
}

// check checks these cases, one after the other.
func check(t *testing.T, cases []testCase) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it makes device nodes in mount namespaces of its own")
	}
	begun := time.Now()
	b := newBench(t)
	out := &report{}
	out.describe(b)
	out.begin()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { b.run(t, c, out) })
		out.write(t)
	}
	fmt.Printf("%s in %v\n", out.counts(), time.Since(begun).Round(time.Millisecond))
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{
		t: t, real: testenv.RealDriver(), spawner: newSpawner(), dir: t.TempDir(),
		cudawork: testenv.Artefact(t, "make workload", "build", "workload", "cudawork"),
	}
	var err error
	if b.self, err = os.Executable(); err != nil {
		t.Fatal(err)
	}
	// Targets have another working directory.
	if b.cudawork, err = filepath.Abs(b.cudawork); err != nil {
		t.Fatal(err)
	}
	if b.real {
		b.host, b.root = testenv.NewHost(t, 1), "/"
		// 1 GiB takes the driver long enough for the test to interrupt it.
		b.stagingMiB, b.slackMiB, b.eighthMiB = 1024, 512, 64
	} else {
		b.host = testenv.NewHost(t, 2, "--mib-per-gpu", "512", "--peer-limit-mib", "16")
		b.root = b.host.Dir
		b.stagingMiB, b.slackMiB, b.eighthMiB = 64, 32, 2
	}
	b.driver = b.host.Driver()
	if b.calls, err = openCalls(b.driver.Library()); err != nil {
		t.Fatal(err)
	}
	// Of the GPUs of this machine, those that this process sees.
	if b.gpus, err = b.driver.VisibleGPUs(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	if len(b.gpus) == 0 {
		t.Fatal("no GPU is visible")
	}
	b.gpus = b.gpus[:min(2, len(b.gpus))]
	return b
}
