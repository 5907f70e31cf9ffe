package guest

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/guest"
	"cucriu/internal/testenv"
)

// filtered is a program that puts all its threads under a filter when it has called cuInit, and then allocates memory and
// uses it: filtered FILE MIB kill|only NUMBERS. A call that is forbidden ends it.
const filtered = `#include <dlfcn.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#define CALL(name, ...) if (((int (*)())dlsym(lib, name))(__VA_ARGS__)) _exit(3)
#ifdef LOCAL
static __thread char local[LOCAL]; /* of each thread */
#else
static char local[64];
#endif
int main(int argc, char **argv)
{
	struct sock_filter f[256];
	unsigned short n = local[argc];
	void *lib = dlopen("libcuda.so.1", RTLD_NOW), *context;
	unsigned long long at, got, size = strtoul(argv[2], NULL, 10) << 20;
	int out = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600), only = !strcmp(argv[3], "only");

	CALL("cuInit", 0);
	f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (int i = 4; i < argc; i++) {
		f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)atoi(argv[i]), 0, 1);
		f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, only ? SECCOMP_RET_ALLOW : SECCOMP_RET_KILL_PROCESS);
	}
	f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, only ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ALLOW);
	struct sock_fprog program = {n, f};
	if (!only) { /* what the program itself does by then with fewer calls */
		CALL("cuDevicePrimaryCtxRetain", &context, 0);
		CALL("cuCtxSetCurrent", context);
	}
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (only) {
		CALL("cuDevicePrimaryCtxRetain", &context, 0);
		CALL("cuCtxSetCurrent", context);
		CALL("cuMemAlloc_v2", &at, size);
	}
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program))
		_exit(5);
	if (!only)
		CALL("cuMemAlloc_v2", &at, size);
	for (unsigned long long tick = 1;; tick++) {
		CALL("cuMemcpyHtoD_v2", at, &tick, sizeof tick);
		CALL("cuMemcpyDtoH_v2", &got, at, sizeof got);
		if (got != tick || write(out, "tick\n", 5) != 5)
			_exit(4);
		usleep(20000);
	}
}
`

