package criuutil

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"cucriu/internal/kit/fault"
)

// Installed is a criu program on this host.
type Installed struct {
	Path        string
	Version     string // "4.2.1"
	LibDir      string // the folder from which it loads plugins by default; empty if none
	LibDirGiven bool   // LibDir comes from its configuration or CRIU_LIBS_DIR
}

// LookCriu finds the criu program by its name or path. For "" it finds the system's criu,
// in PATH or in the usual folders of system programs.
func LookCriu(name string) (string, error) {
	names := []string{name}
	if name == "" {
		names = []string{"criu", "/usr/local/sbin/criu", "/usr/sbin/criu", "/sbin/criu"}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return filepath.Abs(path)
		}
	}
	what := " is not an executable file"
	if !strings.Contains(names[0], "/") {
		what = " was not found in PATH"
	}
	return "", fault.New(names[0]+what, "install CRIU 4.0 or newer (Debian 12 has 3.17), or specify its path with --criu or CUCRIU_CRIU")
}

// FindCriu finds a criu as [LookCriu] does, asks it for its version and reads its
// configuration. getenv stands for the environment in which criu would be started.
func FindCriu(ctx context.Context, name string, getenv func(string) string) (Installed, error) {
	path, err := LookCriu(name)
	if err != nil {
		return Installed{}, err
	}
	version, err := CriuVersion(ctx, path)
	if err != nil {
		return Installed{}, err
	}
	var options Criu
	if err := options.readOptions(path, []string{path, "dump"}, getenv); err != nil {
		return Installed{}, err
	}
	if err := options.checkScripts(); err != nil {
		return Installed{}, err
	}
	return Installed{Path: path, Version: version, LibDir: options.LibDir, LibDirGiven: options.LibDirGiven}, nil
}

// CriuVersion runs criu --version and returns the version, such as "4.2.1".
func CriuVersion(ctx context.Context, path string) (string, error) {
	out, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
	if err != nil {
		said := firstLine(string(out))
		// criu reads its configuration first, even for its version.
		bare := exec.CommandContext(ctx, path, "--no-default-config", "--version")
		bare.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CRIU_CONFIG_FILE=") })
		if bare.Run() == nil {
			files := usedConfiguration(os.Getenv)
			return "", fault.Because(err, fmt.Sprintf("criu cannot read its configuration in %s: %s", files, said),
				"correct the line: it is a long option without its dashes, and its value after a space, without =")
		}
		return "", fmt.Errorf("%s --version: %w: %s", path, err, said)
	}
	for line := range strings.Lines(string(out)) {
		if version, ok := strings.CutPrefix(line, "Version:"); ok {
			return strings.TrimSpace(version), nil
		}
	}
	return "", fmt.Errorf("%s --version does not print a version: is it criu?", path)
}

// CheckKernel runs criu check, which tells whether this kernel and the rights of this
// process are enough for criu. The error is the first one that criu reports.
func CheckKernel(ctx context.Context, path string) error {
	out, err := exec.CommandContext(ctx, path, "check").CombinedOutput()
	if err == nil {
		return nil
	}
	if failure := ReadFailure(bytes.NewReader(out)); failure.Cause != "" {
		return errors.New(failure.Cause)
	}
	return fmt.Errorf("criu check: %w: %s", err, firstLine(string(out)))
}

// HasFeature reports whether a criu and this kernel have a feature, by the name that criu
// check --feature knows.
func HasFeature(ctx context.Context, path, feature string) bool {
	criu, err := LookCriu(path)
	return err == nil && exec.CommandContext(ctx, criu, "check", "--feature", feature).Run() == nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
