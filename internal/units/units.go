// Package units writes quantities for people.
package units

import "fmt"

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
