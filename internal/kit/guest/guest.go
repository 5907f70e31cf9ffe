// Package guest brings a library into a job that stands between its programs and the CUDA driver. README.md
// says what it does there.
package guest

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"cucriu/internal/kit/drivers"
	"cucriu/internal/kit/durable"
)

//go:embed built
var built embed.FS

// File is the library's name in the directory of a job. A job keeps the one that it was started with: its
// checkpoints name it.
const File = "guest.so"

// Mode is the library's: the job may be another user's.
const Mode = 0o644

// Unfit says why the job with this directory cannot have the library; it is nil if it can.
func Unfit(dir, driverVersion string, otherUser bool) error {
	if _, err := library.Read(); err != nil {
		return err
	}
	switch {
	case !drivers.For(driverVersion).Library:
		return fmt.Errorf("it was not tried with the driver %s", driverVersion)
	case otherUser && !isPublic(dir):
		return fmt.Errorf("the job's user cannot read %s", dir)
	case durable.IsNoexec(dir):
		return fmt.Errorf("%s is on a file system that is mounted with noexec", dir)
	case strings.ContainsAny(dir, " :$"):
		return fmt.Errorf("the dynamic loader takes no path such as %s", dir)
	}
	return nil
}

// isPublic reports whether everybody can open files in a directory that they know the names of.
func isPublic(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil || info.Mode()&0o001 == 0 {
			return false
		}
		if dir == "/" {
			return true
		}
	}
}

// library is the library for this machine.
var library = durable.Built{In: built, Name: name + "-" + runtime.GOARCH + ".so"}

// Place puts the library into the directory of a job that is started.
func Place(dir string) error { return library.Place(filepath.Join(dir, File), Mode) }

// Preload has the programs of an environment load the library of a job. Those that were built with AddressSanitizer would not
// run behind it.
func Preload(env []string, dir string) []string {
	env = prepend(env, "ASAN_OPTIONS", "verify_asan_link_order=0")
	return prepend(env, "LD_PRELOAD", filepath.Join(dir, File))
}

// Unreadable returns the path of the library if an environment has a program load it, and some users cannot open it there.
func Unreadable(env []string) string {
	for _, v := range env {
		list, is := strings.CutPrefix(v, "LD_PRELOAD=")
		if !is {
			continue
		}
		for _, path := range strings.FieldsFunc(list, func(r rune) bool { return r == ':' || r == ' ' }) {
			if filepath.IsAbs(path) && filepath.Base(path) == File && !isPublic(filepath.Dir(path)) {
				return path
			}
		}
	}
	return ""
}

// prepend puts an element before those of a variable.
func prepend(env []string, variable, element string) []string {
	for i, v := range env {
		if others, is := strings.CutPrefix(v, variable+"="); is && others != "" {
			env[i] = variable + "=" + element + ":" + others
			return env
		}
	}
	return append(env, variable+"="+element)
}
