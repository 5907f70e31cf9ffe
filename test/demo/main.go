// Command demo shows the main use from end to end: stock criu, with cucriu-hook as its
// action script, dumps a process that uses CUDA and restores it onto another GPU. It uses
// NVIDIA's driver if there is one, else the simulated driver.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/internal/journal"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "demo: error:", err)
		os.Exit(1)
	}
}

// demo holds the paths of the demo.
type demo struct {
	root string // of the repository
	dir  string // of this run
	criu string
	env  []string
}

func run() error {
	if os.Geteuid() != 0 {
		return errors.New("criu needs root: run make demo as root")
	}
	// criu cannot dump a job that inherited descriptors which our caller left open.
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return err
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	d := &demo{root: root, criu: os.Getenv("CUCRIU_TEST_CRIU")}
	if d.dir, err = os.MkdirTemp("", "cucriu-demo-"); err != nil {
		return err
	}
	defer os.RemoveAll(d.dir)
	driver, err := d.host()
	if err != nil {
		return err
	}
	fmt.Printf("driver   %s\n", driver)
	criu, err := exec.Command(d.criu, "--version").Output()
	if err != nil {
		return fmt.Errorf("criu: %w", err)
	}
	fmt.Printf("criu     %s (%s)\n\n", strings.TrimPrefix(strings.Split(string(criu), "\n")[0], "Version: "), d.criu)
	return d.job()
}

// host chooses the driver. If there is no real one, it makes a simulated host with two
// GPUs.
func (d *demo) host() (string, error) {
	d.env = append(os.Environ(), "CUCRIU_RUN_DIR="+filepath.Join(d.dir, "run"))
	if driver, err := cudackpt.Open(); err == nil {
		if gpus, err := driver.HostGPUs(); err == nil && len(gpus) > 0 {
			version, err := driver.DriverVersion()
			return fmt.Sprintf("NVIDIA %s, %d GPUs", version, len(gpus)), err
		}
	}
	out, err := exec.Command(filepath.Join(d.root, "build/cudasim/cudasim-run"),
		"--gpus", "2", "--root", filepath.Join(d.dir, "host"), "--", "/usr/bin/env", "-0").Output()
	if err != nil {
		return "", fmt.Errorf("make a simulated host: %w", err)
	}
	d.env = append(strings.Split(strings.TrimRight(string(out), "\x00"), "\x00"), "CUCRIU_RUN_DIR="+filepath.Join(d.dir, "run"))
	return "simulated (no NVIDIA driver on this machine), 2 GPUs", nil
}

// job starts a job, dumps it, restores it, and shows the result.
func (d *demo) job() error {
	work := filepath.Join(d.dir, "job")
	images := filepath.Join(d.dir, "images")
	for _, dir := range []string{work, images} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	job := d.command(filepath.Join(d.root, "build/workload/cudawork"), "--dir", work, "--mib", "256", "--spin", "stream-sync")
	job.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	job.Dir = "/"
	if err := job.Start(); err != nil {
		return err
	}
	defer unix.Kill(-job.Process.Pid, unix.SIGKILL)
	ended := make(chan error, 1)
	go func() { ended <- job.Wait() }()
	before, err := d.status(work, 100)
	if err != nil {
		return err
	}
	fmt.Printf("job      pid %d counts on %s, 256 MiB, one thread that only synchronizes\n", before.PID, before.gpu())
	fmt.Printf("         counter %d\n\n", before.Tick)

	if err := d.runCriu("dump", "-t", strconv.Itoa(before.PID), "-D", images, "-o", "dump.log", "-v4"); err != nil {
		return err
	}
	if err := <-ended; err == nil {
		return errors.New("the job ended by itself before it was dumped")
	}
	last, err := d.status(work, 0)
	if err != nil {
		return err
	}
	fmt.Printf("         the process is gone; its last counter is %d\n", last.Tick)
	if err := d.phases(journal.KindDump); err != nil {
		return err
	}

	if err := d.writeMap(); err != nil {
		return err
	}
	if err := d.runCriu("restore", "-d", "-D", images, "-o", "restore.log", "-v4"); err != nil {
		return err
	}
	after, err := d.status(work, last.Tick+100)
	if err != nil {
		return err
	}
	if err := d.phases(journal.KindRestore); err != nil {
		return err
	}
	if err := d.check(work); err != nil {
		return err
	}
	fmt.Printf("job      pid %d counts on %s\n", after.PID, after.gpu())
	fmt.Printf("         counter %d before the dump, %d after the restore; every word of its GPU memory is right\n", last.Tick, after.Tick)
	return nil
}

