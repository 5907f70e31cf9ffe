// Package guest tests the library that cucriu run brings into a job.
package guest

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/guest"
	"cucriu/internal/testenv"
)

// rows runs a program that tells what it sees of its memory.
func rows(t *testing.T, host *testenv.Host, program string, args []string, env ...string) []string {
	t.Helper()
	cmd := host.Command(testenv.Artefact(t, "make workload", "build", "workload", program), args...)
	cmd.Env = append(cmd.Environ(), env...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, env, err, out)
	}
	return strings.Split(string(out), "\n")
}

// same reports whether two rows are. A number that "about" stands before may differ by 64.
func same(a, b string) bool {
	var x, y int
	const about = "about %d MiB"
	if _, err := fmt.Sscanf(a, about, &x); err != nil {
		return a == b
	}
	_, err := fmt.Sscanf(b, about, &y)
	return err == nil && x-y <= 64 && y-x <= 64
}

func TestAProgramSeesNoDifference(t *testing.T) {
	testenv.Parallel(t)
	for program, test := range map[string]struct {
		simulated, real []string // MiB in all, and of rows between the words that it looks at, and whether it exports: that is not simulated well enough
		least           int
	}{
		"rows":     {[]string{"32", "4", "0"}, []string{"1280", "256", "1"}, 100},
		"ordinary": {[]string{"32"}, []string{"1280"}, 200},
		"sharing":  {[]string{"32"}, []string{"1280"}, 10},
		"full":     {[]string{"1", "5", "24", "60"}, []string{"3", "20", "300", "1300"}, 12},
	} {
		t.Run(program, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, testenv.GPUsUpTo(2), "--mib-per-gpu", "200")
				args := test.simulated
				if testenv.RealDriver() {
					args = test.real
				}
				without := rows(t, host, program, args)
				if len(without) < test.least {
					t.Fatalf("only %d rows: %q", len(without), without)
				}
				with := rows(t, host, program, args, "LD_PRELOAD="+testenv.Guest(t))
				if len(without) != len(with) {
					t.Errorf("%d rows without the guest, %d with", len(without), len(with))
				}
				for i := range min(len(without), len(with)) {
					want := without[i]
					if strings.HasPrefix(want, "fabric handles and multicast: ") {
						want = "fabric handles and multicast: 0 0"
					}
					if !same(want, with[i]) {
						t.Errorf("row %d: without the guest %q, with %q", i+1, without[i], with[i])
					}
				}
			})
		})
	}
}

// situations are programs that do what is usual around the driver, and those into which a user has put something of
// his own: each does with the library what it does without it.
var situations = []struct {
	what    string
	program string // and its arguments, behind its environment; MIB is the size
	between string // what the user preloads, before or behind the library
}{
	{"memory of a program that looks functions up", "situations ordinary MIB", ""},
	{"a program that is linked with the driver", "linked MIB", ""},
	{"and is bound at its start", "LD_BIND_NOW=1 linked MIB", ""},
	{"and has a tracer before it", "linked MIB", "between-next.so"},
	{"one that opens the driver itself", "linked MIB", "between-open.so"},
	{"one that takes dlsym over", "linked MIB", "between-dlsym.so"},
	{"one that is called as the driver is", "linked MIB", "between-path.so"},
	{"a tracer of functions that are looked up", "situations ordinary MIB", "between-dlsym.so"},
	{"a tracer that such a program passes by", "situations ordinary MIB", "between-next.so"},
	{"libcuda is closed, and used again by another library", "situations reopened MIB linked.so", ""},
	{"libcuda is closed, and a library that passes its names on opens it", "situations reopened MIB stub.so", ""},
	{"and that is traced", "situations reopened MIB linked.so", "between-open.so"},
	{"libcuda in a namespace of its own", "situations own-namespace MIB", ""},
	{"dlsym by its version", "situations other-dlsym MIB dlvsym", ""},
	{"dlsym by its library", "situations other-dlsym MIB library", ""},
	{"whose a function is", "situations whose MIB", ""},
	{"a thread is cancelled: free", "situations cancelled MIB free", ""},
	{"a thread is cancelled: export", "situations cancelled MIB export", ""},
	{"a thread is cancelled: ipc", "situations cancelled MIB ipc", ""},
	{"no free descriptor: ipc", "situations few-descriptors MIB ipc 0", ""},
	{"one free descriptor: export", "situations few-descriptors MIB export 1", ""},
	{"another root: ipc", "situations changed-root MIB ipc", ""},
	{"no more address space: ipc", "situations few-addresses MIB ipc", ""},
	{"no more address space: export", "situations few-addresses MIB export", ""},
	{"no more threads", "situations refused MIB threads", ""},
	{"no more sockets", "situations refused MIB sockets", ""},
	{"sockets that were closed", "situations closed-sockets MIB", ""},
	{"half of a mapping is unmapped", "situations half-unmapped MIB", ""},
	{"a child before CUDA is used: fork", "situations child-first MIB fork", ""},
	{"a child before CUDA is used: clone", "situations child-first MIB clone", ""},
	{whileThreadsAreInTheDriver, "situations child-amid MIB", ""},
	{"signals all the time", "situations interrupted MIB", ""},
}

