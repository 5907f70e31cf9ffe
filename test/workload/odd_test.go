package workload

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.Main(m)
}

// The exit statuses of a command that failed, and of one that refused before it touched anything.
const failed, refused = 1, 3

// foundLate stands for a finding if check passes a kind, and the dump fails and undoes itself.
const foundLate = "found by the dump"

// The kinds of odd processes, and the finding for which check and dump refuse each; "" if it is
// dumped and restored.
var odd = []struct{ kind, finding string }{
	{"plain", ""},
	// processes
	{"child-mount-namespace", preflight.FindingNamespace},
	{"child-network-namespace", preflight.FindingNamespace},
	{"child-user-namespace", preflight.FindingNamespace},
	{"child-pid-namespace", preflight.FindingNamespace},
	{"child-ipc-namespace", preflight.FindingNamespace},
	{"child-uts-namespace", preflight.FindingNamespace},
	{"child-cgroup-namespace", preflight.FindingNamespace},
	{"child-time-namespace", preflight.FindingNamespace},
	{"dead-session", ""},
	{"main-thread-ended", preflight.FindingUnsupportedProcess},
	{"clone-vm", preflight.FindingUnsupportedProcess},
	{"clone-fs", preflight.FindingUnsupportedProcess},
	{"clone-files", ""},
	{"undo", ""},
	{"scheduled", ""},
	{"memory-policy", ""},     // with a warning if it is alone
	{"locked-on-fault", ""},   // with a warning
	{"removed-attribute", ""}, // with a warning
	{"memfd-program", preflight.FindingUnrestorable},
	{"deadline", preflight.FindingUnrestorable},
	// open files
	{"kvm", preflight.FindingUnsupportedFile},
	{"fuse", preflight.FindingUnsupportedFile},
	{"tun", preflight.FindingUnsupportedFile},
	{"memory-devices", ""},
	{"sysv-memory", preflight.FindingUnsupportedFile},
	{"message-queue", preflight.FindingUnsupportedFile},
	{"huge-memfd", preflight.FindingUnsupportedFile},
	{"secret-file", preflight.FindingUnsupportedFile},
	{"secret-memory", preflight.FindingUnsupportedFile},
	{"bpf-map", preflight.FindingUnsupportedFile},
	{"seccomp-notify", preflight.FindingUnsupportedFile},
	{"landlock", preflight.FindingUnsupportedFile},
	{"new-file-system", preflight.FindingUnsupportedFile},
	{"detached-mount", preflight.FindingUnsupportedFile},
	{"foreign-mount", preflight.FindingUnsupportedFile},
	{"foreign-namespace", preflight.FindingUnsupportedFile},
	{"pidfd-outside", preflight.FindingUnsupportedFile},
	{"pidfd-inside", ""},
	{"alarm-timer", preflight.FindingUnsupportedFile},
	{"timers", ""},
	{"packet-pipe", preflight.FindingUnsupportedFile},
	{"plain-pipe", ""},
	{"vsock", preflight.FindingUnsupportedFile},
	{"sockets", ""},
	{"path-descriptor", ""},
	{"program-descriptor", preflight.FindingUnrestorable},
	{"long-path", preflight.FindingUnsupportedFile},
	{"libaio", ""},
	{"eventfd-semaphore", preflight.FindingUnrestorable},
	{"dead-client", preflight.FindingUNIXSocket},
	{"unread-client", preflight.FindingUNIXSocket},
	{"waiting-client", ""},
	{"netlink", ""},
	{"netlink-high-group", preflight.FindingUnsupportedFile},
	{"netlink-unbound", preflight.FindingUnsupportedFile},
	{"netlink-unread", preflight.FindingUnsupportedFile},
	{"shared-port", ""},
	{"settings", ""},
	{"watch-overlay", ""},
	{"removed-lower", preflight.FindingUnsupportedFile},
	{"removed-linked", ""},
	{"watch-nameless", preflight.FindingUnsupportedFile},
	{"watch-file-system", preflight.FindingUnsupportedFile},
	{"write-lease", preflight.FindingFileGuard},
	{"read-lease", ""},
	{"permission-events", preflight.FindingFileGuard},
	{"epoll", ""},
	{"epoll-duplicate", preflight.FindingUnrestorable},
	{"epoll-moved", ""},
	{"epoll-reused", ""},
	// what criu would dump and never restore
	{"thread-descriptors", preflight.FindingUnrestorable},
	{"thread-directory", preflight.FindingUnrestorable},
	{"thread-namespace", preflight.FindingUnrestorable},
	{"thread-timer", ""},
	{"orphan-timer", preflight.FindingUnrestorable},
	{"process-files", ""},
	{"process-directory", preflight.FindingUnrestorable},
	{"inside-process", preflight.FindingUnrestorable},
	{"thread-file", preflight.FindingUnrestorable},
	{"thread-as-process", preflight.FindingUnrestorable},
	{"dead-process-file", ""},
	{"sealed-memory", preflight.FindingUnrestorable},
	{"future-sealed-memory", ""},
	{"path-of-memory", preflight.FindingUnrestorable},
	{"path-of-pipe", preflight.FindingUnrestorable},
	{"immutable-file", preflight.FindingUnrestorable},
	{"append-only-file", ""},
	{"removed-directory", ""},
	{"directory-again", preflight.FindingUnrestorable},
	{"directory-twice", preflight.FindingUnrestorable},
	{"removed-with-directory", ""},
	{"file-for-directory", preflight.FindingUnrestorable},
	{"long-removed-name", preflight.FindingUnrestorable},
	{"high-descriptor", preflight.FindingUnrestorable},
	{"many-descriptors", ""},
	{"foreign-address", preflight.FindingTCPAddress},
}

