// Package proc knows Linux processes as a dump sees them: who they are, over the
// reuse of pids and across pid and time namespaces; their trees and threads; how to
// stop them; their memory; the control groups that freeze and limit them. It changes
// a process by signals, control groups and process_vm_writev only. Whatever needs
// ptrace is in package inject. It knows nothing of CRIU or CUDA.
package proc
