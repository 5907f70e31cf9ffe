// Package netns prepares network namespaces that were just made, and connects to what is in others. It knows no job.
package netns

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// AddLoopback gives the network namespace of the calling thread, a new one, the addresses of this host itself.
func AddLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	for _, version := range []string{"ipv4", "ipv6"} { // sockets that listen at another address
		_ = os.WriteFile("/proc/sys/net/"+version+"/ip_nonlocal_bind", []byte("1"), 0)
	}
	return nil
}
