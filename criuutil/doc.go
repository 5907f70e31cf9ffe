// Package criuutil knows CRIU as it is installed or runs: its version, what can
// be told of the options of a running one, its log, and the client of its RPC
// ("swrk"). It knows nothing of CUDA. The processes that CRIU dumps are known to
// package proc, its image files to package images.
package criuutil
