package cudackpt

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/ebitengine/purego"

	"cucriu/internal/kit/drivers"
	"cucriu/internal/kit/fault"
)

// The sonames under which the driver's libraries are installed.
const (
	sonameCUDA = drivers.Soname
	sonameNVML = "libnvidia-ml.so.1"
)

// library is a shared library that stays loaded for as long as this process lives. Neither
// libcuda nor NVML survives dlclose while a thread is inside it, and a call that its caller
// gave up may still be there.
type library struct {
	name   string // the name that dlopen was given
	handle uintptr
}

// openLibrary loads the first of the candidates that can be loaded.
func openLibrary(candidates []string) (library, error) {
	runtime.LockOSThread() // what dlerror says is that of a thread
	defer runtime.UnlockOSThread()
	failure := new(LibraryError)
	var reasons []string
	for _, name := range candidates {
		handle, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err == nil {
			return library{name: name, handle: handle}, nil
		}
		failure.Tried, failure.Errs = append(failure.Tried, name), append(failure.Errs, err)
		reason := err.Error()
		if !strings.Contains(reason, name) {
			reason = name + ": " + reason
		}
		reasons = append(reasons, reason)
	}
	failure.explained = *fault.Because(errors.Join(failure.Errs...), fmt.Sprintf("cannot load the NVIDIA driver's library (%s)", strings.Join(reasons, "; ")),
		"install the NVIDIA driver on this host, or name its library by path")
	return library{}, failure
}

// besides returns where to look for soname, given how libcuda was loaded. If it was loaded from
// a directory, that directory is searched, so that all libraries of a driver that was chosen by
// path come from the same place.
func (l library) besides(soname string) []string {
	if strings.Contains(l.name, "/") {
		return []string{filepath.Join(filepath.Dir(l.name), soname)}
	}
	return []string{soname}
}

// defaultLibraries returns where to look for libcuda if none was named: first the loader's own
// search, then the directories of the common driver packages. CRIU and container engines start
// hooks with an environment of their own, in which LD_LIBRARY_PATH may be missing.
func defaultLibraries() []string {
	multiarch := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	return []string{
		sonameCUDA,
		filepath.Join("/usr/lib", multiarch, sonameCUDA),     // Debian, Ubuntu
		filepath.Join("/usr/lib64", sonameCUDA),              // Fedora, RHEL, SUSE
		filepath.Join("/usr/lib", sonameCUDA),                // Arch
		filepath.Join("/usr/local/nvidia/lib64", sonameCUDA), // where Kubernetes device plugins mount it
	}
}

// symbol returns the address of name, or 0 if the library does not export it.
func symbol(handle uintptr, name string) uintptr {
	address, err := purego.Dlsym(handle, name)
	if err != nil {
		return 0
	}
	return address
}

// LibraryError says that a library of the driver could not be loaded. It names every place that was
// tried, with the loader's reason.
type LibraryError struct {
	explained
	Tried []string // paths or sonames, in order
	Errs  []error  // what the loader said about each
}
