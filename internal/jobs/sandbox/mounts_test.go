package sandbox

import (
	"slices"
	"testing"
)

func TestWhatTheKernelMountsItselfIsNotTheJobs(t *testing.T) {
	root := mount{1, 0, "8:1", "/", "/", "ext4"}
	home := mount{2, 1, "0:50", "/", "/home", "nfs4"}
	all := []mount{
		root,
		home,
		{3, 2, "0:51", "/", "/home/alice", "nfs4"}, // of another volume
		{4, 1, "0:52", "/", "/mnt", "tmpfs"},
		{5, 2, "0:53", "/", "/home/scratch", "tmpfs"},
		{6, 1, "0:54", "/", "/tmp/.criu.cgmounts.a1b2c3", "cgroup"},
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
