package soak

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// result is the outcome of a command that has ended.
type result struct {
	deed, program string
	err           error
	output        string // the file with its output
	log           string // criu's, if we started it
}

func (r result) said() string {
	output, _ := os.ReadFile(r.output)
	log, _ := os.ReadFile(r.log)
	return string(output) + testenv.CriuRun{Log: string(log)}.Lines()
}

// stacks is the end of what was said, all of it.
func (r result) stacks() string {
	output, _ := os.ReadFile(r.output)
	log, _ := os.ReadFile(r.log)
	all := string(output) + string(log)
	return all[max(0, len(all)-8000):]
}

func (r result) String() string {
	return fmt.Sprintf("%s by %s (%v):\n%s", r.deed, r.program, r.err, r.said())
}

// do runs a command to its end. If it hangs, the test fails.
func (j *job) do(t *testing.T, deed, program string, args ...string) result {
	t.Helper()
	host := j.host.For(t)
	cmd := host.CucriuCommand(args...)
	r := result{deed: deed, program: program}
	if program == "criu" {
		cmd = host.Command(testenv.Criu(t), args...)
		dir := args[slices.Index(args, "-D")+1]
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		r.log = filepath.Join(dir, args[0]+".log")
	}
	// A file, because its children may keep the output open for longer than it runs.
	output, err := os.CreateTemp(j.dir, "output-")
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	r.output = output.Name()
	cmd.Stdout, cmd.Stderr = output, output
	j.note("%s: %s by %s", j.name, deed, program)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	hung := time.AfterFunc(3*testenv.Soon, func() {
		testenv.ShowThreads(t)
		for _, pid := range slices.Concat(testenv.Running("cucriu-hook"), testenv.Running("cucriu")) {
			_ = unix.Kill(pid, unix.SIGQUIT) // the logs then show what their goroutines wait for
		}
		time.Sleep(time.Second)
		t.Errorf("job %s: %s by %s hangs\n%s\n%s", j.name, deed, program, r.stacks(), j.journals())
		_ = cmd.Process.Kill()
	})
	r.err = cmd.Wait()
	hung.Stop()
	said := r.said()
	if len(said) > 1000 {
		said = said[len(said)-1000:]
	}
	j.note("%s: %s by %s: %v\n%s", j.name, deed, program, r.err, said)
	return r
}
