// Package wire is how the two hosts of a migration talk: control messages over the user's own
// ssh, and data over parallel TLS connections.
//
// A [Control] carries small messages as JSON over the standard input and output of ssh. Over
// it the two sides exchange the fingerprints of an [Identity] each, an ephemeral key with a
// certificate that lives as long as the migration. A [Listener] and a [Dialer] make connections
// on which each side has proved to be the owner of the certificate that was announced; nothing
// else is asked of a certificate.
//
// A [Sender] sends files over several such connections to a [Receiver]:
//
//	sender                         receiver
//	               <- welcome      on each connection first
//	name, chunk, chunk, …  ->      any chunk over any connection
//	               <- ack          how many were taken on this connection
//	closed (size)          ->      once a file is complete
//	finish                 ->      once everything is acknowledged
//	               <- ack          all files are complete here, or
//	               <- failed       the transfer is over, and why
//
// What a broken connection had not acknowledged is sent again over the others, while the
// connection is dialled again. Chunks have checksums from the sender's read to the receiver's
// write. Every length from the other side is bounded, and a name from there is one plain
// component that never leads out of the receiver's directory.
//
// The package knows bytes and files. It knows nothing of jobs, criu or CUDA.
package wire
