// Package relay passes connections and datagrams from ports of the host to a job that has a network namespace of its
// own, with nothing but a loopback interface.
//
//	[Parse]        reads what the user wants to have published
//	[Listen]       opens all ports on the host, before anything of the job exists
//	[Relay.Serve]  passes what comes there to the ports of the job
//
// To the job every peer is a program on its own loopback interface, 127.0.0.1 or, if nothing listens there, ::1. It
// cannot see where a connection comes from, and must not trust a peer because it is local.
//
// A TCP connection ends as it would without a relay: each direction by itself, or both by a reset. It is reset at once
// if the job does not listen. The datagrams of one sender come from one port until none has passed for a minute.
//
// One OS thread enters the namespace, and ends with Serve. It only creates sockets: they belong to the namespace in
// which they were created, whichever thread uses them. Everything is in this process: nothing is left when that ends.
//
// The package knows addresses, sockets and a network namespace. It must not know jobs, images and sandboxes.
package relay
