package sandbox

import (
	"slices"
	"testing"
)

func TestWhatTheKernelMountsItselfIsNotTheJobs(t *testing.T) {
	root := mount{1, 0, "8:1", "/", "/", "ext4", false}
	home := mount{2, 1, "0:50", "/", "/home", "nfs4", false}
	all := []mount{
		root,
		home,
		{3, 2, "0:51", "/", "/home/alice", "nfs4", false}, // of another volume
		{4, 1, "0:52", "/", "/mnt", "tmpfs", false},
		{5, 2, "0:53", "/", "/home/scratch", "tmpfs", false},
		{6, 1, "0:54", "/", "/tmp/.criu.cgmounts.a1b2c3", "cgroup", false},
		{7, 1, "0:55", "/", "/net", "tmpfs", true},
		{8, 1, "0:56", "/", "/auto", "autofs", true},
		{9, 8, "8:1", "/exports/alice", "/auto/alice", "ext4", false},
	}
	if points := unlike(all, []mount{root, home}); !slices.Equal(points, []string{"/mnt", "/home/scratch"}) {
		t.Errorf("mounted: %q", points)
	}
	if points := unlike([]mount{root, home}, []mount{root}); !slices.Equal(points, []string{"/home"}) {
		t.Errorf("unmounted: %q", points)
	}
	other := home
	other.Root = "/other"
	if points := append(unlike([]mount{root, other}, []mount{root, home}), unlike([]mount{root, home}, []mount{root, other})...); len(points) != 2 {
		t.Errorf("mounted at the same place: %q", points)
	}
}
