package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"cucriu/cudackpt"
	"cucriu/internal/kit/inject"
)

// A controller that can be killed is a process of its own: the test program again. It
// prints "ready" when it has loaded the driver, waits for a line, makes one call, and
// prints the result.

// controller is such a process.
type controller struct {
	cmd   *exec.Cmd
	gate  io.Writer
	lines chan string // its output; closed when it ends
}

// newController starts a controller and waits until it is ready for a call. With trace, it
// first lets the restore thread of the stopped target run.
func (b *bench) newController(c call, pid int, trace bool) (*controller, error) {
	var args *arguments
	if c.args != nil {
		args = c.args()
	}
	cmd := b.host.Command(b.self, b.driver.Library(), strconv.Itoa(int(c.op)), strconv.Itoa(pid), args.String(), strconv.FormatBool(trace))
	cmd.Env = append(cmd.Env, roleVariable+"="+roleController)
	cmd.Stderr = os.Stderr
	gate, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := b.spawner.start(cmd); err != nil {
		return nil, err
	}
	k := &controller{cmd: cmd, gate: gate, lines: make(chan string, 8)}
	go func() {
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			k.lines <- scanner.Text()
		}
		_ = cmd.Wait()
		close(k.lines)
	}()
	b.undo = append(b.undo, func() { _ = cmd.Process.Kill() })
	line, err := k.says(patience)
	if err == nil && line != "ready" {
		err = errors.New("controller: " + line)
	}
	b.calm(c, pid)
	return k, err
}

// proceed lets the controller make its call.
func (k *controller) proceed() error {
	_, err := io.WriteString(k.gate, "\n")
	return err
}

var errSilent = errors.New("the controller says nothing")

// says returns the next line that the controller prints.
func (k *controller) says(within time.Duration) (string, error) {
	heard := func(line string, ok bool) (string, error) {
		if !ok {
			return "", errors.New("the controller has ended")
		}
		return line, nil
	}
	select {
	case line, ok := <-k.lines:
		return heard(line, ok)
	default: // if both were ready, select would choose at random
	}
	select {
	case line, ok := <-k.lines:
		return heard(line, ok)
	case <-time.After(within):
		return "", errSilent
	}
}

// answer returns the result of its call.
func (k *controller) answer(within time.Duration) (a answer, err error) {
	line, err := k.says(within)
	if err != nil {
		return a, err
	}
	var result uint32
	var micros int64
	if _, err := fmt.Sscanf(line, "%d %d %d", &result, &a.out, &micros); err != nil {
		return a, errors.New("controller: " + line)
	}
	a.result, a.took = cudackpt.Result(result), time.Duration(micros)*time.Microsecond
	return a, nil
}

// kill kills the controller. It fails if the call was already over.
func (k *controller) kill() error {
	line, err := k.says(0)
	_ = k.cmd.Process.Kill()
	if !errors.Is(err, errSilent) {
		return fmt.Errorf("not in the middle of its call: %s%v", line, err)
	}
	for range k.lines { // until it is gone
	}
	return nil
}

// runController is the program of a controller.
func runController(args []string) error {
	if len(args) != 5 {
		return fmt.Errorf("controller: %d arguments", len(args))
	}
	calls, err := openCalls(args[0])
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	arguments, err := parseArguments(args[3])
	if err != nil {
		return err
	}
	// The first call of a process is slow. This one does not block.
	_, tid := calls.call(opThread, int32(pid), nil, nil)
	tracer := inject.NewTracer()
	if args[4] == "true" {
		if err := tracer.Run(int(tid)); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	begun := time.Now()
	result, out := calls.call(op(number), int32(pid), arguments, nil)
	took := time.Since(begun)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := tracer.Release(ctx); err != nil {
		return err
	}
	fmt.Println(uint32(result), out, took.Microseconds())
	return nil
}
