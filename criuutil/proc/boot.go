package proc

import (
	"os"
	"strings"
)

// BootID identifies this boot of the host. Pids and start times mean nothing after the next one.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(data)), nil
}
