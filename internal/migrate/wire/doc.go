// Package wire is how the two hosts of a migration talk: control messages over the user's own
// ssh, and files with HTTP over parallel TLS connections.
//
// A [Control] carries small messages as lines of JSON over the standard input and output of ssh. Over
// it the two sides exchange the fingerprints of an [Identity] each, an ephemeral key with a
// certificate that lives as long as the migration. On the connections that a [Dialer] makes to a
// [Receiver] each side has proved to be the owner of the certificate that was announced; nothing
// else is asked of a certificate.
//
// A [Sender] makes these requests over each of several connections:
//
//	GET   does the receiver answer? Before anything is touched
//	PUT   ranges of files, in pieces of 1 MiB: a header names the ranges
//	POST  the sizes of all files, once they have arrived: is every piece there?
//
// A request whose connection broke, or that made no progress for a while, is made again, over any
// connection. Any other failure ends the transfer, and the receiver says why. Each piece has a
// checksum, from the sender's read to the receiver's write. Sizes and counts from the other side are
// bounded, and a name from there is one plain component that never leads out of the receiver's
// directory.
//
// The package knows bytes and files. It knows nothing of jobs, criu or CUDA.
package wire
