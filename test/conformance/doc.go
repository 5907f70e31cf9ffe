// Package conformance holds the real driver and the simulated one to one table:
// which call on a process in which state, with which arguments and under which
// circumstances, gives which CUresult, leaves the process in which state, and
// whether it blocks.
//
// The table is in table_*_test.go. A row that cannot be made on one of the drivers
// says why there, and is printed with its reason. A row marked as a probe has no
// known answer: it never fails, and prints what happened.
//
//	go test -v ./test/conformance                      # the simulated driver
//	CUCRIU_TEST_DRIVER=real CUCRIU_TEST_NAMESPACES=off CUCRIU_TEST_ROOT=BUNDLE \
//	    conformance.test -test.v                       # the driver of this machine
//
// Each row is printed when it has been measured, so that a run that is cut off
// shows what it knew. CUCRIU_CONFORMANCE_OUT=FILE writes the table as Markdown
// too. Needs root: the GPUs that a process sees are changed in a mount namespace
// of its own.
//
// Where the two drivers differ the simulated one is wrong. A new fact goes into
// this table and into the simulator together.
package conformance