// The kinds that a trial restore does not show: nothing fails, or what fails may be its sandbox's
// doing (files, addresses), or it is not tried, because a trial would touch the job (leases, events).
var notShown = []string{
	"thread-descriptors", "thread-directory", "thread-namespace", "process-directory", "inside-process", "thread-file", "thread-as-process",
	"sealed-memory", "path-of-memory", "immutable-file", "directory-again", "directory-twice", "file-for-directory", "long-removed-name", "foreign-address",
	"eventfd-semaphore", "read-lease", "write-lease", "permission-events",
}

// TestWhatCheckPassesIsNeverLost: an odd process that check and dump pass is restored and is what
// it was. One that check refuses is refused by dump, too, for the same reason, and runs on. Each
// is dumped with a CUDA process as its child, and some alone.
func TestWhatCheckPassesIsNeverLost(t *testing.T) {
	testenv.Parallel(t)
	for _, row := range odd {
		t.Run(row.kind, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) { tryOdd(t, row.kind, row.finding, true) })
		})
	}
	for kind, finding := range map[string]string{"memfd-program": preflight.FindingUnrestorable, "user-namespace": preflight.FindingNamespace, "memory-policy": ""} {
		t.Run("without-cuda-"+kind, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) { tryOdd(t, kind, finding, false) })
		})
	}
}

func tryOdd(t *testing.T, kind, finding string, cuda bool) {
	// As it usually is: a job with more descriptors has raised it for itself.
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Cur = min(1024, limit.Max)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	host := testenv.NewHost(t, 1)
	dir, images := t.TempDir(), filepath.Join(t.TempDir(), "images")
	in := func(name string) string { return filepath.Join(dir, name) }
	program := testenv.Artefact(t, "make workload", "build", "workload", "odd")
	var job *testenv.Job
	if cuda {
		job = host.StartUnder([]string{"/bin/sh", "-c", `odd=$1 kind=$2 dir=$3; shift 3; "$@" & exec $odd $kind $dir`, "sh", program, kind, dir}, 1)
	} else {
		job = testenv.JobOf(t, host.Spawn(dir, program, kind, dir))
	}
	testenv.Eventually(t, testenv.Soon, "it is "+kind, func() bool {
		if why, err := os.ReadFile(in("not-here")); err == nil {
			t.Skipf("this kernel does not have it: %s", why)
		}
		return testenv.Exists(in("ready"))
	})
	asItWas := func() {
		t.Helper()
		testenv.WriteFile(t, in("ask"), "")
		// It removes the request last: one that is made before would be lost.
		testenv.Eventually(t, testenv.Soon, "the odd process answers", func() bool { return testenv.Exists(in("answer")) && !testenv.Exists(in("ask")) })
		if answer, err := os.ReadFile(in("answer")); err != nil || string(answer) != "as it was" {
			t.Fatalf("%s: %v", answer, err)
		}
		if err := os.Remove(in("answer")); err != nil {
			t.Fatal(err)
		}
		job.Runs()
	}
	asItWas()
	out, checked := cucriu(t, host, "check", "--json", "-t", job.Root(), "-D", images)
	var findings preflight.Findings
	if err := json.Unmarshal([]byte(out), &findings); err != nil {
		t.Fatalf("cucriu check: %v\n%s", err, out)
	}
	errs := findings.Of(preflight.SeverityError)
	warnings := findings.Of(preflight.SeverityWarning).Text()
	for name, should := range map[string]bool{
		preflight.FindingMemoryPolicy: kind == "memory-policy" && !cuda,
		preflight.FindingNotRestored:  kind == "locked-on-fault" || kind == "removed-attribute",
	} {
		if warned := strings.Contains(warnings, name); warned != should {
			t.Errorf("check warns of %s: %v", name, warned)
		}
	}
	out, dumped := cucriu(t, host, "dump", "-t", job.Root(), "-D", images)
	became := ""
	switch {
	case checked == 0 && dumped == 0:
		testenv.Eventually(t, testenv.Soon, "the job is gone", job.Gone)
		if out, status := cucriu(t, host, "restore", "-D", images); status != 0 {
			t.Fatalf("LOST: check and dump passed it, and cucriu restore ends with %d\n%s", status, out)
		}
	case checked == 0 && dumped == failed:
		became = foundLate
	case checked == refused && dumped == refused && !slices.ContainsFunc(errs, func(f preflight.Finding) bool {
		return f.Name != errs[0].Name || !strings.Contains(out, f.String())
	}):
		became = errs[0].Name
	default:
		t.Fatalf("cucriu check: %d %v\ncucriu dump: %d\n%s", checked, errs, dumped, out)
	}
	asItWas()
	if became != finding {
		t.Errorf("became %q, want %q: %v\n%s", became, finding, errs, out)
	}
	if became != "" && testenv.Exists(images) {
		t.Error("it was not dumped, but there is an image directory")
	}
}

// cucriu runs the command to its end.
func cucriu(t *testing.T, host *testenv.Host, args ...string) (out string, status int) {
	t.Helper()
	if args[0] == "check" {
		args = append(args, "--criu", testenv.Criu(t))
	}
	cmd := host.CucriuCommand(args...)
	watchdog := time.AfterFunc(3*testenv.Soon, func() { _ = cmd.Process.Kill() })
	defer watchdog.Stop()
	var output strings.Builder
	cmd.Stdout = &output
	if args[0] != "check" {
		cmd.Stderr = &output
	}
	_ = cmd.Run()
	return output.String(), cmd.ProcessState.ExitCode()
}
