// Package nvrm asks NVIDIA's kernel module, which contains the resource manager, what
// objects a process has there. These decide about checkpoints what NVML and /proc do not
// show: whether GPUs of one process access one another's memory, and by which means, and
// which processes share memory.
//
// The kernel module answers questions about a client to any process that holds the open
// file through which the client was made. So this package duplicates the process's own
// descriptor of /dev/nvidiactl (pidfd_getfd) and asks through it. The process is not
// stopped, and nothing in it changes. Numbers and layouts are those of the open kernel
// modules. On which drivers they are the same, and what was measured, package drivers says. An
// answer that leaves memory out is not believed.
//
// The package does not know what its answers are used for, and traces nothing.
package nvrm
