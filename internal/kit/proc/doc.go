// Package proc knows Linux processes as a dump sees them. It identifies a process even if
// its pid is reused, and across pid and time namespaces. It walks process trees and
// threads, stops processes, reads and writes their memory, and works with the control
// groups that freeze and limit them. It changes processes only by signals, control groups,
// process_vm_writev and shared descriptors. Package inject does what needs ptrace. Package
// proc knows nothing of CRIU or CUDA.
package proc
