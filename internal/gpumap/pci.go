package gpumap

import (
	"fmt"
	"strconv"
	"strings"
)

// pciAddress is a PCI address by value, because its text depends on the source: lspci leaves
// out domain 0, sysfs and /proc/driver/nvidia write the domain with four digits, NVML with
// eight.
type pciAddress struct {
	domain                uint32
	bus, device, function uint8
}

// parsePCI reads [domain:]bus:device.function, in hexadecimal of either case.
func parsePCI(text string) (pciAddress, error) {
	fail := func() (pciAddress, error) {
		return pciAddress{}, fmt.Errorf("%q is not a PCI address like 0000:41:00.0", text)
	}
	parts := strings.Split(text, ":")
	if len(parts) == 2 {
		parts = append([]string{"0"}, parts...)
	}
	if len(parts) != 3 {
		return fail()
	}
	device, function, found := strings.Cut(parts[2], ".")
	if !found || len(parts[1]) != 2 || len(device) != 2 || len(function) != 1 {
		return fail()
	}
	// ParseUint accepts no sign, and underscores only in base 0.
	domain, err1 := strconv.ParseUint(parts[0], 16, 32)
	bus, err2 := strconv.ParseUint(parts[1], 16, 8)
	dev, err3 := strconv.ParseUint(device, 16, 5)
	fn, err4 := strconv.ParseUint(function, 16, 3)
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || len(parts[0]) > 8 {
		return fail()
	}
	return pciAddress{domain: uint32(domain), bus: uint8(bus), device: uint8(dev), function: uint8(fn)}, nil
}

// samePCI reports whether two texts name the same address. Text that is not an address, such as
// the empty text of a GPU whose address is not known, equals nothing.
func samePCI(a, b string) bool {
	x, err := parsePCI(a)
	if err != nil {
		return false
	}
	y, err := parsePCI(b)
	return err == nil && x == y
}
