package wire

import (
	"io"
	"net"
)

// PipeConn makes a connection of two pipes, such as the standard input and output of ssh. It has
// what TLS and the transfer need: deadlines, and a Close that ends what is blocked.
func PipeConn(r io.ReadCloser, w io.WriteCloser) net.Conn {
	ours, theirs := net.Pipe()
	go func() {
		copyAll(theirs, r)
		theirs.Close()
		r.Close()
	}()
	go func() {
		copyAll(w, theirs)
		w.Close()
		theirs.Close()
		r.Close()
	}()
	return ours
}

// copyAll copies until either side ends. What ended shows in the next read or write.
func copyAll(to io.Writer, from io.Reader) {
	// Without these wrappers io.Copy would leave the size of the pieces to the pipes.
	_, _ = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 256<<10))
}
