package programs

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cucriu/internal/testenv"
)

// The harness's own programs go on after so many of their steps only when the dump is over.
const (
	waitsAt  = 2 * midRun
	allSteps = 3 * midRun
)

// TestTheHarnessTellsOutcomesApart: it is proved on the simulated driver, with programs
// whose outcome is known.
func TestTheHarnessTellsOutcomesApart(t *testing.T) {
	if testenv.RealDriver() {
		t.Skip("needs the simulated driver")
	}
	bench := newBench(t)
	counting := func(more ...string) []string {
		script, err := filepath.Abs("testdata/counting.sh")
		if err != nil {
			t.Fatal(err)
		}
		work := testenv.Artefact(t, "make workload", "build", "workload", "cudawork")
		return append([]string{"/bin/bash", script, strconv.Itoa(waitsAt), strconv.Itoa(allSteps), mayEnd, work}, more...)
	}
	shell := func(script string) []string { return []string{"/bin/bash", "-c", script} }
	some := func(from, to int, what string) string {
		return fmt.Sprintf("for ((i = %d; i <= %d; i++)); do echo step $i %s; sleep 0.05; done; ", from, to, what)
	}
	steps := func(what string) string {
		return some(1, waitsAt, what) + "until [[ -e " + mayEnd + " ]]; do sleep 0.05; done; " + some(waitsAt+1, allSteps, what)
	}
	for _, test := range []struct {
		program
		says string // a part of why
	}{
		{program{name: "works", command: counting(), want: works}, ""},
		{program{name: "works, and compares itself", command: counting(), want: works, compares: true}, ""},
		{program{name: "works alone", command: shell(steps("same") + "echo done"), want: works, alone: true}, ""},
		{program{name: "works with a zombie", command: shell("sleep 0 & sleep 1; " + steps("same") + "echo done"), want: works}, ""},
		{program{name: "works without CUDA", command: shell(steps("same") + "echo done"), want: works}, ""},
		{program{name: "works under cucriu run", command: counting("--io-uring"), want: works, underRun: true}, ""},
		{program{name: "refused", command: counting("--io-uring"), want: refused, finding: "io-uring"}, "io-uring"},
		{program{name: "refused by the driver itself", command: counting("--managed"), want: failed}, "801"},
		{program{name: "ends after the restore", command: shell(steps("same")), want: lost}, fmt.Sprintf("step %d and is not done", allSteps)},
		{program{name: "computes something else", command: shell(steps("$$") + "echo done"), want: lost}, "undisturbed run"},
		{program{name: "ends before the dump", command: shell(some(1, 10, "same") + "exit 7"), want: lost}, "status 7"},
		{program{name: "leaves a process", command: shell("sleep 600 & " + steps("same") + "echo done"), want: lost}, "are left"},
		{program{name: "lacks a library", command: shell("echo not installed: zmq; exit 77"), want: notInstalled}, "zmq"},
		{program{name: "with a client", command: roleCommand(t, roleServer), client: roleCommand(t, roleClient), want: works}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.client != nil {
				testenv.NeedsTCP(t)
			}
			defer place(bench.programs)()
			m := measurement{program: test.program}
			bench.observe(t, test.program, &m)
			outcome, why := judge(m.evidence)
			if outcome != test.want || !strings.Contains(why, test.says) {
				t.Errorf("%s (%s), want %s (%s)\n%+v", outcome, why, test.want, test.says, m.evidence)
			}
			m.outcome, m.why = outcome, why
			fmt.Print(m.line())
		})
	}
}

// The test binary is a server and its client, too: each connection is opened once.
const (
	roleServer = "server"
	roleClient = "client"
)

// roleCommand starts this binary in a role.
func roleCommand(t *testing.T, role string) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"/usr/bin/env", roleVariable + "=" + role, self}
}

// serve answers each line with itself, and ends with its only connection. Until the dump is over it keeps
// one answer: see [ask].
func serve() error {
	var config net.ListenConfig
	config.SetMultipathTCP(false) // criu cannot dump it
	listener, err := config.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("listening", listener.Addr().(*net.TCPAddr).Port)
	connection, err := listener.Accept()
	if err != nil {
		return err
	}
	for lines, answered := bufio.NewScanner(connection), 0; lines.Scan(); answered++ {
		time.Sleep(50 * time.Millisecond)
		for answered == midRun && !exists(mayEnd) {
			time.Sleep(50 * time.Millisecond)
		}
		if _, err := fmt.Fprintln(connection, lines.Text()); err != nil {
			return err
		}
	}
	fmt.Println("done")
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// ask sends each line to the server at once when the one before is answered. So it always waits
// for an answer when the server is dumped: without iptables, what it sent later would be lost.
func ask(port string) error {
	connection, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	defer connection.Close()
	answers := bufio.NewReader(connection)
	for i := range allSteps {
		question := fmt.Sprintf("step %d\n", i)
		if _, err := connection.Write([]byte(question)); err != nil {
			return err
		}
		answer, err := answers.ReadString('\n')
		if err != nil || answer != question {
			return fmt.Errorf("%q is answered with %q: %w", question, answer, err)
		}
		fmt.Print(answer)
	}
	fmt.Println("done")
	return nil
}
