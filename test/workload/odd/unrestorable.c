/* Kinds that criu would dump and never restore, and their harmless neighbours. */
#include "odd.h"

#include <arpa/inet.h>
#include <linux/fs.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

/* A second thread that becomes odd, and waits. */
static volatile pid_t thread;
static volatile int gone;
static pthread_t handle;

static void *run(void *becomes)
{
	((void (*)(void))becomes)();
	thread = gettid();
	while (!gone)
		usleep(10000);
	return NULL;
}

static void in_thread(void (*becomes)(void))
{
	errno = pthread_create(&handle, NULL, run, becomes);
	if (errno != 0)
		wrong("pthread_create: %m");
	while (!thread)
		usleep(1000);
}

static void nothing(void) {}

static void own_descriptors(void)
{
	try(unshare(CLONE_FILES));
	must(dup2(must(open("/dev/null", O_RDONLY)), 200));
}

static void own_directory(void)
{
	try(unshare(CLONE_FS));
	must(chdir("/usr"));
}

static void own_network(void) { try(unshare(CLONE_NEWNET)); }

static const char *link_of(pid_t tid, const char *name)
{
	static char links[2][100];
	static int i;
	char path[100], *link = links[i = !i];
	ssize_t n;

	snprintf(path, sizeof path, "/proc/self/task/%d/%s", tid, name);
	n = readlink(path, link, 99);
	link[n < 0 ? 0 : n] = 0;
	return link;
}

static void look_at_thread(void)
{
	if (strcmp(arguments[1], "thread-descriptors") == 0 ? strcmp(link_of(thread, "fd/200"), "/dev/null") != 0 :
	    strcmp(arguments[1], "thread-directory") == 0   ? strcmp(link_of(thread, "cwd"), "/usr") != 0 :
							      strcmp(link_of(thread, "ns/net"), link_of(getpid(), "ns/net")) == 0)
		wrong("the thread has lost it");
}

static void thread_descriptors(void) { in_thread(own_descriptors); }
static void thread_directory(void) { in_thread(own_directory); }
static void thread_namespace(void) { in_thread(own_network); }

static void thread_timer(void)
{
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};
	timer_t timer;

	in_thread(nothing);
	event._sigev_un._tid = thread;
	must(timer_create(CLOCK_MONOTONIC, &event, &timer));
}

static void orphan_timer(void)
{
	thread_timer();
	gone = 1;
	pthread_join(handle, NULL);
}

static int open_in_proc(const char *format, int number)
{
	char path[100];

	snprintf(path, sizeof path, format, number);
	return must(open(path, O_RDONLY));
}

static void process_files(void)
{
	open_in_proc("/proc/%d/stat", getpid());
	open_in_proc("/proc/self/task", 0);
	open_in_proc("/proc/self/task/%d/stat", getpid());
	open_in_proc("/proc/meminfo", 0);
	must(chdir("/proc"));
	must(chdir(arguments[2]));
}

static void process_directory(void) { open_in_proc("/proc/%d", getpid()); }

static pid_t only_child;

static void look_at_child(void) { child_runs(only_child); }
static void enter_process(void) { must(chdir("/proc/self")); }
static void inside_process(void) { only_child = child(enter_process); }

static void thread_file(void)
{
	in_thread(nothing);
	open_in_proc("/proc/self/task/%d/stat", thread);
}

static void thread_as_process(void)
{
	in_thread(nothing);
	open_in_proc("/proc/%d/stat", thread);
}

static void dead_process_file(void)
{
	pid_t pid = must(fork());

	if (pid == 0)
		for (;;)
			pause();
	open_in_proc("/proc/%d/stat", pid);
	open_in_proc("/proc/%d", pid);
	must(kill(pid, SIGKILL));
	must(waitpid(pid, NULL, 0));
}

static int memory;
static const char *mapped;

static void seal(int seals, int first)
{
	memory = must(memfd_create("odd", MFD_ALLOW_SEALING));
	must(write(memory, "odd", 4));
	if (first)
		must(fcntl(memory, F_ADD_SEALS, seals));
	mapped = must(mmap(NULL, 4096, PROT_READ, MAP_SHARED, memory, 0));
	if (!first)
		must(fcntl(memory, F_ADD_SEALS, seals));
}

static void sealed_memory(void) { seal(F_SEAL_WRITE, 1); }
static void future_sealed_memory(void) { seal(F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK, 0); }

static void look_at_memory(void)
{
	if (strcmp(mapped, "odd") != 0 || write(memory, "x", 1) >= 0)
		wrong("the memory is not what it was");
}

static void path_of(int fd)
{
	char path[40];

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	must(open(path, O_PATH));
}

static void path_of_memory(void) { path_of(must(memfd_create("odd", 0))); }

static void path_of_pipe(void)
{
	int ends[2];

	must(pipe(ends));
	path_of(ends[0]);
}

