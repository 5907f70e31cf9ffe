// Package preflight knows by name which findings of a check can be overridden:
// the configuration is validated with it, and the hooks obey it. It knows nothing
// of how they are found.
package preflight

import (
	"fmt"
	"slices"
	"strings"
)

// The names of the errors that can be overridden: where what was found may be
// wrong, or the user may know better. The others could not be got over.
const (
	CriuVersion    = "criu-version"
	CriuCheck      = "criu-check"
	CUDAPlugin     = "cuda-plugin"
	Capabilities   = "capabilities"
	ForkedChild    = "forked-child"
	IOURing        = "io-uring"
	AnonymousInode = "anonymous-inode"
	InfiniBand     = "infiniband"
	NCCL           = "nccl-ipc"
	PeerMemory     = "peer-memory"
	HostNUMA       = "host-numa-memory"
	StagingMemory  = "staging-memory"
	MemoryCgroup   = "memory-cgroup"
	DiskSpace      = "disk-space"
)

// Forceable lists the names of the errors that can be overridden.
func Forceable() []string {
	return []string{
		CriuVersion, CriuCheck, CUDAPlugin, Capabilities, ForkedChild, IOURing, AnonymousInode, InfiniBand,
		NCCL, PeerMemory, HostNUMA, StagingMemory, MemoryCgroup, DiskSpace,
	}
}

// CheckForce refuses names that override nothing.
func CheckForce(names []string) error {
	for _, name := range names {
		if !slices.Contains(Forceable(), name) {
			return fmt.Errorf("%q cannot be forced: name one of %s", name, strings.Join(Forceable(), ", "))
		}
	}
	return nil
}
