package scripts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"cucriu/internal/testenv"
)

func TestOnlyTheStandardDescriptorsAreHandedOn(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, name := range []string{"clean-exec.sh", "private-exec.sh"} {
		t.Run(name, func(t *testing.T) {
			// A shell's own: it opens nothing to expand a pattern.
			cmd := script(t, name, "sh", "-c", `for fd in 3 4 5 6 7 8 9 10 11; do [ ! -e /proc/$$/fd/$fd ] || readlink /proc/$$/fd/$fd; done`)
			cmd.ExtraFiles = []*os.File{null, null, null, null, null, null, null, null, null}
			if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("it is handed %s (%v)", out, err)
			}
		})
	}
}

func TestNothingOfTheHostsConfigurationIsSeen(t *testing.T) {
	home := t.TempDir()
	// A host of our own, whose /etc and /run are set up against us.
	host := script(t, "clean-exec.sh", "unshare", "--mount", "bash", "-euc", `
mount -t tmpfs tmpfs /etc
mount -t tmpfs tmpfs /run
for file in /etc/criu/default.conf /etc/criu/runc.conf /etc/cucriu/config.yaml /run/cucriu/session "$HOME/.criu/default.conf" /dev/shm/segment; do
	mkdir -p "${file%/*}"
	echo hostile >"$file"
done
export CRIU_CONFIG_FILE=/etc/criu/default.conf CUCRIU_CONFIG=/etc/cucriu/config.yaml CUCRIU_RUN_DIR=/run/cucriu
./private-exec.sh bash -euc '
	find /etc/criu /etc/cucriu /run/cucriu "$HOME/.criu" /dev/shm -type f
	echo "${CRIU_CONFIG_FILE-}${CUCRIU_CONFIG-}"
	touch /etc/criu/ours /run/cucriu/ours /dev/shm/ours
	[[ $CUCRIU_RUN_DIR != /run/cucriu ]]
'
find /etc/criu /run/cucriu /dev/shm -name ours
rm /dev/shm/segment
cat /etc/criu/default.conf`)
	host.Env = append(os.Environ(), "HOME="+home)
	out, err := host.CombinedOutput()
	if err != nil || string(out) != "\nhostile\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestTheTemporaryDirectoryIsItsOwnAndGoesWithIt(t *testing.T) {
	for name, test := range map[string]struct {
		ending string
		status int
	}{
		"success":    {"exit 0", 0},
		"failure":    {"exit 7", 7},
		"killed":     {"kill -KILL $$", -1},
		"terminated": {"kill -TERM $$", -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			cmd := script(t, "private-exec.sh", "sh", "-c", `touch "$TMPDIR/file"; stat -c '%a %n' "$TMPDIR"; `+test.ending)
			cmd.Env = append(os.Environ(), "TMPDIR="+parent)
			out, err := cmd.Output()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) || cmd.ProcessState.ExitCode() != test.status {
				t.Errorf("%v, want exit status %d", err, test.status)
			}
			mode, dir, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
			if mode != "1777" || !strings.HasPrefix(dir, parent+"/") {
				t.Errorf("its temporary directory is %q of mode %s, want one below %s that all can use", dir, mode, parent)
			}
			testenv.Eventually(t, testenv.Soon, "its temporary directory is gone", func() bool {
				left, err := os.ReadDir(parent)
				return err == nil && len(left) == 0
			})
		})
	}
}

func TestASignalReachesTheCommandItself(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	cmd := script(t, "private-exec.sh", "bash", "-c", `trap 'exit 42' TERM; touch "$0"; while :; do sleep 0.01; done`, ready)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, testenv.Soon, "the command runs", func() bool { return testenv.Exists(ready) })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 42 {
		t.Errorf("it ended with %v, want exit status 42", cmd.ProcessState)
	}
}

func TestWithoutTheRightToAMountNamespaceItSaysSo(t *testing.T) {
	for name, without := range map[string][]string{
		"another user":               {"--reuid=12345", "--clear-groups"},
		"root without CAP_SYS_ADMIN": {"--bounding-set=-sys_admin"},
	} {
		t.Run(name, func(t *testing.T) {
			// Where that user can read it.
			dir := t.TempDir()
			if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.CopyFS(filepath.Join(dir, "scripts"), os.DirFS("."))); err != nil {
				t.Fatal(err)
			}
			said, err := exec.Command("setpriv", append(without, filepath.Join(dir, "scripts/private-exec.sh"), "echo", "it runs")...).CombinedOutput()
			if err == nil || strings.Contains(string(said), "it runs") {
				t.Fatalf("it runs the command all the same:\n%s", said)
			}
			for _, part := range []string{"cannot make a mount namespace", "Operation not permitted", "CAP_SYS_ADMIN"} {
				if !strings.Contains(string(said), part) {
					t.Errorf("it does not say %q:\n%s", part, said)
				}
			}
		})
	}
}
