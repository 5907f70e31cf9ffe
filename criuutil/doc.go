// Package criuutil knows CRIU and the Linux processes that CRIU dumps: their
// trees, how to stop them and let one thread of them run, their freezers, and
// what can be told of a running criu. It knows nothing of CUDA.
package criuutil