// writeMap makes the restore put the job onto the next GPU, if there is one.
func (d *demo) writeMap() error {
	out, err := d.command(filepath.Join(d.root, "bin/cucriu"), "gpus", "--json").Output()
	if err != nil {
		return fmt.Errorf("cucriu gpus: %w", err)
	}
	var gpus []json.RawMessage
	if err := json.Unmarshal(out, &gpus); err != nil {
		return err
	}
	if len(gpus) < 2 {
		fmt.Println("map      this machine has one GPU: the job comes back on the same")
		return nil
	}
	const yaml = "version: 1\ngpus:\n  map:\n  - {from: {index: 0}, to: {index: 1}}\n"
	path := filepath.Join(d.dir, "config.yaml")
	fmt.Printf("map      from GPU 0 to GPU 1; the rest is filled in\n")
	d.env = append(d.env, "CUCRIU_CONFIG="+path)
	return os.WriteFile(path, []byte(yaml), 0o600)
}

// runCriu runs criu with the hook and shows the command.
func (d *demo) runCriu(verb string, args ...string) error {
	args = append(append([]string{verb}, args...), "--action-script", filepath.Join(d.root, "bin/cucriu-hook"))
	fmt.Printf("$ criu %s\n", strings.Join(args, " "))
	start := time.Now()
	if out, err := d.command(d.criu, args...).CombinedOutput(); err != nil {
		log, _ := os.ReadFile(filepath.Join(d.dir, "images", verb+".log"))
		return fmt.Errorf("criu %s: %w\n%s%s", verb, err, out, log)
	}
	fmt.Printf("         done in %.3f s\n", time.Since(start).Seconds())
	return nil
}

// phases shows how the hook spent its time.
func (d *demo) phases(kind journal.Kind) error {
	sessions, err := journal.List(filepath.Join(d.dir, "run"))
	if err != nil {
		return err
	}
	for _, s := range sessions {
		if s.Kind != kind {
			continue
		}
		fmt.Printf("         hook: %v\n\n", s.Phases)
	}
	return nil
}

// status is what the job reports about itself.
type status struct {
	PID, Tick, Bad int
	GPUs           []struct{ UUID, PCI string }
}

func (s status) gpu() string { return s.GPUs[0].UUID }

// status waits until the job's counter has reached a number.
func (d *demo) status(work string, atLeast int) (status, error) {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		var s status
		data, err := os.ReadFile(filepath.Join(work, "status"))
		if err == nil && json.Unmarshal(data, &s) == nil && s.Tick >= atLeast && len(s.GPUs) > 0 {
			if s.Bad != 0 {
				return s, errors.New("the job finds its GPU memory changed")
			}
			return s, nil
		}
	}
	return status{}, fmt.Errorf("the job's counter does not reach %d", atLeast)
}

// check makes the job compare all its GPU memory with the expected content.
func (d *demo) check(work string) error {
	request := filepath.Join(work, "check")
	if err := os.WriteFile(request, nil, 0o600); err != nil {
		return err
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(request); err == nil {
			continue
		}
		var checked struct{ Bad, Words int }
		data, err := os.ReadFile(filepath.Join(work, "checked"))
		if err == nil {
			err = json.Unmarshal(data, &checked)
		}
		if err == nil && (checked.Bad != 0 || checked.Words == 0) {
			err = fmt.Errorf("GPU memory is not what it must be: %s", data)
		}
		return err
	}
	return errors.New("the job does not answer")
}

func (d *demo) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Env = d.env
	return cmd
}
