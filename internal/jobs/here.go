package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/proc"
)

// isOtherUsers reports whether the job runs as another user than this program.
func (s *core) isOtherUsers() bool {
	return s.user != nil && s.user.Credential.Uid != uint32(os.Geteuid())
}

// checkHere finds out at the start, and not at the first checkpoint, whether long jobs can run on
// this machine.
func checkHere(ctx context.Context, s *core) error {
	needed := []string{s.Dir} // by a resume of an adopted job; until then it runs where it was
	if !s.record.Adopted {
		needed = append(needed, s.Stage, s.hook.Config.RunDir, s.record.WorkDir, s.Criu)
	}
	for _, path := range needed {
		switch below := filepath.Clean(path) + "/"; {
		case strings.HasPrefix(below, shm+"/"):
			return fmt.Errorf("a job has a %s of its own, which hides %s: choose another location for it", shm, path)
		case s.PrivateTmp && strings.HasPrefix(below, tmp+"/"):
			return fmt.Errorf("--private-tmp hides %s: choose another location for it", path)
		}
	}
	if from := s.record.Image; from != nil && !s.runsOn {
		if err := from.refuseHidden(s.hook.Config.RunDir, s.Stage); err != nil {
			return &ImageError{from.Path, err}
		}
	}
	if err := checkStage(s); err != nil {
		return err
	}
	for _, tool := range []string{"unshare", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fault.Because(err, fmt.Sprintf("%s of util-linux was not found in PATH=%s", tool, os.Getenv("PATH")),
				"let PATH name its directory, such as /usr/bin, or install util-linux")
		}
	}
	status, err := proc.ReadStatus(os.Getpid())
	if err != nil {
		return err
	}
	if dir := sandbox.JobOf(1); status.Seccomp && dir != "" { // the filter is ours
		return runsInside("run", dir, "its job would be part of that")
	}
	if status.Seccomp {
		return errors.New("this program runs under a seccomp filter, under which criu cannot dump processes that have one: start the container with --security-opt seccomp=unconfined (Kubernetes: seccompProfile: {type: Unconfined})")
	}
	if s.isOtherUsers() {
		capabilities, err := proc.Capabilities()
		if err != nil {
			return err
		}
		if capabilities&(1<<unix.CAP_SYS_RESOURCE) == 0 {
			return errors.New("criu cannot dump another user's processes without CAP_SYS_RESOURCE, which this program lacks: add it to the container or service (--cap-add SYS_RESOURCE), or leave out --user")
		}
	}
	findings, err := checkpoint.CheckMachine(ctx, s.hook, s.Criu)
	if err != nil {
		return err
	}
	// A job need not use CUDA.
	findings = findings.Soften(preflight.FindingDriverMissing, preflight.FindingDriverOld)
	findings = s.hook.Judge(findings)
	if _, err := os.Stat("/proc/self/ns/time_for_children"); err != nil {
		s.say("this kernel has no time namespaces: the job's monotonic clock jumps when it resumes from a checkpoint")
	}
	return findings.Err()
}

// refuseHidden fails if the job cannot see a directory that it needs, because it has one of its own in its place.
func (from *origin) refuseHidden(runDir, stage string) error {
	for _, dir := range from.Private {
		if isBelow(resolve(runDir), dir) {
			hides := fmt.Sprintf("the job gets a copy of %s, which hides the run directory %s", dir, runDir)
			return fault.New(hides, "let the job write in a directory of its own, or set CUCRIU_RUN_DIR elsewhere")
		}
		if stage != "" && isBelow(resolve(stage), dir) {
			hides := fmt.Sprintf("the job gets a copy of %s, which hides %s", dir, stage)
			return fault.New(hides, "name another --stage")
		}
	}
	return nil
}
