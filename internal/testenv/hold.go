package testenv

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
)

// HeldDump is a criu dump that waits at a stage, after our hook has run.
type HeldDump struct {
	Images string

	t    testing.TB
	criu *exec.Cmd
	goOn string
}

// HoldDump begins a dump that waits at one of criu's stages, such as pre-dump.
func HoldDump(t testing.TB, host *Host, job *Job, stage string) *HeldDump {
	t.Helper()
	dir := t.TempDir()
	d := &HeldDump{t: t, Images: t.TempDir(), goOn: filepath.Join(dir, "go-on")}
	at := filepath.Join(dir, "at")
	wait := Script(t, fmt.Sprintf(`[ "$CRTOOLS_SCRIPT_ACTION" = %s ] || exit 0; touch %s; until [ -e %s ]; do sleep 0.05; done`, stage, at, d.goOn))
	// criu runs the last script first.
	d.criu = host.CriuCommandScripts("dump", d.Images, []string{wait, host.HookBin}, "-t", job.Root())
	if err := d.criu.Start(); err != nil {
		t.Fatal(err)
	}
	Eventually(t, Soon, "criu is at "+stage, func() bool { return Exists(at) })
	return d
}

// PID returns the pid of criu.
func (d *HeldDump) PID() int { return d.criu.Process.Pid }

// End lets the dump go on, and waits for its end.
func (d *HeldDump) End() error {
	d.t.Helper()
	WriteFile(d.t, d.goOn, "")
	return d.criu.Wait()
}
