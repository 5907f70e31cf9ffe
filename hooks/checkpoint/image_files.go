package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/criuimage"
)

// FileFindings finds the files and directories of an image that are not here as they were at the dump.
// criu finds that only when it has created processes. except are paths that are left out.
func FileFindings(dir string, except func(path string) bool) (preflight.Findings, error) {
	return fileCheck{except: except}.findings(dir)
}

// fileCheck compares files with those of an image, as criu does.
type fileCheck struct {
	except    func(path string) bool // nil for none
	anyRights bool                   // criu's --skip-file-rwx-check
}

func (c fileCheck) findings(dir string) (preflight.Findings, error) {
	files, err := criuimage.Files(dir)
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
			finding.Severity = preflight.SeverityError
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
	switch {
	case err != nil && kind == unix.S_IFDIR:
		finding.Name, finding.Remedy = preflight.FindingDirectory, "mkdir -p "+f.Path
		finding.Message = fmt.Sprintf("%s, which the job has open or works in, cannot be found (%v)", f.Path, err)
	case err != nil:
		finding.Name, finding.Remedy = preflight.FindingFileMissing, "put it back as it was"
		finding.Message = fmt.Sprintf("%s, which the job uses, cannot be found (%v)", f.Path, err)
	case now.Mode&unix.S_IFMT != kind:
		finding.Name, finding.Remedy = preflight.FindingFileDiffers, "put it back as it was"
		finding.Message = fmt.Sprintf("%s is %s, and was %s at the dump", f.Path, kindOf(now.Mode), kindOf(f.Mode))
	case mode != then:
		finding.Name, finding.Remedy = preflight.FindingFileDiffers, fmt.Sprintf("chmod %04o %s", f.Mode&0o7777, f.Path)
		finding.Message = fmt.Sprintf("%s has the mode %04o, and had %04o at the dump", f.Path, now.Mode&0o7777, f.Mode&0o7777)
	case f.Size >= 0 && now.Size != f.Size:
		finding.Name, finding.Remedy = preflight.FindingFileDiffers, "put it back as it was"
		finding.Message = fmt.Sprintf("%s has %d bytes, and had %d at the dump", f.Path, now.Size, f.Size)
		if f.AtEnd && now.Size > f.Size {
			finding.Message += ": it has grown"
			finding.Remedy = "cucriu restore --cut-logs cuts it, and keeps what is newer beside it"
		}
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
	return "something else"
}