// whileThreadsAreInTheDriver is a row without an answer on the real driver: such children had not ended there after
// two minutes, without the library too.
const whileThreadsAreInTheDriver = "children while threads are in the driver"

// situation runs a row of the table, with the libraries that are to be preloaded, and returns what the program prints, and how it ends.
func situation(t *testing.T, host *testenv.Host, program string, preload ...string) string {
	t.Helper()
	words := strings.Fields(strings.ReplaceAll(program, "MIB", map[bool]string{false: "32", true: "640"}[testenv.RealDriver()]))
	var env []string
	for strings.Contains(words[0], "=") {
		env, words = append(env, words[0]), words[1:]
	}
	for i, word := range words {
		if i == 0 || strings.HasSuffix(word, ".so") {
			words[i] = testenv.Artefact(t, "make workload", "build", "workload", word)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := host.Command(words[0], words[1:]...)
	cmd.Env = append(append(cmd.Environ(), env...), "LD_PRELOAD="+strings.Join(preload, ":"))
	limited := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
	limited.Env = cmd.Env
	out, err := limited.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("%s with LD_PRELOAD=%s has not ended in time: %s", program, strings.Join(preload, ":"), out)
	}
	return fmt.Sprintf("%s%v", out, err)
}

func TestTheLibraryChangesNothing(t *testing.T) {
	testenv.Parallel(t)
	for _, row := range situations {
		t.Run(row.what, func(t *testing.T) {
			if testenv.RealDriver() && row.what == whileThreadsAreInTheDriver {
				t.Skip("the driver itself does not answer such children")
			}
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1, "--mib-per-gpu", "400")
				library, own := testenv.Guest(t), []string(nil)
				orders := [][]string{{library}}
				if row.between != "" {
					between := testenv.Artefact(t, "make workload", "build", "workload", row.between)
					own = []string{between}
					orders = [][]string{{library, between}, {between, library}}
				}
				without := situation(t, host, row.program, own...)
				for _, order := range orders {
					if with := situation(t, host, row.program, order...); with != without {
						t.Errorf("with %q preloaded, it prints\n%s\nand without the library\n%s", order, with, without)
					}
				}
			})
		})
	}
}

// TestATracedJobIsServed: who stands between takes the library for the driver, in whatever order the two are loaded.
func TestATracedJobIsServed(t *testing.T) {
	testenv.Parallel(t)
	between := testenv.Artefact(t, "make workload", "build", "workload", "between-dlsym.so")
	for name, preload := range map[string]string{
		"before": between + ":" + testenv.Guest(t),
		"behind": testenv.Guest(t) + ":" + between,
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1, "--mib-per-gpu", "400")
				host.Setenv("CUCRIU_CONFIG", host.Config(testenv.Patient))
				job := host.StartUnder([]string{"/usr/bin/env", "LD_PRELOAD=" + preload}, 1, "--mib", "64")
				job.Runs()
				images := testenv.NewImages(t)
				moved(t, host, host.TryDump(job, images))
				host.Restore(images)
				job.Runs()
				job.Check()
			})
		})
	}
}

// TestEveryCLibraryHasWhatItNeeds: where a symbol is missing, the dynamic loader ends the program.
func TestEveryCLibraryHasWhatItNeeds(t *testing.T) {
	// Those of glibc 2.14 and of musl.
	had := strings.Fields(`__errno_location accept4 bind calloc close connect dl_iterate_phdr fcntl free getenv geteuid getpeername getsockname madvise mmap munmap prctl syscall getpid getsockopt listen malloc memcmp memcpy memmove
		memset nanosleep open poll pread pthread_mutex_lock pthread_mutex_unlock pthread_setcancelstate read recv recvmsg send sendmsg setsockopt shutdown sigfillset sigprocmask socket socketpair strcmp strncmp write`)
	file, err := elf.Open(testenv.Guest(t))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF && elf.ST_BIND(s.Info) != elf.STB_WEAK && !slices.Contains(had, s.Name) {
			t.Errorf("the library needs %s (%s)", s.Name, s.Version)
		}
		if minor, is := strings.CutPrefix(s.Version, "GLIBC_2."); is {
			if n, err := strconv.ParseFloat(minor, 64); err != nil || n > 17 {
				t.Errorf("%s is of glibc 2.%s", s.Name, minor)
			}
		}
	}
	if libraries, err := file.ImportedLibraries(); err != nil || !slices.Equal(libraries, []string{"libc.so.6"}) {
		t.Errorf("the library is linked with %v (%v)", libraries, err)
	}
}

// TestPeerAccessToLargeMemoryComesBack with the guest alone.
func TestPeerAccessToLargeMemoryComesBack(t *testing.T) {
	testenv.Parallel(t)
	for name, env := range map[string][]string{"without": nil, "with": {"LD_PRELOAD=" + testenv.Guest(t)}} {
		for _, memory := range []string{"vmm", "alloc"} {
			t.Run(name+"/"+memory, func(t *testing.T) {
				testenv.Simulated(t, func(t *testing.T) {
					host := testenv.NewHost(t, 2, "--mib-per-gpu", "200", "--peer-limit-mib", "8")
					job := host.StartUnder(slices.Concat([]string{"/usr/bin/env"}, env), 1, "--gpus", "0,1", "--peer", "both", "--memory", memory, "--mib", "32")
					if env == nil {
						testenv.Refused(t, host, job, preflight.FindingPeerMemory, testenv.NewImages(t))
						return
					}
					images := host.Dump(job)
					host.Restore(images)
					job.Runs()
					job.Check()
				})
			})
		}
	}
}

