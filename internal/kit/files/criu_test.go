package files

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// TestCriuRestoresAJobWhoseFilesWerePutBack proves with real criu that a restore fails with
// newer files, and succeeds once they were put back.
func TestCriuRestoresAJobWhoseFilesWerePutBack(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		top := tempDir(t)
		dir, shm, images := filepath.Join(top, "data"), filepath.Join(top, "shm"), filepath.Join(top, "images")
		must(t, errors.Join(os.Mkdir(dir, 0o755), os.Mkdir(shm, 0o755), os.Mkdir(images, 0o700)))
		at := func(base string) string { return filepath.Join(dir, base) }
		page := strings.Repeat("x", os.Getpagesize())
		for _, path := range []string{at("state"), at("mapped"), at("log"), at("gone"), filepath.Join(shm, "shared")} {
			write(t, path, page)
		}
		shared := jobFile(filepath.Join(shm, "shared"), unix.O_RDWR)
		shared.Map, shared.Share = unix.PROT_READ|unix.PROT_WRITE, true
		mapped := jobFile(at("mapped"), unix.O_RDWR)
		mapped.Map, mapped.Share, mapped.Close = unix.PROT_READ|unix.PROT_WRITE, true, true
		job := startDetached(t, top, jobFile(at("state"), unix.O_RDWR), mapped, jobFile(at("log"), unix.O_RDWR|unix.O_APPEND), jobFile(at("gone"), unix.O_WRONLY), shared)

		root := job.Process.Pid
		checkpoint := save(t, root, Options{Shm: shm})
		_, err := criu(t, "dump", images, "-t", strconv.Itoa(root))
		must(t, err)
		_ = job.Wait() // its pid must be free
		for _, base := range []string{"state", "mapped", "log"} {
			write(t, at(base), page+"newer")
		}
		must(t, errors.Join(os.Chmod(at("state"), 0o600), os.Remove(at("gone")), os.RemoveAll(shm), os.Mkdir(shm, 0o755)))
		if log, err := criu(t, "restore", images, "-d"); err == nil || !strings.Contains(log, "has bad size") && !strings.Contains(log, "No such file") {
			t.Fatalf("criu is to refuse newer files: %v", err)
		}
		changes, err := PutBack(t.Context(), checkpoint, PutBackOptions{})
		must(t, err)
		if len(changes) != 4 {
			t.Errorf("%v", changes)
		}
		_, err = criu(t, "restore", images, "-d")
		must(t, err)
		must(t, unix.Kill(root, unix.SIGKILL))
	})
}

func criu(t *testing.T, verb, images string, args ...string) (said string, err error) {
	t.Helper()
	log := filepath.Join(images, verb+".log")
	args = append([]string{verb, "--no-default-config", "-D", images, "-o", log, "-v2"}, args...)
	cmd := exec.CommandContext(t.Context(), testenv.Criu(t), args...)
	out, err := cmd.CombinedOutput()
	text, _ := os.ReadFile(log)
	t.Logf("criu %s: %v\n%s%s", verb, err, out, text)
	return string(text), err
}

// startDetached starts a job that criu can dump: it has no pipes of the test.
func startDetached(t *testing.T, dir string, orders ...order) *exec.Cmd {
	t.Helper()
	ready := filepath.Join(dir, "ready")
	env, err := orderEnv(orders)
	must(t, err)
	program, err := os.Executable() // not its link in /proc, which leads to a mount outside
	must(t, err)
	cmd := exec.Command(program)
	cmd.Env = append(env, "READY="+ready)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	testenv.Eventually(t, testenv.Soon, "the job is ready", func() bool { return testenv.Exists(ready) })
	return cmd
}
