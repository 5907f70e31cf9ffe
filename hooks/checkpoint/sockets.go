package checkpoint

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/core/journal"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/drivers"
)

// changedImages returns the directory from which criu restores: that of the image, or, if sockets are
// to be restored in another way than they were dumped, one of links to its files. Others may use the
// image itself.
func (d *criuSession) changedImages() (dir string, release func(), err error) {
	dir, release = d.stage.ImageDir, func() {}
	if d.kind != journal.KindRestore {
		return dir, release, nil
	}
	tree, err := criuimage.ReadTree(dir)
	if err != nil || tree.OwnMounts { // criu judges its images; where it looks for those of a container, links lead nowhere
		return dir, release, nil
	}
	links, err := os.MkdirTemp(d.workDir, "images-")
	if err != nil {
		return dir, release, err
	}
	release = func() { _ = os.RemoveAll(links) }
	nameSocket, err := socketNames(tree)
	if err != nil {
		return dir, release, err
	}
	changes := criuimage.FileChanges{CloseOutside: d.options.CloseOutside, NameSocket: nameSocket}
	dir, err = withChangedFiles(dir, links, dir, changes)
	return dir, release, err
}

// withChangedFiles makes an image directory of links, which is dir with other open files, and returns
// it; or dir itself, if nothing changes. The links lead by way of target, which criu reaches dir by.
func withChangedFiles(dir, links, target string, changes criuimage.FileChanges) (string, error) {
	changed, err := criuimage.WriteChangedFiles(dir, links, changes)
	if err != nil || !changed {
		return dir, err
	}
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if err == nil && entry.Name() != criuimage.FilesName {
			err = os.Symlink(filepath.Join(target, entry.Name()), filepath.Join(links, entry.Name()))
		}
	}
	return links, err
}

// Each CUDA process listens on an abstract UNIX socket: see [drivers.SocketPrefix]. The kernel gives the number of a
// namespace that has ended to a later one, and a CUDA process whose name is taken does not start. So a restored process
// gets the name of the namespace that it is restored in.
var (
	cudaSocket = regexp.MustCompile("^\x00(" + drivers.SocketPrefix + ")([0-9]+)(-[0-9]+)(\x00*)$")
	cudaListed = regexp.MustCompile("@" + drivers.SocketPrefix + "[0-9]+-[0-9]+")
)

// socketNames returns what names the sockets of an image.
func socketNames(tree criuimage.Tree) (func(name string) string, error) {
	given := make(map[string]string)
	if tree.OwnNetwork { // and so are its names
		return func(name string) string { return name }, nil
	}
	var namespace unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &namespace); err != nil {
		return nil, fmt.Errorf("pid namespace: %w", err)
	}
	listed, err := os.ReadFile("/proc/self/net/unix")
	if err != nil {
		return nil, fmt.Errorf("names of UNIX sockets: %w", err)
	}
	taken := make(map[string]bool)
	for _, name := range cudaListed.FindAllString(string(listed), -1) {
		taken[strings.TrimPrefix(name, "@")] = true
	}
	return func(name string) string {
		part := cudaSocket.FindStringSubmatch(name)
		switch {
		case part == nil:
			return name
		case given[name] != "": // a connection that it has accepted
			return given[name]
		}
		number := strconv.FormatUint(namespace.Ino, 10)
		if tree.OwnPIDs {
			number = part[2] // criu makes the namespace later
		}
		for taken[part[1]+number+part[3]] {
			number = strconv.Itoa(1 + rand.IntN(1<<30)) // smaller than that of any namespace
		}
		taken[part[1]+number+part[3]] = true
		given[name] = "\x00" + part[1] + number + part[3] + part[4]
		return given[name]
	}, nil
}
