// Package drivers is the one table of what is known of NVIDIA's drivers, and how it is known. [For] answers for a
// version; what holds for all drivers has a name here. docs/development.md says how to add a driver.
//
// The package decides nothing. Who meets an unknown driver refuses what the facts are needed for, leaves it out, or
// warns of it; a forecast takes the measured sizes.
package drivers

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Evidence is how it is known that a fact holds for a driver.
type Evidence int

const (
	// Unknown drivers may be different.
	Unknown Evidence = iota
	// Compared drivers have the same numbers and layouts, by their open kernel modules. How their libcuda numbers and
	// duplicates its objects, and what their restores lose, was not measured: what is found may be believed, and that
	// something was not found may not.
	Compared
	// Measured drivers were asked about processes whose restores were tried.
	Measured
)

// Facts are what is known of one driver.
type Facts struct {
	Version string // of the kernel module, "580.159.04"
	// Module is the evidence for what internal/kit/nvrm reads out of the kernel module (module.go), and for what follows
	// from it for a restore.
	Module Evidence
	// Library says whether the library in a job (internal/kit/guest) was tried with a driver of this branch.
	Library bool
	// FabricLeast is the size in bytes from which on libcuda gives an allocation an address in the fabric that links the
	// GPUs. One that another GPU accesses is checkpointed and never restored.
	FabricLeast uint64
	// ContextBytes is what NVML lists for a context beside the memory of the program, on H100s and H200s.
	ContextBytes uint64
}

// branch is a row of the table: what is known of the drivers that have a number before the first dot in common.
type branch struct {
	number    string
	cuda      int    // as cuDriverGetVersion answers it; 0 if nothing asks for it
	simulated string // the version that test/cudasim plays; empty if none
	library   bool
	measured  []string
	compared  []string
}

// branches is the table.
//
// Compared were, in each of these releases of the open kernel modules: the number of
// NV_ESC_RM_CONTROL and NVOS54_PARAMETERS; the numbers of the classes, commands, indices and flags in module.go;
// the parameters of these commands with the structures in them, and the lengths of their tables; and
// the first number of a client. All are the same, and so is the rule by which imported memory is counted. (Of what
// these headers have beside it, NV_FABRIC_MEMORY_ATTRS has changed in 580 and in 595.) Modules before 580 tell the
// address of memory only to the kernel, so sharers are not paired there.
var branches = []branch{
	{number: "550", cuda: 12040, simulated: "550.163.01"}, // no checkpoint API
	{number: firstCheckpoint, cuda: 12080, simulated: "570.211.01", compared: []string{
		"570.86.15", "570.86.16", "570.123.01", "570.123.06", "570.123.07", "570.123.10", "570.123.11", "570.123.14",
		"570.123.18", "570.123.19", "570.124.04", "570.124.06", "570.133.07", "570.133.20", "570.144", "570.148.08",
		"570.153.02", "570.158.01", "570.169", "570.172.08", "570.181", "570.190", "570.195.03", "570.207", "570.211.01",
	}},
	{number: "575", compared: []string{"575.51.02", "575.51.03", "575.57.08", "575.64", "575.64.03", "575.64.05"}},
	{
		number: firstGPUPairs, cuda: 13000, simulated: "580.159.04", library: true, measured: []string{"580.159.04"},
		compared: []string{
			"580.65.06", "580.76.05", "580.82.07", "580.82.09", "580.94.02", "580.94.03", "580.94.06", "580.94.10",
			"580.94.11", "580.94.13", "580.94.16", "580.94.17", "580.94.18", "580.95.05", "580.105.08", "580.119.02",
			"580.126.09", "580.126.16", "580.126.18", "580.126.20", "580.142",
		},
	},
	{number: "590", compared: []string{"590.44.01", "590.48.01"}},
	{number: "595", compared: []string{"595.44.02", "595.44.03", "595.45.04"}},
}

// The first branches with the checkpoint API, and with a restore onto other GPUs than the captured ones.
const (
	firstCheckpoint = "570"
	firstGPUPairs   = "580"
)

// Since says from which driver on something can be done.
type Since struct {
	Driver string // its branch, "580"
	CUDA   int    // as cuDriverGetVersion answers it
}

// What only newer drivers can do.
var (
	Checkpoint = since(firstCheckpoint)
	GPUPairs   = since(firstGPUPairs)
)

func since(number string) Since {
	row := branches[slices.IndexFunc(branches, func(b branch) bool { return b.number == number })]
	return Since{row.number, row.cuda}
}

// For returns what is known of a driver, by its version. One between two of a branch that are known, of which the
// sources are not public, is taken for compared. The sizes are those of the driver that was measured: see Module.
func For(version string) Facts {
	facts := Facts{Version: version, FabricLeast: 512 << 20, ContextBytes: 518 << 20}
	number, _, _ := strings.Cut(version, ".")
	at := slices.IndexFunc(branches, func(b branch) bool { return b.number == number })
	if at < 0 || !isVersion.MatchString(version) {
		return facts
	}
	row := branches[at]
	is := func(order int) func(string) bool {
		return func(known string) bool { return compareVersions(known, version) == order }
	}
	known := slices.Concat(row.measured, row.compared)
	switch {
	case slices.Contains(row.measured, version):
		facts.Module = Measured
	case slices.Contains(row.compared, version), slices.ContainsFunc(known, is(-1)) && slices.ContainsFunc(known, is(1)):
		facts.Module = Compared
	}
	facts.Library = row.library
	return facts
}

var isVersion = regexp.MustCompile(`^[0-9]{3}(\.[0-9]{1,3}){1,2}$`)

// compareVersions compares versions such as 570.169 and 570.86.15.
func compareVersions(a, b string) int {
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(a, b string) int {
		m, _ := strconv.Atoi(a)
		n, _ := strconv.Atoi(b)
		return cmp.Compare(m, n)
	})
}
