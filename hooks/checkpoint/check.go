package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"golang.org/x/sys/unix"

	"cucriu/hooks"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/twice"
)

// CheckMachine finds what on this machine is in the way of dumps and restores. criu is the path of the criu to
// use, empty for the system's.
func CheckMachine(ctx context.Context, hook *hooks.Hook, criu string) (preflight.Findings, error) {
	return session.Of(hook).Host().CheckMachine(ctx, criu)
}

// CheckDump finds the reasons for which [Dump] would refuse to dump the tree below root, and what else
// there is to say about it. It touches nothing. dir is the image directory, empty if it is not known;
// criu is the path of the criu that is to dump, empty for the system's.
func CheckDump(ctx context.Context, hook *hooks.Hook, root int, dir, criu string) (preflight.Findings, error) {
	env := session.Of(hook)
	findings, err := rootFindings(env, root)
	if err != nil {
		return nil, err
	}
	lookInside := findings.Err() == nil
	if dir != "" {
		findings = append(findings, inspect.DirectoryFindings(dir)...)
	}
	if !lookInside { // what else is found would only follow from it
		return findings, nil
	}
	host := env.Host()
	host.Criu = criu
	more, err := host.CheckJob(ctx, root, dir)
	if findings.Has(preflight.FindingSession) {
		// A dump waits until the session is over, and it is the reason for the state.
		more = slices.DeleteFunc(more, func(f preflight.Finding) bool { return f.Name == preflight.FindingCUDAState })
	}
	return slices.Concat(findings, inspect.ContainerFindings(root), more), err
}

// refuseDump refuses a dump before a criu is started for it.
func refuseDump(env *session.Env, root int, dir string) error {
	findings, err := rootFindings(env, root)
	if err != nil {
		return err
	}
	return env.Judge(slices.Concat(findings, inspect.DirectoryFindings(dir), inspect.ContainerFindings(root))).Err()
}

// CheckRoot refuses a pid that is not one of a process that could be dumped, whatever is in its tree.
func CheckRoot(hook *hooks.Hook, root int) error {
	env := session.Of(hook)
	findings, err := rootFindings(env, root)
	if err != nil {
		return err
	}
	return env.Judge(findings).Err()
}

// rootFindings finds what keeps the tree below root from being dumped, whatever is in it.
func rootFindings(env *session.Env, root int) (preflight.Findings, error) {
	findings, err := inspect.RootFindings(root)
	if err != nil || findings.Err() != nil {
		return explainGone(env.Config.RunDir, findings), err
	}
	return env.SessionFindings(root)
}

// explainGone has the finding about a process that does not exist say how it ended, if a session knows.
func explainGone(runDir string, findings preflight.Findings) preflight.Findings {
	if len(findings) == 0 || findings[0].Name != preflight.FindingNoProcess || findings[0].Process != "" {
		return findings
	}
	f := &findings[0]
	all, _ := journal.List(runDir) // without them it is still a process that does not exist
	for _, s := range slices.Backward(all) {
		status := statusOf(s)
		if s.Criu.Elsewhere() || status.RootPID != f.PID && !slices.Contains(status.PIDs(), f.PID) {
			continue
		}
		at := s.Created.Local().Format(time.DateTime)
		switch {
		case s.Suspended():
			f.Message, f.Remedy = "has ended while suspended (since "+at+"), and its GPU state is lost with it", "cucriu recover closes the session"
		case s.Outcome == journal.OutcomeDumped:
			f.Message, f.Remedy = "has ended: it was dumped at "+at, "cucriu restore -D "+status.ImageDir
		}
		break
	}
	return findings
}

// CheckRestore finds the reasons for which [Restore] would refuse the image in dir, and what else there is to say
// about it, but not that it is kept in the directory of a long job. It touches nothing. Files that except picks are
// not compared.
func CheckRestore(ctx context.Context, hook *hooks.Hook, dir string, except func(path string) bool) (preflight.Findings, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	env, img := session.Of(hook), imagedir.Open(dir)
	findings, err := imageFindings(ctx, env, img, fileCheck{except: except})
	if err != nil || findings.Has(preflight.FindingImage) {
		return findings, err
	}
	recorded, err := image.ReadOptions(dir)
	if err = cmp.Or(err, refuseNewer(recorded)); err != nil {
		return nil, err
	}
	more, err := env.Host().CheckImage(ctx, img)
	return slices.Concat(findings, inspect.SurroundingsFindings(recorded, os.Stdin), more), err
}

