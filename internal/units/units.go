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

// ParseSize reads a number of bytes, with one of the suffixes K, M, G and T or none.
func ParseSize(text string) (int64, error) {
	number := strings.TrimRight(text, "KMGT")
	suffix := text[len(number):]
	n, err := strconv.ParseInt(number, 10, 64)
	shift := 0
	if err == nil && suffix != "" {
		shift = 10 * (1 + strings.Index("KMGT", suffix))
	}
	if err != nil || n <= 0 || len(suffix) > 1 || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%q is not a size, such as 512M or 2G", text)
	}
	return n << shift, nil
}
