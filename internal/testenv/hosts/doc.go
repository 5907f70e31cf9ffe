// Package hosts makes two hosts, "a" and "b", on one machine for tests of what goes on
// between hosts. Each has
//   - a network of its own with one link to the other host, and an sshd that listens there
//   - its own pids, host name, boot id, System V IPC, /dev/shm, /run, /tmp and home of root
//   - GPUs of its own at /run/nvidia, the same path on both hosts
//
// Everything else is the same file system on both, as if it were the same installation or
// mounted from a server. That includes the directory of the test, so t.TempDir() is a
// shared directory. A file below /tmp, /run or the home is on one host only, and criu finds
// the same path on the other one.
//
// Both hosts are below the init of [testenv.Isolated], and nothing of them outlives it.
//
// What is not as on two hosts: the memory, the processors, the cgroups and the clocks are
// those of one machine.
package hosts
