package jobs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"cucriu/internal/jobs/sandbox"
)

// The records of a job's sandbox are in a folder of the job's directory: whoever runs the job next finds
// the sandbox there, whatever run directory it has.

const sandboxPrefix = "place-"

func sandboxDirs(dir string) ([]string, error) { return entries(dir, sandboxPrefix) }

// entries lists what is in a directory and has a prefix. A directory that cannot be read is an error,
// and not empty.
func entries(dir, prefix string) (paths []string, err error) {
	all, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range all {
		if strings.HasPrefix(entry.Name(), prefix) {
			paths = append(paths, filepath.Join(dir, entry.Name()))
		}
	}
	return paths, err
}

// removeSandboxes removes what is left of sandboxes that are gone.
func removeSandboxes(dir string) error {
	dirs, err := sandboxDirs(dir)
	for _, dir := range dirs {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// findSandbox attaches to the sandbox of the job. If that is gone, it tells how the job had ended in
// it, as far as that is known.
func findSandbox(o Options) (*sandbox.Sandbox, *sandbox.Exit, error) {
	dirs, err := sandboxDirs(o.Dir)
	if err != nil {
		return nil, nil, err
	}
	var exit *sandbox.Exit
	gone := sandbox.ErrGone
	for _, dir := range dirs {
		p, err := sandbox.Attach(dir)
		switch {
		case errors.Is(err, sandbox.ErrElsewhere) && o.Takeover: // it ends when the fence is raised
			gone = errors.Join(sandbox.ErrGone, err)
		case errors.Is(err, sandbox.ErrElsewhere):
			return nil, nil, fmt.Errorf("%w: run this command there, or say --takeover, and what the job has done since its last checkpoint is lost", err)
		case !errors.Is(err, sandbox.ErrGone):
			return p, nil, err
		}
		if exit, err = sandbox.LastExit(dir); err != nil {
			return nil, nil, err
		}
	}
	return nil, exit, gone
}
