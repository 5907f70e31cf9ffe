// Package stages does what is to be done at the stages of criu's dump and restore. They reach us in
// three ways: as criu's action script ([Run]), through go-criu's callbacks, or from a criu that
// package checkpoint drives over its RPC ([Serve]). Only package checkpoint learns how criu ended,
// and brings the session to its end at once; the others leave that to the watcher. Package hooks
// draws the protocol.
//
// # How a pid from criu is believed
//
// An action script gets pids from its environment, which anybody can make up. So a pid counts for
// nothing until the kernel vouches for it:
//
//   - criu is the process that CRTOOLS_IMAGE_DIR names, if that is an ancestor of this program
//     ([criuutil.CriuOf]): whoever forged it can name only a process that has started us.
//   - A dump's root is what that criu names; its tree is what the kernel says are its descendants.
//   - A restore's root is what that criu names, if it is younger than criu (checkRestored).
//   - If criu was killed before it named one, the watcher looks for it (package watch, orphanedRoot).
//     Then age does not do: the root must have memory that only criu's children share with it
//     ([criuutil.Criu.Mark]).
//   - The processes of a manifest are those of that tree with the pids of the image in their innermost
//     pid namespace, each found exactly once (matchMembers).
//   - From then on a process is its pid, start time and pid namespace ([proc.Ident]). Before it is
//     signalled or traced it is opened as such ([proc.Reopen]), by a descriptor that another process with
//     the same pid does not answer to.
package stages