// imageFindings finds what keeps criu from restoring an image on this host.
func imageFindings(
	ctx context.Context, env *session.Env, img *imagedir.Image, check fileCheck,
) (preflight.Findings, error) {
	if absent := image.PresentFindings(img.Dir); len(absent) > 0 {
		return absent, nil
	}
	if criuimage.IsStreamed(img.Dir) {
		return nil, nil
	}
	tree, err := img.Whole()
	if err != nil {
		return preflight.Findings{preflight.Found(preflight.FindingImage, err)}, nil
	}
	findings, err := check.findings(img)
	if err != nil || tree.OwnPIDs {
		return findings, err
	}
	taken, err := inspect.TakenPIDs(ctx, twice.Start{}, tree.Numbers(), func(text string) { env.Log.Warn(text) })
	if len(taken) == 0 { // else it may be the job itself that waits there
		findings = append(findings, env.Judge(inspect.AddressFindings(img, ""))...)
	}
	return append(env.ExplainTaken(img.Dir, taken), findings...), err
}

// AddressFindings finds what the network of the calling thread lacks, or has already, of what the sockets of an image
// need. within is how a command is run in it, in remedies.
func AddressFindings(dir, within string) preflight.Findings {
	return inspect.AddressFindings(imagedir.Open(dir), within)
}

// FileFindings finds the files and directories of an image that are not here as they were at the dump.
// criu finds that only when it has created processes. except are paths that are left out.
func FileFindings(dir string, except func(path string) bool) (preflight.Findings, error) {
	return fileCheck{except: except}.findings(imagedir.Open(dir))
}

// fileCheck compares files with those of an image, as criu does.
type fileCheck struct {
	except    func(path string) bool // nil for none
	anyRights bool                   // criu's --skip-file-rwx-check
}

func (c fileCheck) findings(img *imagedir.Image) (preflight.Findings, error) {
	files, err := img.Files()
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // from a criu that writes each kind of file on its own
	}
	if err != nil {
		return preflight.Findings{preflight.Found(preflight.FindingImage, err)}, nil
	}
	var findings preflight.Findings
	for _, f := range files {
		if strings.HasPrefix(f.Path, "/proc/") || c.except != nil && c.except(f.Path) {
			continue
		}
		if finding := c.compare(f); finding.Name != "" {
			findings = append(findings, finding)
		}
	}
	return findings, nil
}

// isInherited reports whether the job gets something else in place of a file.
func (o *Options) isInherited(path string) bool {
	name := strings.TrimPrefix(path, "/")
	return o.ConfigFile != "" || // it may say so
		slices.ContainsFunc(o.RPC.GetInheritFd(), func(given *rpc.InheritFd) bool { return given.GetKey() == name }) ||
		slices.ContainsFunc(o.Inherit, func(i Inherited) bool { return i.Name == name })
}

func (c fileCheck) compare(f criuimage.File) (finding preflight.Finding) {
	kind := f.Mode & unix.S_IFMT
	if kind != unix.S_IFREG && kind != unix.S_IFDIR && kind != unix.S_IFIFO {
		return finding // devices, some of which belong to the terminal or to the driver
	}
	var now unix.Stat_t
	err := unix.Stat(f.Path, &now)
	mode, then := now.Mode, f.Mode
	if c.anyRights {
		mode, then = mode&^0o777, then&^0o777
	}
	const remedy = "put the file back as it was at the dump"
	found := func(name, remedy, text string, args ...any) preflight.Finding {
		return preflight.Finding{Name: name, Severity: preflight.SeverityError, Message: f.Path + fmt.Sprintf(text, args...), Remedy: remedy}
	}
	const hadBytes = " has %d bytes, but had %d at the dump"
	switch {
	case errors.Is(err, os.ErrPermission):
		return found(preflight.FindingFileMissing, "run as root", ", which the job uses, cannot be looked up (%v)", err)
	case err != nil && kind == unix.S_IFDIR:
		return found(preflight.FindingDirectory, "mkdir -p "+f.Path, ", which the job has open or as its working directory, cannot be found (%v)", err)
	case err != nil:
		return found(preflight.FindingFileMissing, remedy, ", which the job uses, cannot be found (%v)", err)
	case now.Mode&unix.S_IFMT != kind:
		return found(preflight.FindingFileDiffers, remedy, " is %s, but was %s at the dump", kindOf(now.Mode), kindOf(f.Mode))
	case mode != then:
		return found(preflight.FindingFileDiffers, fmt.Sprintf("chmod %04o %s", f.Mode&0o7777, f.Path), " has mode %04o, but had %04o at the dump", now.Mode&0o7777, f.Mode&0o7777)
	case f.Size >= 0 && now.Size > f.Size && f.AtEnd:
		return found(preflight.FindingFileDiffers, "cucriu restore --cut-logs truncates it, and keeps the newer content beside it", hadBytes+": it has grown", now.Size, f.Size)
	case f.Size >= 0 && now.Size != f.Size:
		return found(preflight.FindingFileDiffers, remedy, hadBytes, now.Size, f.Size)
	}
	return finding
}

func kindOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "a regular file"
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFIFO:
		return "a named pipe"
	}
	return "another kind of file"
}
