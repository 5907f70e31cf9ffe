package jobs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"cucriu/hooks/preflight"
	"cucriu/internal/fault"
)

// notFound says that there is no such job, or more than one.
func notFound(meaning, remedy string) error { return preflight.AsRefusal(fault.New(meaning, remedy)) }

// Find finds a job by its directory or, on the host that runs it, by its name. What has a slash
// in it is a directory.
func Find(runDir, arg string) (Local, error) {
	if strings.ContainsRune(arg, filepath.Separator) || arg == "." || arg == ".." {
		return findDir(runDir, arg)
	}
	all, err := Locals(runDir)
	if err != nil {
		return Local{}, err
	}
	var named []Local
	var dirs []string
	for _, l := range all {
		if l.Name == arg {
			named, dirs = append(named, l), append(dirs, l.Dir)
		}
	}
	switch _, err := os.Stat(filepath.Join(arg, recordName)); {
	case len(named) == 1:
		return named[0], nil
	case len(named) > 1:
		return Local{}, notFound(fmt.Sprintf("%d jobs are called %s", len(named), arg), "name the directory, one of "+strings.Join(dirs, ", "))
	case err == nil:
		return findDir(runDir, arg)
	}
	return Local{}, notFound(fmt.Sprintf("no job of this host is called %q", arg), "see cucriu jobs list, or name the directory of the job")
}

// findDir finds the job of a directory. There may be several paths to it.
func findDir(runDir, dir string) (Local, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Local{}, err
	}
	r, err := loadRecord(filepath.Join(dir, recordName))
	if errors.Is(err, fs.ErrNotExist) {
		return Local{}, notFound(dir+" is not the directory of a job", "name the one that cucriu run --dir was given")
	}
	if err != nil {
		return Local{}, err
	}
	if l, err := readLocal(localDir(runDir, dir)); err == nil {
		return l, nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return Local{}, err
	}
	all, err := Locals(runDir)
	if err != nil {
		return Local{}, err
	}
	for _, l := range all {
		if other, err := os.Stat(l.Dir); err == nil && os.SameFile(info, other) {
			return l, nil
		}
	}
	l := Local{Name: r.Name, Dir: dir}
	if r.Finished != nil {
		l.State = StateFinished
	}
	return l, nil
}