// TestAFilterOfTheProgramsEndsNoJob although the filter was put on the library's threads, too, before the first memory was allocated.
// They make no calls but those of which the library says so.
func TestAFilterOfTheProgramsEndsNoJob(t *testing.T) {
	testenv.Parallel(t)
	numbers := func(calls ...int) (text []string) {
		for _, number := range calls {
			text = append(text, strconv.Itoa(number))
		}
		return text
	}
	// What the program itself calls, the simulated driver in its own threads, and what criu has the process call.
	only := []int{
		unix.SYS_READ, unix.SYS_WRITE, unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_OPENAT, unix.SYS_FSTAT, unix.SYS_NEWFSTATAT, unix.SYS_LSEEK,
		unix.SYS_POLL, unix.SYS_GETPID, unix.SYS_RT_SIGRETURN, unix.SYS_RT_SIGPROCMASK, unix.SYS_FCNTL, unix.SYS_FLOCK, unix.SYS_KILL,
		unix.SYS_CLOCK_GETTIME, unix.SYS_SCHED_YIELD, unix.SYS_EXIT_GROUP, unix.SYS_FTRUNCATE, unix.SYS_BRK,
		unix.SYS_GETDENTS64, unix.SYS_STAT, unix.SYS_STATX, unix.SYS_ACCESS, unix.SYS_FACCESSAT, unix.SYS_READLINK, unix.SYS_UNLINK, unix.SYS_UNLINKAT,
		unix.SYS_RENAME, unix.SYS_LINK, unix.SYS_MKDIR, unix.SYS_OPEN, unix.SYS_FALLOCATE, unix.SYS_GETRANDOM,
		unix.SYS_PIPE2, unix.SYS_DUP2, unix.SYS_DUP3, unix.SYS_EVENTFD2, unix.SYS_SYMLINK, unix.SYS_RT_SIGACTION, // of the real driver
		unix.SYS_SOCKETPAIR, unix.SYS_SENDMSG, unix.SYS_RECVMSG, // those of agent.CanKeep
	}
	for _, c := range guest.Calls {
		only = append(only, c.Number)
	}
	thread := numbers(unix.SYS_CLONE3, unix.SYS_CLONE, unix.SYS_GETTID, unix.SYS_PRCTL, unix.SYS_SCHED_GETAFFINITY,
		unix.SYS_EXIT, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ)
	older := testenv.Artefact(t, "make guest", "build", "test", "small-v4-"+runtime.GOARCH+".so")
	for name, test := range map[string]struct {
		arguments []string
		want      string // of the log
		refused   bool
	}{
		"allows what the library calls":  {append([]string{"only"}, numbers(only...)...), "", false},
		"forbids what begins a thread":   {append([]string{"kill"}, thread...), "", false},
		"forbids it to an older library": {append([]string{"kill"}, thread...), "the driver moves the memory", false},
		"forbids what the library calls": {append([]string{"kill"}, numbers(unix.SYS_MADVISE)...), "the driver moves the memory", false},
		"forbids what the driver calls":  {append([]string{"kill"}, numbers(unix.SYS_MPROTECT)...), "let the filter allow that system call", true},
		"forbids sched_yield":            {append([]string{"kill"}, numbers(unix.SYS_SCHED_YIELD)...), "let the filter allow that system call", true},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1, "--mib-per-gpu", "200")
				host.Setenv("CUCRIU_CONFIG", host.Config(testenv.Patient))
				program := built(t, filtered)
				dir := t.TempDir()
				out := filepath.Join(dir, "ticks")
				library := testenv.Guest(t)
				if strings.Contains(name, "older") {
					library = older
				}
				command := append([]string{"LD_PRELOAD=" + library, program, out, "32"}, test.arguments...)
				job := &testenv.Job{PID: host.Spawn(dir, "/usr/bin/env", command...)}
				ticks := func() int {
					info, err := os.Stat(out)
					if err != nil {
						return 0
					}
					return int(info.Size())
				}
				runs := func() {
					t.Helper()
					before := ticks()
					testenv.Eventually(t, testenv.Soon, "the program runs", func() bool { return ticks() > before+5 })
				}
				runs()
				for range 2 {
					run := host.TryDump(job, testenv.NewImages(t), "-R")
					if (run.Err != nil) != test.refused || !strings.Contains(run.Log, test.want) {
						t.Fatalf("criu dump: %v, not %q\n%s", run.Err, test.want, run.Lines())
					}
					if !test.refused {
						host.WaitOutcome("running")
					}
					if test.want == "" {
						moved(t, host, run)
					}
					runs()
				}
			})
		})
	}
}

// TestAProgramWithMuchThreadLocalMemoryIsServed: it takes room on the stack of each thread, all of a small one or nearly all.
func TestAProgramWithMuchThreadLocalMemoryIsServed(t *testing.T) {
	testenv.Parallel(t)
	for _, size := range []int{2 << 20, 1<<20 - 8<<10} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1, "--mib-per-gpu", "200")
				host.Setenv("CUCRIU_CONFIG", host.Config(testenv.Patient))
				program := built(t, filtered, "-DLOCAL="+strconv.Itoa(size))
				dir := t.TempDir()
				out := filepath.Join(dir, "ticks")
				job := &testenv.Job{PID: host.Spawn(dir, "/usr/bin/env", "LD_PRELOAD="+testenv.Guest(t), program, out, "32", "kill", "9999")}
				testenv.Eventually(t, testenv.Soon, "the program runs", func() bool {
					ticks, _ := os.ReadFile(out) // it makes the file before it uses CUDA
					return len(ticks) > 0
				})
				run := host.TryDump(job, testenv.NewImages(t), "-R")
				if run.Err != nil {
					t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
				}
				host.WaitOutcome("running")
				moved(t, host, run)
			})
		})
	}
}
