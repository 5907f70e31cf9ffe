// Package tcp ends what a criu that has left processes stopped, or was killed, has begun with
// their TCP connections: they are under repair, so that nothing can be sent or received, and rules
// of nftables drop their packets.
//
// It knows sockets and criu's rules. It knows nothing of images.
package tcp
