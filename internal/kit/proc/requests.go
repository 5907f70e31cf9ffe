package proc

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Request is what a process has asked of the kernel, what criu forgets, and what only the process itself can ask
// again.
type Request struct {
	What string `json:"what"` // one of those below
	// TID is the thread that it is about, in its innermost pid namespace; 0 if that is the process.
	TID   int    `json:"tid,omitempty"`
	Range Range  `json:"range,omitzero"`  // the memory that it is about
	Value string `json:"value,omitempty"` // as /proc has it
}

// requests are the system calls that ask for each. nodes is the address of a set of NUMA nodes.
var requests = map[string]func(r Request, p policy, nodes uint64) []uint64{
	requestPersonality: func(r Request, _ policy, _ uint64) []uint64 {
		persona, _ := strconv.ParseUint(r.Value, 16, 32)
		return []uint64{unix.SYS_PERSONALITY, persona}
	},
	requestNoStoreBypass: func(r Request, _ policy, _ uint64) []uint64 {
		return []uint64{unix.SYS_PRCTL, unix.PR_SET_SPECULATION_CTRL, unix.PR_SPEC_STORE_BYPASS, mitigations[r.Value], 0, 0}
	},
	requestNoIndirectBranch: func(r Request, _ policy, _ uint64) []uint64 {
		return []uint64{unix.SYS_PRCTL, unix.PR_SET_SPECULATION_CTRL, unix.PR_SPEC_INDIRECT_BRANCH, mitigations[r.Value], 0, 0}
	},
	requestThreadPolicy: func(_ Request, p policy, nodes uint64) []uint64 {
		return []uint64{unix.SYS_SET_MEMPOLICY, p.mode, nodes, maxNodes}
	},
	requestMerging: func(Request, policy, uint64) []uint64 {
		return []uint64{unix.SYS_PRCTL, unix.PR_SET_MEMORY_MERGE, 1, 0, 0, 0}
	},
	requestPolicy: func(r Request, p policy, nodes uint64) []uint64 {
		return []uint64{unix.SYS_MBIND, r.Range.Start, r.Range.Size(), p.mode, nodes, maxNodes, 0}
	},
	requestLockOnFault: func(r Request, _ policy, _ uint64) []uint64 {
		return []uint64{unix.SYS_MLOCK2, r.Range.Start, r.Range.Size(), unix.MLOCK_ONFAULT}
	},
	requestSeal: func(r Request, _ policy, _ uint64) []uint64 {
		return []uint64{unix.SYS_MSEAL, r.Range.Start, r.Range.Size(), 0}
	},
}

const (
	requestPersonality  = "personality"
	requestThreadPolicy = "memory policy of a thread"
	requestMerging      = "merging of its memory (KSM)"
	requestPolicy       = "memory policy"
	requestLockOnFault  = "lock on fault"
	requestSeal         = "seal"

	requestNoStoreBypass    = "no speculative store bypass"
	requestNoIndirectBranch = "no speculation about indirect branches"
)

// mitigations are the values of PR_SET_SPECULATION_CTRL by the words that /proc has for them, of what a thread asks for. What
// it may do anyway, and what holds for the whole system, is not among them.
var mitigations = map[string]uint64{
	"thread mitigated":           unix.PR_SPEC_DISABLE,
	"thread force mitigated":     unix.PR_SPEC_FORCE_DISABLE,
	"conditional disabled":       unix.PR_SPEC_DISABLE,
	"conditional force disabled": unix.PR_SPEC_FORCE_DISABLE,
}

// Call returns the number and the arguments of the system call, with the address of the nodes. These are nil if it
// has none.
func (r Request) Call() (nodes []byte, call func(nodes uint64) []uint64, err error) {
	arguments, known := requests[r.What]
	if !known {
		return nil, nil, fmt.Errorf("invalid request %q", r.What)
	}
	var p policy
	if r.What == requestPolicy || r.What == requestThreadPolicy {
		p, err = parsePolicy(r.Value)
	}
	return p.nodes, func(nodes uint64) []uint64 { return arguments(r, p, nodes) }, err
}

