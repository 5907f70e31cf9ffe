package cudackpt

import (
	"fmt"
	"path/filepath"
)

// Driver is the NVIDIA driver of this host, seen through its libraries and its part of /proc
// and /dev. It is safe for use by several goroutines. It opens no CUDA context and does not
// call cuInit, because no checkpoint call needs that.
type Driver struct {
	root    string // below which dev/nvidiaN and proc/driver/nvidia are
	lib     library
	anchor  uintptr // an address in the library, to find the library in our own memory map
	version Version
	api     checkpointAPI
	turns   turns
	nvml    nvml
}

// Option changes what [Open] opens.
type Option func(*options)

type options struct {
	library string
	root    string
}

// WithLibrary names the driver's library, by path or by soname. If the name has a directory,
// NVML is taken from the same one. "" stands for the default: libcuda.so.1 where the dynamic
// loader finds it, then in the usual directories.
func WithLibrary(name string) Option { return func(o *options) { o.library = name } }

// WithRoot names the directory under which dev/nvidiaN and proc/driver/nvidia are looked up: on
// the host and, with the same path, inside the mount namespace of each process. "" stands for
// the default, "/".
func WithRoot(dir string) Option { return func(o *options) { o.root = dir } }

// Open loads the driver's library. It succeeds with any CUDA driver: [Driver.Supports] says
// whether this one is new enough. If there is no driver, the error is a [*LibraryError]. What
// Open loads stays loaded until the program ends.
func Open(opts ...Option) (*Driver, error) {
	var o options
	for _, set := range opts {
		set(&o)
	}
	if o.root == "" {
		o.root = "/"
	}
	if !filepath.IsAbs(o.root) {
		// It is looked up in other processes' namespaces, where our working directory means
		// nothing.
		return nil, fmt.Errorf("%w: driver root %q is not an absolute path", ErrInvalidArgument, o.root)
	}
	candidates := []string{o.library}
	if o.library == "" {
		candidates = defaultLibraries()
	}
	lib, err := openLibrary(candidates)
	if err != nil {
		return nil, err
	}
	getVersion := symbol(lib.handle, callGetVersion)
	if getVersion == 0 {
		return nil, fmt.Errorf("%s is not a CUDA driver: it does not export %s: name the NVIDIA driver's %s", lib.name, callGetVersion, sonameCUDA)
	}
	version, result := rawGetVersion(getVersion)
	if result != ResultSuccess {
		return nil, fmt.Errorf("%s: %s: %w", lib.name, callGetVersion, result)
	}
	d := &Driver{root: filepath.Clean(o.root), lib: lib, anchor: getVersion, version: Version(version)}
	d.api.resolve(lib.handle)
	return d, nil
}

// Library returns the name under which the driver's library was loaded: a path,
// or the soname that the dynamic loader resolved.
func (d *Driver) Library() string { return d.lib.name }

// CUDAVersion returns the CUDA version that the library implements.
func (d *Driver) CUDAVersion() Version { return d.version }
