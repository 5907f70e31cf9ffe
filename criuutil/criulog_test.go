package criuutil

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rlimit is what criu logs first wherever it lacks CAP_SYS_RESOURCE.
const rlimit = "Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n"

// TestTheErrorThatMattersIsFound in logs of criu 4.2.1.
func TestTheErrorThatMattersIsFound(t *testing.T) {
	tests := map[string]struct {
		log  string
		want Failure
	}{
		"none": {"(00.000001) Version: 4.2.1\nWarn  (compel/arch/x86/src/lib/infect.c:419): Will restore 13 with interrupted system call\n", Failure{}},
		"only harmless ones": {
			rlimit + "(00.011)     12: Error (criu/cgroup.c:1): cg: cgroupd: recv req error: Success\nError (compel/src/lib/infect.c:414): Unable to detach from 12: No such process\n",
			Failure{},
		},
		"only what follows": {rlimit + "Error (criu/cr-dump.c:1975): Dumping FAILED.\n", Failure{Cause: "Dumping FAILED."}},
		"at full verbosity": {
			"(00.001302) " + rlimit + "(00.001877) Dumping processes (pid: 13 comm: sh)\n" +
				"(00.031) Error (criu/cr-dump.c:1): Something new\n(00.032) Error (criu/cr-dump.c:1975): Dumping FAILED.\n",
			Failure{Cause: "Something new"},
		},
		"of a restored process": {
			"(00.017)     13: Error (criu/files-reg.c:2237): File tmp/log has bad size 12 (expect 6)\n(00.019) Error (criu/cr-restore.c:1548): 13 exited, status=1\n(00.020) Error (criu/cr-restore.c:2331): Restoring FAILED.\n",
			Failure{
				Cause:   "File tmp/log has bad size 12 (expect 6)",
				Remedy:  "tmp/log has changed since the dump, and the job has it open: put back its old content (6 bytes), and restore again",
				Further: []string{"(criu/cr-restore.c:1548): 13 exited, status=1"},
			},
		},
		"of the restorer": {
			"(00.1) pie: 13: Error (criu/pie/restorer.c:2): Something in the restorer\n(00.2) Error (criu/cr-restore.c:2331): Restoring FAILED.\n",
			Failure{Cause: "Something in the restorer", Place: "(criu/pie/restorer.c:2)"},
		},
		"a full disk": {
			"(00.1) Error (criu/bfd.c:116): bfd: Error flushing image: No space left on device\n(00.2) Error (criu/cr-dump.c:1975): Dumping FAILED.\n",
			Failure{Cause: "bfd: Error flushing image: No space left on device", Remedy: remedyFull},
		},
		"a bound network namespace": {
			"(00.1) Error (criu/mount.c:1132): mnt: 812:./run/netns/blue doesn't have a proper root mount\n",
			Failure{
				Cause:  "mnt: 812:./run/netns/blue doesn't have a proper root mount",
				Remedy: strings.ReplaceAll(remedyBound, "$1", "./run/netns/blue"),
			},
		},
		"pid in use": {
			rlimit + "Error (criu/cr-restore.c:1237): Can't fork for 13: File exists\nError (criu/cr-restore.c:2331): Restoring FAILED.\n",
			Failure{Cause: "Can't fork for 13: File exists", Remedy: strings.ReplaceAll(remedyTaken, "$1", "13")},
		},
		"a known one after what led to it": {
			rlimit + "Error (criu/util.c:657): exited, status=1\nError (criu/netfilter.c:105): Iptables configuration failed\nError (criu/sk-tcp.c:81): tcp: Failed to lock TCP connection 184c51e\nError (criu/cr-dump.c:1545): Dump files (pid: 13) failed with -1\n",
			Failure{
				Cause: "Iptables configuration failed", Remedy: remedyLock,
				Further: []string{"(criu/util.c:657): exited, status=1", "(criu/sk-tcp.c:81): tcp: Failed to lock TCP connection 184c51e", "(criu/cr-dump.c:1545): Dump files (pid: 13) failed with -1"},
			},
		},
		"of the action script": {
			"(00.01) Running pre-dump scripts\nError (cucriu-hook): lock: CUDA_ERROR_UNKNOWN\n  the job keeps running\n(00.02) Error (criu/action-scripts.c:156): One of more action scripts failed\n(00.03) Error (criu/cr-dump.c:2011): Pre dump script failed with -1!\n",
			Failure{Cause: "lock: CUDA_ERROR_UNKNOWN", Further: []string{"(criu/action-scripts.c:156): One of more action scripts failed", "(criu/cr-dump.c:2011): Pre dump script failed with -1!"}},
		},
		"repeated, and more than can be shown": {
			strings.Repeat("Error (a.c:1): first\nError (b.c:2): 0\nError (b.c:2): 1\nError (b.c:2): 2\nError (b.c:2): 3\nError (b.c:2): 4\nError (b.c:2): 5\n", 2),
			Failure{Cause: "first", Further: []string{"(b.c:2): 1", "(b.c:2): 2", "(b.c:2): 3", "(b.c:2): 4", "(b.c:2): 5"}},
		},
		"words of the job that only look like it": {"level=info text=\"an Error (x): y\"\n", Failure{}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := ReadFailure(strings.NewReader(test.log))
			if test.want.Place == "" {
				got.Place = ""
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAGhostLimitThatIsAdvisedSuffices(t *testing.T) {
	for size, want := range map[string]string{"1": "1M", "1048575": "1M", "1048576": "2M", "3145728": "4M"} {
		remedy := Remedy("Can't dump ghost file /tmp/file of " + size + " size, increase limit")
		if !strings.Contains(remedy, "--ghost-limit "+want+" ") || !strings.Contains(remedy, "/tmp/file") {
			t.Errorf("%s bytes: %s", size, remedy)
		}
	}
}
