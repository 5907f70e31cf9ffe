package proc

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
)

// Pagemap tells which memory of a process the kernel has pages for.
type Pagemap struct {
	file   *os.File
	buffer []byte
}

// OpenPagemap opens the pagemap of a process. It needs the right to trace the process.
func OpenPagemap(p *Process) (*Pagemap, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", p.PID))
	if err != nil {
		return nil, GoneOr(p.PID, err)
	}
	return &Pagemap{file: file}, nil
}

// Close closes it.
func (m *Pagemap) Close() error { return m.file.Close() }

// Untouched reports whether a range of private anonymous memory has no page, in memory or swapped out: all of it is 0, and to
// read it would make the kernel work for each page.
func (m *Pagemap) Untouched(r Range) (bool, error) {
	const entryBytes, presentOrSwapped = 8, 3 << 62
	page := uint64(os.Getpagesize())
	first, end := r.Start/page, (r.End+page-1)/page
	if need := int(end-first) * entryBytes; cap(m.buffer) < need {
		m.buffer = make([]byte, need)
	}
	entries := m.buffer[:(end-first)*entryBytes]
	if _, err := m.file.ReadAt(entries, int64(first*entryBytes)); err != nil && err != io.EOF {
		return false, fmt.Errorf("pagemap: %w", err)
	} else if err == io.EOF { // the process has ended, or nothing is mapped there
		return false, nil
	}
	for ; len(entries) > 0; entries = entries[entryBytes:] {
		if binary.NativeEndian.Uint64(entries)&presentOrSwapped != 0 {
			return false, nil
		}
	}
	return true, nil
}
