package sandbox

import (
	"math"
	"os"
	"slices"
	"testing"
)

func TestWhatTheKernelOrTheHostMountsIsNotTheJobs(t *testing.T) {
	root := mount{1, 0, "8:1", "/", "/", "ext4", true}
	home := mount{2, 1, "0:50", "/", "/home", "nfs4", true}
	own := mount{4, 1, "0:58", "/", "/dev/shm", "tmpfs", false}
	known := []mount{root, home, own}
	with := func(mounts []mount, more ...mount) []mount { return append(slices.Clone(mounts), more...) }
	without := func(mounts []mount, gone mount) []mount {
		return slices.DeleteFunc(slices.Clone(mounts), func(m mount) bool { return m == gone })
	}
	host := []mount{{20, 0, "8:1", "/", "/", "ext4", false}, {21, 20, "0:50", "/", "/home", "nfs4", false}}
	scratch := mount{30, 1, "8:2", "/", "/scratch", "ext4", true}
	onHost := mount{40, 20, "8:2", "/", "/scratch", "ext4", false}
	volume := mount{31, 2, "0:51", "/", "/home/alice", "nfs4", false}
	bound := mount{33, 1, "8:1", "/new", "/current", "ext4", true}
	onTop := mount{34, 2, "0:53", "/", "/home/scratch", "tmpfs", false}
	for name, test := range map[string]struct {
		known, all, before, after []mount
		want                      []string
	}{
		"nothing":                               {known, known, host, host, nil},
		"another volume of a file server":       {known, with(known, volume), host, host, nil},
		"by a criu that was killed":             {known, with(known, mount{6, 1, "0:54", "/", "/tmp/.criu.cgmounts.a1", "cgroup", false}), host, host, nil},
		"by the host":                           {known, with(known, scratch), with(host, onHost), with(host, onHost), nil},
		"by the host just now":                  {known, with(known, scratch), host, with(host, onHost), nil},
		"by the host, and unmounted just now":   {known, with(known, scratch), with(host, onHost), host, nil},
		"unmounted by the host":                 {with(known, scratch), known, host, host, nil},
		"unmounted by the host just now":        {with(known, scratch), known, with(host, onHost), host, nil},
		"unmounted by the job":                  {with(known, scratch), known, with(host, onHost), with(host, onHost), []string{"/scratch"}},
		"the sandbox's own unmounted":           {known, without(known, own), host, host, []string{"/dev/shm"}},
		"by the job":                            {known, with(known, onTop), host, host, []string{"/home/scratch"}},
		"by the job what the host has":          {known, with(known, mount{35, 1, "8:2", "/", "/mnt", "ext4", true}), with(host, onHost), with(host, onHost), []string{"/mnt"}},
		"bound by the job from what it follows": {known, with(known, bound), host, host, []string{"/current"}},
		"put below the sandbox's own by the host": {
			known, with(without(known, own), mount{37, 1, "0:59", "/", "/dev/shm", "tmpfs", true}, mount{4, 37, "0:58", "/", "/dev/shm", "tmpfs", false}),
			with(host, mount{41, 20, "0:59", "/", "/dev/shm", "tmpfs", false}), host, nil,
		},
		"no longer told by the host": {known, with(without(known, home), mount{2, 1, "0:50", "/", "/home", "nfs4", false}), host, host, nil},
		"in place of another": {
			known, with(without(known, home), mount{36, 1, "0:50", "/other", "/home", "nfs4", false}), host, host, []string{"/home", "/home"},
		},
	} {
		if points := ofJob(test.known, test.all, test.before, test.after); !slices.Equal(points, test.want) {
			t.Errorf("%s: %q, want %q", name, points, test.want)
		}
	}
}

// TestAHostThatDoesNotTellIsLeftOut: a security module may hide the first process of the host.
func TestAHostThatDoesNotTellIsLeftOut(t *testing.T) {
	own, err := mounts(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	looks := looksAtHost(math.MaxInt32, os.Getpid())
	if len(looks) != 1 || !slices.Equal(looks[0], own) {
		t.Errorf("%d looks", len(looks))
	}
}
