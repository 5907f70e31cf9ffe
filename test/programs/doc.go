// Package programs has tests that take programs, written as people write them, through
// cucriu dump and cucriu restore without one option, and tell what became of each: works,
// refused, or lost. The programs are in test/workload/programs and need GPUs; on the
// simulated driver the tests prove that the harness tells these apart.
package programs
