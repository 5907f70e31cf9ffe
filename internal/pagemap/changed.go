package pagemap

import "io"

// Changed returns a reader of what has changed: the file of pages of the difference.
func (d Difference) Changed() io.Reader { return &changed{difference: d} }

// changed reads the pages of a dump that its difference has.
type changed struct {
	difference Difference
	next       int    // entry of the difference
	done       uint64 // bytes of it
	offset     int64  // in the pages of the dump
}

func (c *changed) Read(buffer []byte) (int, error) {
	for ; c.next < len(c.difference.Map.Entries); c.next, c.done = c.next+1, 0 {
		e := c.difference.Map.Entries[c.next]
		rest := e.Pages*PageSize() - c.done
		switch {
		case e.isHere() && rest > 0:
			n := min(rest, uint64(len(buffer)))
			read, err := c.difference.from.Pages.ReadAt(buffer[:n], c.offset)
			c.done, c.offset = c.done+uint64(read), c.offset+int64(read)
			if read > 0 || err == nil {
				return read, nil
			}
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		case e.Flags&InParent != 0:
			c.offset += int64(rest)
		}
	}
	return 0, io.EOF
}
