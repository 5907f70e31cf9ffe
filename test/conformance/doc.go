// Package conformance holds the real driver and the simulated one to the same table. A row
// of the table says which call, on a process in which state, with which arguments and
// circumstances, gives which CUresult, leaves the process in which state, and whether it
// blocks.
//
// The table is in table_*_test.go. A row that cannot be made on one of the drivers says
// why, and is printed with that reason. A row that is marked as a probe has no known
// answer: it never fails, and prints what happened.
//
//	go test -v ./test/conformance                      # the simulated driver
//	CUCRIU_TEST_DRIVER=real CUCRIU_TEST_NAMESPACES=off CUCRIU_TEST_ROOT=BUNDLE \
//	    conformance.test -test.v                       # the driver of this machine
//
// Each row is printed as soon as it has been measured, so that a run that is cut off shows
// its results so far. CUCRIU_CONFORMANCE_OUT=FILE also writes the table as Markdown. The
// tests need root, because they change in a mount namespace which GPUs a process sees.
//
// If the two drivers differ, the simulated one is wrong. A new fact goes into this table
// and into the simulator together.
package conformance