func (r Request) validate() error {
	_, _, err := r.Call()
	_, notHex := strconv.ParseUint(r.Value, 16, 32)
	page := uint64(os.Getpagesize())
	switch {
	case err != nil:
		return err
	case r.TID < 0, r.Range.End < r.Range.Start, r.Range.Start%page != 0, r.Range.End%page != 0,
		r.What == requestPersonality && notHex != nil,
		(r.What == requestNoStoreBypass || r.What == requestNoIndirectBranch) && mitigations[r.Value] == 0:
		return fmt.Errorf("invalid %s %q of %#x-%#x, thread %d", r.What, r.Value, r.Range.Start, r.Range.End, r.TID)
	}
	return nil
}

// maxNodes is one more than the highest number of a NUMA node that the kernel knows (linux/numa.h).
const maxNodes = 1024

// policy is a NUMA memory policy as set_mempolicy(2) and mbind(2) take it.
type policy struct {
	mode  uint64
	nodes []byte // a set of maxNodes bits; nil for none
}

var policyModes = map[string]uint64{
	"local": unix.MPOL_LOCAL, "prefer": unix.MPOL_PREFERRED, "bind": unix.MPOL_BIND, "interleave": unix.MPOL_INTERLEAVE,
	"prefer (many)": unix.MPOL_PREFERRED_MANY, "weighted interleave": unix.MPOL_WEIGHTED_INTERLEAVE,
}

var policyFlags = map[string]uint64{"": 0, "static": unix.MPOL_F_STATIC_NODES, "relative": unix.MPOL_F_RELATIVE_NODES}

// parsePolicy understands what numa_maps shows, such as bind=static:0-1,4.
func parsePolicy(text string) (p policy, err error) {
	name, list, _ := strings.Cut(text, ":")
	name, flag, _ := strings.Cut(name, "=")
	mode, known := policyModes[name]
	flags, knownFlag := policyFlags[flag]
	if !known || !knownFlag {
		return p, fmt.Errorf("unknown memory policy %q", text)
	}
	p.mode = mode | flags
	for part := range strings.SplitSeq(list, ",") {
		if part == "" {
			continue
		}
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, fromErr := strconv.ParseUint(first, 10, 16)
		to, toErr := strconv.ParseUint(last, 10, 16)
		if fromErr != nil || toErr != nil || to < from || to >= maxNodes-1 {
			return p, fmt.Errorf("invalid nodes of the memory policy %q", text)
		}
		if p.nodes == nil {
			p.nodes = make([]byte, maxNodes/8)
		}
		for node := from; node <= to; node++ {
			p.nodes[node/8] |= 1 << (node % 8) // as in an unsigned long: both architectures are little-endian
		}
	}
	return p, nil
}

// readRequests lists what a process must ask again. Its last ones are those that forbid others. What it does not
// understand, such as a policy of a newer kernel, is in the error.
func readRequests(pid int, tids []int) (found []Request, err error) {
	usual := ""
	for _, tid := range tids {
		persona, _ := os.ReadFile(fmt.Sprintf("/proc/%d/personality", tid))
		value := strings.TrimSpace(string(persona))
		policy := MemoryPolicy(tid)
		if tid == pid {
			usual = policy
		}
		_, zeros := strconv.ParseUint(value, 16, 32)
		hasPersona := zeros == nil && strings.Trim(value, "0") != ""
		status, err := ReadStatus(tid)
		if err != nil {
			continue // it has ended
		}
		if hasPersona {
			found = append(found, Request{What: requestPersonality, TID: status.ImagePID(), Value: value})
		}
		if policy != "" {
			found = append(found, Request{What: requestThreadPolicy, TID: status.ImagePID(), Value: policy})
		}
		if mitigations[status.StoreBypass] != 0 {
			found = append(found, Request{What: requestNoStoreBypass, TID: status.ImagePID(), Value: status.StoreBypass})
		}
		if mitigations[status.IndirectBranch] != 0 {
			found = append(found, Request{What: requestNoIndirectBranch, TID: status.ImagePID(), Value: status.IndirectBranch})
		}
	}
	merges, _ := ReadText(fmt.Sprintf("/proc/%d/ksm_stat", pid))
	if strings.Contains(string(merges), "ksm_merge_any: yes") {
		found = append(found, Request{What: requestMerging})
	}
	ofMemory, err := readMemoryRequests(pid, usual)
	found = slices.DeleteFunc(append(found, ofMemory...), func(r Request) bool {
		invalid := r.validate()
		err = errors.Join(err, invalid)
		return invalid != nil
	})
	return found, err
}

