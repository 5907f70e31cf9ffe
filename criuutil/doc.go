// Package criuutil knows CRIU as a program: which one is installed, which options a running
// one was given, what it logs, and how to drive it over RPC ("criu swrk"). It knows nothing
// of CUDA. Package proc knows the processes that CRIU dumps, package criuimage the image files
// that it writes.
package criuutil
