// The first process of a long job: see ../doc.go. It has no libc, so that it has no thread, no restartable
// sequence, and no memory but its stack and this page: whatever is dumped with it is the job's.
#include <asm/ioctls.h>
#include <asm/siginfo.h>
#include <asm/signal.h>
#include <asm/unistd.h>
#include <linux/errno.h>
#include <linux/fcntl.h>
#include <linux/prctl.h>
#include <linux/wait.h>

enum { report = 3, program = 4 }; // descriptors: where an error of execve goes; this file

#ifdef __x86_64__
__asm__(".globl _start\n_start:\n xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call run\n");

static long call5(long number, long a, long b, long c, long d, long e)
{
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e;
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
	return result;
}
#elif defined(__aarch64__)
__asm__(".globl _start\n_start:\n mov x29, #0\n mov x0, sp\n bl run\n");

static long call5(long number, long a, long b, long c, long d, long e)
{
	register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d, x4 __asm__("x4") = e;
	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
	return x0;
}
#endif

#define call(number, a, b, c, d) call5(number, (long)(a), (long)(b), (long)(c), (long)(d), 0)

static const unsigned long all = ~0ul;

static void end(int status)
{
	for (;;)
		call(__NR_exit_group, status, 0, 0, 0);
}

// fail tells who started this program why the command does not run.
static void fail(long error)
{
	int number = -error;
	call(__NR_write, report, &number, sizeof number, 0);
	end(127);
}

static void become(char *terminal, char *path, char **args, char **environment, unsigned long mask)
{
	long error = call(__NR_setsid, 0, 0, 0, 0);
	if (error >= 0 && *terminal == 't')
		error = call(__NR_ioctl, 0, TIOCSCTTY, 0, 0);
	call(__NR_rt_sigprocmask, SIG_SETMASK, &mask, 0, sizeof mask);
	if (error >= 0)
		error = call(__NR_execve, path, args, environment, 0);
	fail(error);
}

// call_itself gives this process a name that says which its command is, by its pid here, or that it has ended.
static void call_itself(int command)
{
	char name[16] = "cucriu:ended", digits[12];
	int n = 0, at = 7;
	for (; command > 0; command /= 10)
		digits[n++] = '0' + command % 10;
	if (n > 0) {
		while (n > 0)
			name[at++] = digits[--n];
		name[at] = 0;
	}
	call(__NR_prctl, PR_SET_NAME, name, 0, 0);
}

// erase removes the command's arguments and environment from this process: who looks for the command by
// them must not find it twice.
static void erase(char **from, char **environment)
{
	char *begin = *from, *last = begin;
	for (char **p = from; *p; p++)
		last = *p;
	for (char **p = environment; *p; p++)
		last = *p;
	while (*last)
		last++;
	for (volatile char *p = begin; p < last; p++)
		*p = 0;
}

// end_as ends this process as its command has ended. One core dump of that is enough.
static void end_as(int status)
{
	int signal = status & 0x7f;
	if (signal) {
		unsigned long mask = 1ul << (signal - 1), none[4] = {0};
		call(__NR_prctl, PR_SET_DUMPABLE, 0, 0, 0);
		call(__NR_rt_sigaction, signal, none, 0, sizeof mask);
		call(__NR_kill, call(__NR_getpid, 0, 0, 0, 0), signal, 0, 0);
		call(__NR_rt_sigprocmask, SIG_UNBLOCK, &mask, 0, sizeof mask);
		end(128 + signal);
	}
	end(status >> 8 & 0xff);
}

static int is_passed_on(int signal)
{
	// Who continues the job after a dump does not mean a command that its user has stopped.
	return signal != SIGCHLD && signal != SIGCONT && signal != SIGTSTP && signal != SIGTTIN && signal != SIGTTOU;
}

// attend reaps whatever ends below, and passes signals on, until nothing is left.
static void attend(int command)
{
	int how = 0, ended = 0;
	for (;;) {
		int status;
		long pid = call(__NR_wait4, -1, &status, __WALL | WNOHANG, 0);
		if (pid == command && !ended) {
			how = status, ended = 1;
			call_itself(0);
		}
		if (pid == -ECHILD && ended)
			end_as(how);
		if (pid > 0)
			continue;
		siginfo_t info;
		long signal = call(__NR_rt_sigtimedwait, &all, &info, 0, sizeof all);
		call(__NR_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0); // which not every criu restores
		if (signal > 0 && is_passed_on(signal) && !ended && info.si_pid != command)
			call(__NR_kill, command, signal, 0, 0);
	}
}

// run has the arguments of this program: its title, "t" for a terminal or "-", the path of the command,
// and the command's own arguments.
__attribute__((used)) void run(long *stack)
{
	char **args = (char **)(stack + 1), **environment = args + stack[0] + 1;
	unsigned long before;
	call(__NR_fcntl, report, F_SETFD, FD_CLOEXEC, 0);
	call(__NR_close, program, 0, 0, 0);
	if (stack[0] < 4)
		fail(-EINVAL);
	long error = call(__NR_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof all);
	if (error == 0)
		error = call(__NR_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0);
	if (error == 0)
		error = call(__NR_clone, SIGCHLD, 0, 0, 0);
	if (error < 0)
		fail(error);
	if (error == 0)
		become(args[1], args[2], args + 3, environment, before);
	int command = error;
	call_itself(command);
	erase(args + 1, environment);
	call(__NR_chdir, "/", 0, 0, 0);
	int null = call(__NR_openat, AT_FDCWD, "/dev/null", O_RDWR, 0); // criu writes no image of no open files
	for (int fd = 0; fd < report; fd++)
		call(__NR_dup3, null, fd, 0, 0);
	call(__NR_close, null, 0, 0, 0);
	call(__NR_close, report, 0, 0, 0); // only now: its end says that all this is done
	attend(command);
}
