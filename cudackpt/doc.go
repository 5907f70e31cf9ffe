// Package cudackpt calls the NVIDIA driver's checkpoint API, and says which GPUs a process can
// see.
//
// The driver can move the GPU half of a CUDA process into host memory of that process, and give
// it back later, on the same GPUs or on others:
//
//	        Lock            Checkpoint
//	running ----> locked ----------------> checkpointed
//	        <----        <----------------
//	        Unlock           Restore
//
// A controller does this to another process by its pid. [Open] loads the driver's library, and
// [Driver.Process] names the target. The methods of [Process] are the driver's calls and the
// usual combinations of them: [Process.Suspend] and [Process.Resume] go the whole way.
//
// To use it, you must know the following:
//
//   - The driver stops no CPU thread. A thread of the target that waits for the GPU (in
//     cudaStreamSynchronize or a similar call) while the process is checkpointed dies with
//     SIGSEGV. So stop the target between Checkpoint and the completed Restore.
//   - The driver works through one thread of the target, [Process.RestoreThreadID]. While that
//     thread is stopped or frozen, the calls wait forever. So stop the others, not this one.
//   - A driver call cannot be interrupted. When its context ends, the method returns an
//     [*InterruptedError] and the call continues. Later calls to the same process wait for it.
//   - A restore that runs out of GPU memory loses the process. So compare [Driver.Memory] with
//     what is needed before.
//
// Errors are typed. A call that the driver refused is an [*Error]. It says what the CUresult
// means for that call and what to do, and errors.Is finds the [Result] in it.
//
// The package knows only CUDA. It must not know CRIU, signals, ptrace, cgroups, images or
// configuration: the packages that stop the target, dump it and decide what happens after a
// failure use this one, never the reverse. It keeps no state outside its Driver values, and
// calls neither cuInit nor anything else that takes GPU memory.
//
// It needs no cgo: it loads the library with dlopen at run time, on linux/amd64 and
// linux/arm64.
package cudackpt
