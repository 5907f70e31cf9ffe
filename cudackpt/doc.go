// Package cudackpt drives the NVIDIA driver's checkpoint API, and says which GPUs
// a process can see.
//
// The driver can take the GPU half of a CUDA process into host memory of that
// process and give it back later, on the same GPUs or on others:
//
//	        Lock            Checkpoint
//	running ----> locked ----------------> checkpointed
//	        <----        <----------------
//	        Unlock           Restore
//
// A controller does this to another process by its pid. [Open] loads the driver's
// library, [Driver.Process] names the target, and the methods of [Process] are the
// calls and what is commonly made of them: [Process.Suspend] and [Process.Resume]
// go the whole way.
//
// What must be known to use it:
//
//   - The driver stops no CPU thread. A thread of the target that waits for the GPU
//     (cudaStreamSynchronize and its kin) while the process is checkpointed dies
//     with SIGSEGV. So stop the target between Checkpoint and the completed
//     Restore.
//   - The driver works through one thread of the target,
//     [Process.RestoreThreadID]. While that is stopped or frozen the calls wait
//     for ever. So stop the others, not this one.
//   - A driver call cannot be interrupted. When its context ends, the method
//     returns an [*InterruptedError] and the call goes on; later calls to the same
//     process wait for it.
//   - A restore that runs out of GPU memory loses the process. [Driver.Memory]
//     tells before.
//
// Errors are typed: a call that the driver refused is an [*Error], which says what
// the CUresult means for that call and what to do, and in which errors.Is finds
// the [Result].
//
// The package knows CUDA alone. It must not know CRIU, signals, ptrace, cgroups,
// images or configuration: those who stop the target, dump it and decide what
// happens after a failure use this package, never the reverse. It keeps no state
// beside its Driver values, and calls neither cuInit nor anything else that takes
// memory of a GPU.
//
// It needs no cgo: the library is loaded with dlopen at run time, on linux/amd64
// and linux/arm64.
package cudackpt