/* In /dev/shm, so that the file is gone with the test's mounts. */
static void fixed(int attribute, int flags)
{
	char path[100];
	int fd, none = 0;

	snprintf(path, sizeof path, "/dev/shm/%s", arguments[1]);
	fd = open(path, O_RDONLY); /* of an earlier test */
	if (fd >= 0)
		must(ioctl(fd, FS_IOC_SETFLAGS, &none));
	fd = must(open(path, O_RDWR | O_CREAT | flags, 0600));
	try(ioctl(fd, FS_IOC_SETFLAGS, &attribute));
}

static int highest;

static void descriptor_at(rlim_t number)
{
	highest = (int)number;
	try(dup2(must(open("file", O_CREAT | O_RDWR, 0600)), highest));
}

static rlim_t raised(void)
{
	struct rlimit limit = {.rlim_max = 0};
	FILE *file = fopen("/proc/sys/fs/nr_open", "r");

	if (file && fscanf(file, "%lu", &limit.rlim_max) == 1)
		limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
		must(getrlimit(RLIMIT_NOFILE, &limit));
		limit.rlim_cur = limit.rlim_max;
		must(setrlimit(RLIMIT_NOFILE, &limit));
	}
	return limit.rlim_cur;
}

static void high_descriptor(void) { descriptor_at(raised() - 1); }

static void many_descriptors(void)
{
	raised();
	descriptor_at(1500);
}

static void look_at_descriptor(void)
{
	must(write(highest, "x", 1));
}

static void immutable_file(void) { fixed(FS_IMMUTABLE_FL, 0); }
static void append_only_file(void) { fixed(FS_APPEND_FL, O_APPEND); }

static void leave_directory(void)
{
	must(mkdir("odd", 0700));
	must(chdir("odd"));
	must(rmdir("../odd"));
}

static void leave_and_make(void)
{
	leave_directory();
	must(mkdir("../odd", 0700));
}

static void look_at_both(void)
{
	child_runs(only_child);
	if (access("odd", F_OK) != 0)
		wrong("the new directory is gone");
}

static void removed_directory(void) { only_child = child(leave_directory); }
static void directory_again(void) { only_child = child(leave_and_make); }

static void directory_twice(void)
{
	child(leave_directory);
	only_child = child(leave_directory);
}

static void removed_file(const char *dir, const char *name)
{
	char path[400];
	int fd;

	must(mkdir(dir, 0700));
	snprintf(path, sizeof path, "%s/%s", dir, name);
	fd = must(open(path, O_RDWR | O_CREAT, 0600));
	must(write(fd, "odd", 4));
	must(unlink(path));
}

static void removed_with_directory(void)
{
	removed_file("odd", "file");
	must(rmdir("odd"));
}

static void file_for_directory(void)
{
	removed_with_directory();
	must(close(must(creat("odd", 0600))));
}

static void long_removed_name(void)
{
	char name[256];

	memset(name, 'n', 255);
	name[255] = 0;
	removed_file("odd", name);
}

/* A TCP socket on an address that this host does not have. */
static void foreign_address(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr("192.0.2.1")};
	int fd = must(socket(AF_INET, SOCK_STREAM, 0)), yes = 1;

	must(setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &yes, sizeof yes));
	must(bind(fd, (struct sockaddr *)&address, sizeof address));
	must(listen(fd, 1));
}

static void write_file(const char *path, const char *text)
{
	int fd = must(open(path, O_WRONLY));

	must(write(fd, text, strlen(text)));
	must(close(fd));
}

static void user_namespace(void)
{
	try(unshare(CLONE_NEWUSER));
	write_file("/proc/self/setgroups", "deny");
	write_file("/proc/self/uid_map", "0 0 1");
	write_file("/proc/self/gid_map", "0 0 1");
}

const struct kind of_unrestorable[] = {
	{"thread-descriptors", thread_descriptors, look_at_thread},
	{"thread-directory", thread_directory, look_at_thread},
	{"thread-namespace", thread_namespace, look_at_thread},
	{"thread-timer", thread_timer, NULL},
	{"orphan-timer", orphan_timer, NULL},
	{"process-files", process_files, NULL},
	{"process-directory", process_directory, NULL},
	{"inside-process", inside_process, look_at_child},
	{"thread-file", thread_file, NULL},
	{"thread-as-process", thread_as_process, NULL},
	{"dead-process-file", dead_process_file, NULL},
	{"sealed-memory", sealed_memory, look_at_memory},
	{"future-sealed-memory", future_sealed_memory, look_at_memory},
	{"path-of-memory", path_of_memory, NULL},
	{"path-of-pipe", path_of_pipe, NULL},
	{"high-descriptor", high_descriptor, look_at_descriptor},
	{"many-descriptors", many_descriptors, look_at_descriptor},
	{"immutable-file", immutable_file, NULL},
	{"append-only-file", append_only_file, NULL},
	{"removed-directory", removed_directory, look_at_child},
	{"directory-again", directory_again, look_at_both},
	{"directory-twice", directory_twice, look_at_child},
	{"removed-with-directory", removed_with_directory, NULL},
	{"file-for-directory", file_for_directory, NULL},
	{"long-removed-name", long_removed_name, NULL},
	{"foreign-address", foreign_address, NULL},
	{"user-namespace", user_namespace, NULL},
	{0},
};
