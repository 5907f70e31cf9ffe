// Package units writes quantities for people, and reads them.
package units

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size writes a number of bytes in binary units.
func Size(bytes int64) string {
	const units = "KMGT"
	if bytes < 1024 {
		return fmt.Sprintf("%d B", bytes)
	}
	value, unit := float64(bytes)/1024, 0
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	return fmt.Sprintf("%.1f %ciB", value, units[unit])
}

// Count writes how many there are of something whose plural ends with s, or es after another s.
func Count(n int, what string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(what, "s"):
		what += "es"
	default:
		what += "s"
	}
	return strconv.Itoa(n) + " " + what
}

// ParseSize reads a number of bytes, such as 512, 512M or 2GiB.
func ParseSize(text string) (int64, error) {
	number := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(text), "B"), "I")
	shift := 0
	if i := strings.IndexAny(number, "KMGTP"); i >= 0 && i == len(number)-1 {
		shift = 10 * (strings.IndexByte("KMGTP", number[i]) + 1)
		number = number[:i]
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%q is not a size, such as 512M or 2G", text)
	}
	return n << shift, nil
}