// TestMemoryThatCouldBeSharedComesBack: the socket on which others would ask for it does, too.
func TestMemoryThatCouldBeSharedComesBack(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2, "--mib-per-gpu", "200")
		job := host.StartUnder(testenv.WithGuest(t), 1, "--ipc-handles", "--mib", "32")
		sockets, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", job.PID))
		if err != nil || !strings.Contains(string(sockets), "@cucriu-guest-") {
			t.Errorf("nobody can ask for it: %v\n%s", err, sockets)
		}
		host.Restore(host.Dump(job))
		job.Runs()
		job.Check()
	})
}

// TestProgramsWithoutCUDA: the guest takes the place of dlsym in them, too. Python asks it for each module.
func TestProgramsWithoutCUDA(t *testing.T) {
	for _, command := range [][]string{
		{"python3", "-c", "import ctypes, json, zlib; print(ctypes.CDLL(None).strlen(b'four'))"},
		{"bash", "-c", "echo $((2+2))"},
	} {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Env = append(os.Environ(), "LD_PRELOAD="+testenv.Guest(t))
		if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "4" {
			t.Errorf("%v: %v: %s", command, err, out)
		}
	}
}

// built is a program of C, built here.
func built(t *testing.T, source string, flags ...string) string {
	t.Helper()
	if testenv.RealDriver() {
		t.Skip("needs gcc; nothing of it needs GPUs")
	}
	program := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("gcc", append(flags, "-D_GNU_SOURCE", "-x", "c", "-o", program, "-")...)
	cmd.Stdin = strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return program
}

// preloaded runs a program with the library, as a job does, and returns what it prints.
func preloaded(t *testing.T, program string, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	data, err := os.ReadFile(testenv.Guest(t))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, guest.File), data, guest.Mode)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = guest.Preload(os.Environ(), dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	return string(out)
}

// TestSanitizers: they ask for dlsym before they have put their functions in place of the C library's, and one wants to be the first library.
func TestSanitizers(t *testing.T) {
	for _, sanitizer := range []string{"address", "thread", "undefined", "leak"} {
		t.Run(sanitizer, func(t *testing.T) {
			program := built(t, `int puts(const char *); int main(void) { puts("4"); }`, "-fsanitize="+sanitizer)
			if out := preloaded(t, program); out != "4\n" {
				t.Errorf("it prints %q", out)
			}
			// A wrapper script may set options of its own, in place of what a job is started with.
			if out := preloaded(t, "/usr/bin/env", "ASAN_OPTIONS=detect_leaks=0", program); out != "4\n" {
				t.Errorf("with options of its own, it prints %q", out)
			}
		})
	}
}

// TestOthersThatTakeFunctionsOver: one of them is what dlsym is found by.
func TestOthersThatTakeFunctionsOver(t *testing.T) {
	program := built(t, `#include <dlfcn.h>
		#include <link.h>
		#include <stdio.h>
		static int found(struct dl_phdr_info *i, size_t n, void *data) { ++*(int *)data; return 0; }
		int dl_iterate_phdr(int (*f)(struct dl_phdr_info *, size_t, void *), void *data)
		{
			static int (*real)(int (*)(struct dl_phdr_info *, size_t, void *), void *);
			if (!real)
				*(void **)&real = dlsym(RTLD_NEXT, "dl_iterate_phdr");
			return real(f, data);
		}
		int main(void) { int n = 0; dl_iterate_phdr(found, &n); puts(n > 2 ? "many" : "few"); }`)
	if out := preloaded(t, program); out != "many\n" {
		t.Errorf("it prints %q", out)
	}
}

// TestWithoutTheDriverNoneIsFound: so programs find out whether they can use a GPU.
func TestWithoutTheDriverNoneIsFound(t *testing.T) {
	program := built(t, `#include <dlfcn.h>
		#include <stdio.h>
		int cuckoo = 7, cumulative = 8;
		static void say(void *of) { puts(!of ? "none" : dlerror() ? "error" : "found"); }
		int main(void)
		{
			say(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
			puts(dlerror() ? "error" : "no error");
			say(dlsym(dlopen(NULL, RTLD_LAZY), "cuMemAlloc_v2"));
			say(dlsym(RTLD_DEFAULT, "cuckoo"));
			say(dlsym(dlopen(NULL, RTLD_LAZY), "cumulative"));
			say(dlsym(RTLD_DEFAULT, "custom_that_is_not_there"));
		}`, "-rdynamic")
	if out, want := preloaded(t, program), "none\nerror\nnone\nfound\nfound\nnone\n"; out != want {
		t.Errorf("it prints %q, want %q", out, want)
	}
}