// MemoryPolicy returns the memory policy of a thread, or "". It is that of the first mapping, the program's: one line,
// because the kernel walks through all pages of a mapping for its line.
func MemoryPolicy(tid int) string {
	file, err := os.Open(fmt.Sprintf("/proc/%d/numa_maps", tid))
	if err != nil {
		return "" // it has ended, or the kernel knows no nodes
	}
	defer file.Close()
	line := make([]byte, 512)
	n, _ := file.Read(line)
	first, _, _ := strings.Cut(string(line[:n]), "\n")
	_, policy := splitPolicy(first)
	return policy
}

// splitPolicy splits a line of numa_maps: START POLICY KEY=VALUE…; two of the policies have a blank. The policy is ""
// if it is the usual one.
func splitPolicy(line string) (start uint64, policy string) {
	address, rest, _ := strings.Cut(line, " ")
	start, err := strconv.ParseUint(address, 16, 64)
	policy, after, _ := strings.Cut(rest, " ")
	if policy == "weighted" || policy == "prefer" && strings.HasPrefix(after, "(many)") {
		second, _, _ := strings.Cut(after, " ")
		policy += " " + second
	}
	if err != nil || policy == "default" {
		return start, ""
	}
	return start, policy
}

// area is a mapping of a process as smaps shows it.
type area struct {
	Range
	name, flags string
	resident    uint64 // bytes
}

func (a area) has(flag string) bool { return strings.Contains(a.flags+" ", " "+flag+" ") }

// eachArea does something with each mapping of a process but the kernel's own. The kernel walks through all of its pages.
func eachArea(pid int, do func(area)) error {
	var a area
	return eachLineOf(pid, "smaps", func(line string) error {
		if strings.ContainsAny(line[:min(len(line), 1)], "0123456789abcdef") { // else it is about that mapping
			a = area{}
			if r, _, name, err := SplitMapping(line); err == nil {
				a = area{Range: r, name: name}
			}
			return nil
		}
		switch key, value, _ := strings.Cut(line, ":"); key {
		case "Rss":
			kib, _ := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(value, "kB")), 10, 64)
			a.resident = kib << 10
		case "VmFlags": // the last line
			if a.flags = value; a.Size() > 0 && !strings.HasPrefix(a.name, "[v") {
				do(a)
			}
		}
		return nil
	})
}

// UntouchedLocks returns how much memory a process has locked on fault that is not there yet.
func UntouchedLocks(pid int) (bytes uint64, err error) {
	err = eachArea(pid, func(a area) {
		if a.has("lf") {
			bytes += a.Size() - min(a.Size(), a.resident)
		}
	})
	return bytes, err
}

// readMemoryRequests lists those about mappings. The policy of one that has none is shown as the process's.
func readMemoryRequests(pid int, usual string) (found []Request, err error) {
	var sealed []Request
	ends := make(map[uint64]uint64)
	err = eachArea(pid, func(a area) {
		ends[a.Start] = a.End
		if a.has("lf") {
			found = append(found, Request{What: requestLockOnFault, Range: a.Range})
		}
		if a.has("sl") {
			sealed = append(sealed, Request{What: requestSeal, Range: a.Range})
		}
	})
	if err != nil {
		return nil, err
	}
	err = eachLineOf(pid, "numa_maps", func(line string) error {
		start, policy := splitPolicy(line)
		if policy != "" && policy != usual && ends[start] != 0 {
			of := Range{Start: start, End: ends[start]}
			found = append(found, Request{What: requestPolicy, Range: of, Value: policy})
		}
		return nil
	})
	if errors.Is(err, ErrGone) {
		err = nil // or the kernel knows no nodes
	}
	return append(found, sealed...), err
}
