package cudackpt

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"
)

// gone reports whether no live process has this pid: there is none, or only a zombie is left.
func gone(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	// In "pid (comm) S …" comm may itself contain parentheses, so look for the last one.
	i := bytes.LastIndexByte(stat, ')')
	return i >= 0 && i+2 < len(stat) && (stat[i+2] == 'Z' || stat[i+2] == 'X')
}
