// Package guest tests the library that cucriu run brings into a job.
package guest

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cucriu/internal/guest"
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

// TestEveryCLibraryHasWhatItNeeds: where a symbol is missing, the dynamic loader ends the program.
func TestEveryCLibraryHasWhatItNeeds(t *testing.T) {
	// Those of glibc 2.14 and of musl.
	had := strings.Fields(`__errno_location accept4 bind calloc close connect dl_iterate_phdr fcntl free getenv geteuid madvise mmap munmap prctl syscall getpid getsockopt listen malloc memcmp memcpy memmove
		memset nanosleep open poll pread pthread_mutex_lock pthread_mutex_unlock read recv recvmsg send sendmsg setsockopt shutdown sigfillset sigprocmask socket socketpair strcmp strncmp write`)
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
					images := host.Dump(job)
					if env == nil {
						// criu does not tell the failure of its last script by its exit status.
						if run := host.TryRestore(images); !strings.Contains(run.Log, "the restore failed") {
							t.Errorf("it comes back without the guest, too, so the test shows nothing: %s", run.Lines())
						}
						return
					}
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
func preloaded(t *testing.T, program string) string {
	t.Helper()
	dir := t.TempDir()
	data, err := os.ReadFile(testenv.Guest(t))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, guest.File), data, guest.Mode)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
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
