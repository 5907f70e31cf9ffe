package preflight

import (
	"bufio"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
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

	"github.com/google/renameio/v2"

	"cucriu/cudackpt"
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
	data, err := os.ReadFile(filepath.Join(runDir, calibrationName))
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
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
// result. helper is the command that runs [CalibrationHelper].
func (h Host) Calibrate(ctx context.Context, helper []string) (Finding, error) {
	driver, err := h.CheckpointDriver()
	if err != nil {
		return Finding{}, err
	}
	version, err := driver.DriverVersion()
	if err != nil {
		return Finding{}, err
	}
	told := calibrate(ctx, driver, helper)
	var unable *helperError
	if errors.As(told, &unable) {
		return Finding{}, told // nothing was learnt
	}
	c := calibration{Driver: version}
	f := fine(FindingSharing, "the kernel module of driver "+version+" tells which processes share device memory")
	if told != nil {
		c.Failure = told.Error()
		f = warn(FindingSharing, "the kernel module of driver "+version+" does not tell which processes share device memory: "+c.Failure,
			"two processes with device memory are refused from now on, until they are forced")
	}
	if c.BootID, err = proc.BootID(); err != nil {
		return Finding{}, err
	}
	data, err := json.Marshal(c)
	if err == nil {
		err = os.MkdirAll(h.RunDir, 0o700)
	}
	if err == nil {
		err = renameio.WriteFile(filepath.Join(h.RunDir, calibrationName), data, 0o600, renameio.WithTempDir(h.RunDir))
	}
	return f, err
}

// helperError says that the processes could not be had.
type helperError struct{ error }

// calibrate fails if the kernel module tells something wrong.
func calibrate(ctx context.Context, driver *cudackpt.Driver, helper []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var pair [2]*helperProcess
	for i := range pair {
		var err error
		if pair[i], err = startHelper(ctx, helper); err != nil {
			return &helperError{fmt.Errorf("calibrate: %w", err)}
		}
		defer pair[i].end(cancel)
	}
	var handle string
	for _, p := range pair {
		var err error
		if handle, err = p.line(); err != nil {
			return &helperError{fmt.Errorf("calibrate: %w", err)}
		}
	}
	pids := []int{pair[0].cmd.Process.Pid, pair[1].cmd.Process.Pid}
	share := func() (bool, error) {
		answer := nvrm.Ask(driver.Ioctl(), pids, []int{nvrm.ShortGap, nvrm.ShortGap}, nil)
		return slices.ContainsFunc(answer.Shares, func(s nvrm.Share) bool { return !s.Maybe && slices.Contains(pids, s.PID) }), answer.Err
	}
	if shared, err := share(); err != nil || shared {
		return cmp.Or(err, errors.New("two processes that share nothing are said to share memory"))
	}
	_, err := fmt.Fprintln(pair[0].in, handle) // of the second
	if err == nil {
		_, err = pair[0].line()
	}
	if err != nil {
		return &helperError{fmt.Errorf("calibrate: %w", err)}
	}
	if shared, err := share(); err != nil || !shared {
		return cmp.Or(err, errors.New("two processes that share memory are said to share none"))
	}
	return nil
}

// helperProcess is one process of the pair.
type helperProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startHelper(ctx context.Context, helper []string) (*helperProcess, error) {
	p := &helperProcess{cmd: exec.CommandContext(ctx, helper[0], helper[1:]...)}
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		p.in, err = p.cmd.StdinPipe()
	}
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewScanner(out)
	return p, p.cmd.Start()
}

// line reads what the process says next.
func (p *helperProcess) line() (string, error) {
	if !p.out.Scan() {
		return "", cmp.Or(p.out.Err(), errors.New("a helper process ended"))
	}
	if failure, failed := strings.CutPrefix(p.out.Text(), "error: "); failed {
		return "", errors.New(failure)
	}
	return p.out.Text(), nil
}

func (p *helperProcess) end(kill func()) {
	kill()
	_ = p.cmd.Wait()
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
