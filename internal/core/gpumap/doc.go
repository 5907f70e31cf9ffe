// Package gpumap decides which GPU takes the place of which when a job is restored. It knows
// the driver's rules for the pairs that a restore is given, and the order in which it fills in
// the GPUs that the user did not name. It must not know files, processes or the driver: a map
// depends only on the arguments, so a plan can be made, printed and refused before anything is
// touched. [Make] in make.go decides; plan.go has the [Plan] that comes of it.
//
// A restore makes its plan at pre-restore (inspect.PlanRestore); where the processes turn out to see other GPUs, as
// in a container, once more at post-restore, the last stage that can refuse. A resume makes it before it touches
// anything (engine.PlanPairs). Whoever completes them takes it from the journal, or fails if a GPU of it has gone.
//
// The driver's rules (seen on 580):
//   - the old side of the pairs is exactly the set of GPUs that the process could
//     see when it was checkpointed, used or not, each once;
//   - the new side is injective, into the set that the process can see now;
//   - the destination may show more GPUs than the source, never fewer, whatever
//     the pairs say;
//   - a GPU's content goes only onto a GPU of the same model.
package gpumap
