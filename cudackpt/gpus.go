package cudackpt

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// UUIDsOf returns the UUIDs of GPUs, in the same order.
func UUIDsOf(gpus []GPU) []UUID {
	uuids := make([]UUID, len(gpus))
	for i, gpu := range gpus {
		uuids[i] = gpu.UUID
	}
	return uuids
}

// Union lists every GPU that any of the processes saw, in order of first appearance.
func Union(lists ...[]GPU) []GPU {
	var union []GPU
	for _, gpu := range slices.Concat(lists...) {
		if !slices.Contains(UUIDsOf(union), gpu.UUID) {
			union = append(union, gpu)
		}
	}
	return union
}

var pciAddress = regexp.MustCompile(`^(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}:[01][0-9a-f]\.[0-7])$`)

// ParsePCI reads [domain:]bus:device.function, in hexadecimal of either case. The text of an address
// depends on its source: lspci leaves out domain 0, sysfs and /proc/driver/nvidia write the domain
// with four digits, NVML with eight. The result is the same for all of them.
func ParsePCI(text string) (string, error) {
	m := pciAddress.FindStringSubmatch(strings.ToLower(text))
	if m == nil {
		return "", fmt.Errorf("%q is not a PCI address like 0000:41:00.0", text)
	}
	return strings.TrimLeft(m[1], "0") + ":" + m[2], nil
}

// SamePCI reports whether two texts name the same address. Text that is not an address, such as
// the empty text of a GPU whose address is not known, equals nothing.
func SamePCI(a, b string) bool {
	x, err := ParsePCI(a)
	if err != nil {
		return false
	}
	y, err := ParsePCI(b)
	return err == nil && x == y
}
