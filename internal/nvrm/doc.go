// Package nvrm asks NVIDIA's kernel module, its resource manager, what objects a
// process has there. It decides about checkpoints what NVML and /proc do not show:
// whether GPUs of one process access one another's memory, and by what.
//
// The kernel module answers for a client to whoever holds the open file that made
// the client. So the process's own /dev/nvidiactl is borrowed, by pidfd_getfd, and
// asked: the process is not stopped, and nothing in it changes. Numbers and layouts
// are those of the open kernel modules, and were met as they are here on driver
// 580.159.04 alone.
//
// The package does not know what is done about the answer, and traces nothing.
package nvrm
