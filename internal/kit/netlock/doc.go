// Package netlock takes back what criu does to TCP connections for the time of a dump, and frees
// the addresses that a restore binds from connections that are over.
//
// criu holds back the packets of each connection, by a rule of iptables or a table of nftables, and
// puts its socket into repair mode, in which nothing is sent. It takes that back itself if the tree
// is to run on. If criu is killed, or leaves the tree stopped (-s), it does not, and every
// connection of the tree is dead, including those between its own processes.
//
// Sources: criu 4.2.1, criu/netfilter.c and criu/sk-tcp.c; tcp(7) has no TCP_REPAIR, which is
// described with the kernel's commit ee9952831cfd.
package netlock
