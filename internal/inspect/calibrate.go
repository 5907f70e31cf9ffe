package inspect

import (
	"bufio"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/durable"
	"cucriu/internal/nvrm"
	"cucriu/internal/proc"
)

// calibration says whether the kernel module tells which processes share memory, as it was seen
// with two of our own. It holds for one driver, until the next boot.
type calibration struct {
	Driver  string `json:"driver"`
	BootID  string `json:"boot_id"`
	Failure string `json:"failure"` // empty: it does
}

const calibrationName = "calibration.json" // in the run directory

// readCalibration returns whether a driver was calibrated since this boot, and how that failed.
func readCalibration(runDir, version string) (ok bool, failure string) {
	var c calibration
	err := durable.ReadJSON(filepath.Join(runDir, calibrationName), &c)
	boot, bootErr := proc.BootID()
	switch {
	case errors.Is(err, fs.ErrNotExist) || bootErr != nil:
		return false, ""
	case err != nil:
		return false, err.Error()
	case c.Driver != version || c.BootID != boot:
		return false, ""
	}
	return c.Failure == "", c.Failure
}

// Calibrate lets two processes of our own allocate device memory, on the first GPU, and asks
// the kernel module about them before and after one of them imports the other's. It keeps the
// result. helper is the command that runs [Host.CalibrationHelper].
func (h Host) Calibrate(ctx context.Context, helper []string) (preflight.Finding, error) {
	driver, err := h.CheckpointDriver()
	if err != nil {
		return preflight.Finding{}, err
	}
	var c calibration
	if c.Driver, err = driver.DriverVersion(); err != nil {
		return preflight.Finding{}, err
	}
	if c.BootID, err = proc.BootID(); err != nil {
		return preflight.Finding{}, err
	}
	if c.Failure, err = calibrate(ctx, driver, helper); err != nil {
		return preflight.Finding{}, fmt.Errorf("calibrate: %w", err)
	}
	f := preflight.Fine(preflight.FindingSharing, "the kernel module of driver "+c.Driver+" reports which processes share device memory")
	if c.Failure != "" {
		f = preflight.Warning(preflight.FindingSharing, "the kernel module of driver "+c.Driver+" does not report which processes share device memory: "+c.Failure,
			"two processes with device memory are refused from now on, unless forced")
	}
	if err := os.MkdirAll(h.RunDir, 0o700); err != nil {
		return f, err
	}
	return f, durable.WriteJSON(filepath.Join(h.RunDir, calibrationName), c)
}

// calibrate says what the kernel module tells wrong; empty if nothing. It fails if there cannot be two
// processes that share memory.
func calibrate(ctx context.Context, driver *cudackpt.Driver, helper []string) (failure string, err error) {
	var pids, gaps []int
	var pair [2]*helperProcess
	var handle string
	for i := range pair {
		if pair[i], handle, err = startHelper(ctx, helper); err != nil {
			return "", err
		}
		defer pair[i].end()
		pids, gaps = append(pids, pair[i].Process.Pid), append(gaps, nvrm.ShortGap)
	}
	expect := func(sharing bool, what string) string {
		answer := nvrm.Ask(driver.Ioctl(), pids, gaps, nil)
		if answer.Err != nil {
			return answer.Err.Error()
		}
		found := slices.ContainsFunc(answer.Shares, func(s nvrm.Share) bool { return !s.Maybe && slices.Contains(pids, s.PID) })
		if found != sharing {
			return what
		}
		return ""
	}
	if failure := expect(false, "two processes that share nothing are reported to share memory"); failure != "" {
		return failure, nil
	}
	_, err = fmt.Fprintln(pair[0].in, handle) // of the second
	if err == nil {
		_, err = pair[0].line()
	}
	if err != nil {
		return "", err
	}
	return expect(true, "two processes that share memory are reported to share none"), nil
}

// helperProcess is one process of the pair.
type helperProcess struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// startHelper starts one, and returns the handle of its memory.
func startHelper(ctx context.Context, helper []string) (p *helperProcess, handle string, err error) {
	p = &helperProcess{Cmd: exec.CommandContext(ctx, helper[0], helper[1:]...)}
	out, err := p.StdoutPipe()
	if err == nil {
		p.in, err = p.StdinPipe()
	}
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		return nil, "", err
	}
	p.out = bufio.NewScanner(out)
	if handle, err = p.line(); err != nil {
		p.end()
	}
	return p, handle, err
}

func (p *helperProcess) line() (string, error) {
	if !p.out.Scan() {
		return "", cmp.Or(p.out.Err(), errors.New("a helper process ended"))
	}
	if failure, failed := strings.CutPrefix(p.out.Text(), "error: "); failed {
		return "", errors.New(failure)
	}
	return p.out.Text(), nil
}

func (p *helperProcess) end() {
	_ = p.Process.Kill()
	_ = p.Wait()
}

// CalibrationHelper allocates device memory, prints its handle, and imports that of which it
// reads a handle. It waits until its input ends.
func (h Host) CalibrationHelper(in io.Reader, out io.Writer) error {
	runtime.LockOSThread()
	driver, err := h.CheckpointDriver()
	var handle cudackpt.IPCHandle
	if err == nil {
		handle, err = driver.AllocateShared()
	}
	line := hex.EncodeToString(handle[:])
	for lines := bufio.NewScanner(in); ; {
		if err != nil {
			line = "error: " + err.Error()
		}
		fmt.Fprintln(out, line)
		if !lines.Scan() {
			return lines.Err()
		}
		line = "imported"
		if _, err = hex.Decode(handle[:], lines.Bytes()); err == nil {
			err = driver.Import(handle)
		}
	}
}
