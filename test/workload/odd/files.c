/* Kinds of open files. */
#include "odd.h"

#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/seccomp.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>

static int events, watched;

static void watch(int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

	must(epoll_ctl(events, EPOLL_CTL_ADD, fd, &event));
}

static void epoll(void)
{
	events = must(epoll_create1(0));
	watched = must(eventfd(0, EFD_NONBLOCK));
	watch(watched);
}

/* The set holds the file twice: by its descriptor, and by one that is closed. */
static void epoll_duplicate(void)
{
	int duplicate;

	epoll();
	duplicate = must(dup(watched));
	watch(duplicate);
	must(close(duplicate));
}

/* The set holds the file by a descriptor that is closed, and another descriptor has the file. */
static void epoll_moved(void)
{
	int was;

	epoll();
	was = watched;
	watched = must(dup(was));
	must(close(was));
}

/* The number of a descriptor in the set is that of another file now. */
static void epoll_reused(void)
{
	int was;

	epoll();
	was = watched;
	watched = must(fcntl(was, F_DUPFD, 100));
	must(dup2(must(eventfd(0, 0)), was));
}

static void look_at_epoll(void)
{
	struct epoll_event event;
	uint64_t one = 1;

	if (epoll_wait(events, &event, 1, 0) != 0)
		wrong("the epoll set has events");
	must(write(watched, &one, sizeof one));
	if (epoll_wait(events, &event, 1, 0) != 1)
		wrong("the epoll set has no event");
	must(read(watched, &one, sizeof one));
}

/* Open until the end, which nobody looks at again. */
static void device(const char *path)
{
	try(open(path, O_RDWR));
}

static void kvm(void) { device("/dev/kvm"); }
static void fuse(void) { device("/dev/fuse"); }
static void tun(void) { device("/dev/net/tun"); }

static void memory_devices(void)
{
	device("/dev/null");
	device("/dev/zero");
	device("/dev/urandom");
	must(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, must(open("/dev/zero", O_RDWR)), 0));
}

static void sysv_memory(void)
{
	int id = must(shmget(IPC_PRIVATE, 4096, 0600));

	must(shmat(id, NULL, 0));
	must(shmctl(id, IPC_RMID, NULL));
}

static void message_queue(void)
{
	char name[40];

	snprintf(name, sizeof name, "/odd-%d", getpid());
	try(mq_open(name, O_CREAT | O_RDWR, 0600, NULL));
	must(mq_unlink(name));
}

/* criu takes it where a huge page is free. */
static void huge_memfd(void)
{
	void *page = mmap(NULL, 2 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	if (page != MAP_FAILED) {
		errno = EEXIST;
		not_here("a machine without a free huge page");
	}
	try((int)syscall(SYS_memfd_create, "odd", 4 /* MFD_HUGETLB */));
}

static int secret(void)
{
	int fd = try((int)syscall(SYS_memfd_secret, 0));

	must(ftruncate(fd, 4096));
	return fd;
}

static void secret_file(void) { secret(); }

static void secret_memory(void)
{
	int fd = secret();

	must(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0));
	must(close(fd));
}

static void bpf_map(void)
{
	union bpf_attr attr = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1};

	try(syscall(SYS_bpf, BPF_MAP_CREATE, &attr, sizeof attr));
}

static void seccomp_notify(void)
{
	struct sock_filter allow = {.code = BPF_RET, .k = SECCOMP_RET_ALLOW};
	struct sock_fprog program = {1, &allow};

	try(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program));
}

static void landlock(void)
{
	uint64_t handled = 1;

	try(syscall(444 /* landlock_create_ruleset */, &handled, sizeof handled, 0));
}

static void new_file_system(void) { try(syscall(430 /* fsopen */, "tmpfs", 0)); }
static void detached_mount(void) { try(syscall(428 /* open_tree */, AT_FDCWD, ".", 1 /* OPEN_TREE_CLONE */)); }

static int open_elsewhere(void *unused)
{
	(void)unused;
	must(unshare(CLONE_NEWNS));
	must(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
	must(mount("odd", ".", "tmpfs", 0, NULL));
	must(chdir(arguments[2]));
	must(open("file", O_CREAT | O_RDWR, 0600));
	return 0;
}

/* A descriptor from another mount namespace: the child has our descriptors. */
static void foreign_mount(void)
{
	static char stack[65536];

	must(waitpid(must(clone(open_elsewhere, stack + sizeof stack, CLONE_FILES | SIGCHLD, NULL)), NULL, 0));
}

static void foreign_namespace(void)
{
	char path[40];
	int ends[2];
	pid_t pid;

	must(pipe(ends));
	pid = must(fork());
	if (pid == 0) {
		must(unshare(CLONE_NEWUTS));
		must(write(ends[1], "", 1));
		pause();
	}
	must(read(ends[0], path, 1));
	snprintf(path, sizeof path, "/proc/%d/ns/uts", pid);
	must(open(path, O_RDONLY));
	must(kill(pid, SIGKILL));
	must(waitpid(pid, NULL, 0));
}

static void pidfd(pid_t pid) { try((int)syscall(SYS_pidfd_open, pid, 0)); }
static void pidfd_outside(void) { pidfd(getppid()); }

static void pidfd_inside(void)
{
	pid_t ended = must(fork());

	if (ended == 0)
		_exit(0);
	pidfd(ended);
	must(waitpid(ended, NULL, 0));
	pidfd(getpid());
}

static void alarm_timer(void) { try(timerfd_create(CLOCK_BOOTTIME_ALARM, 0)); }
static void timers(void) { must(timerfd_create(CLOCK_BOOTTIME, 0)); must(timerfd_create(CLOCK_MONOTONIC, 0)); }

static void pipe_with(int flags)
{
	int ends[2];

	must(pipe2(ends, flags));
}

static void packet_pipe(void) { pipe_with(O_DIRECT); }
static void plain_pipe(void) { pipe_with(0); }

static void vsock(void) { try(socket(40 /* AF_VSOCK */, SOCK_STREAM, 0)); }

static void sockets(void)
{
	int families[] = {AF_INET, AF_INET6, AF_UNIX};

	for (int i = 0; i < 3; i++) {
		must(socket(families[i], SOCK_STREAM, 0));
		must(socket(families[i], SOCK_DGRAM, 0));
	}
	must(socket(AF_NETLINK, SOCK_RAW, 0));
	must(socket(AF_PACKET, SOCK_RAW, 0));
}

static void path_descriptor(void) { must(open("/", O_PATH)); }
static void program_descriptor(void) { must(open("/proc/self/exe", O_PATH)); }

static void long_path(void)
{
	char name[201];

	memset(name, 'd', 200);
	name[200] = 0;
	for (int i = 0; i < 22; i++) {
		must(mkdir(name, 0700));
		must(chdir(name));
	}
	must(open("file", O_CREAT | O_RDWR, 0600));
	must(chdir(arguments[2]));
}

static void libaio(void)
{
	unsigned long context = 0;

	try(syscall(SYS_io_setup, 8, &context));
}

static void eventfd_semaphore(void) { watched = must(eventfd(7, EFD_SEMAPHORE)); }

static void look_at_semaphore(void)
{
	uint64_t taken;

	must(read(watched, &taken, sizeof taken));
	if (taken != 1)
		wrong("a read takes %llu", (unsigned long long)taken);
}

/* A client in the queue of a server that does not accept it. */
static int client(void)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "server"};
	int server = must(socket(AF_UNIX, SOCK_STREAM, 0)), fd = must(socket(AF_UNIX, SOCK_STREAM, 0));

	must(bind(server, (struct sockaddr *)&name, sizeof name));
	must(listen(server, 5));
	must(connect(fd, (struct sockaddr *)&name, sizeof name));
	return fd;
}

static void waiting_client(void) { client(); }
static void dead_client(void) { must(close(client())); }
static void unread_client(void) { must(write(client(), "?", 1)); }

static int netlink(unsigned groups)
{
	struct sockaddr_nl name = {.nl_family = AF_NETLINK, .nl_groups = groups};
	int fd = must(socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK, NETLINK_ROUTE));

	must(bind(fd, (struct sockaddr *)&name, sizeof name));
	return fd;
}

static void in_group(int fd, int group) { try(setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof group)); }

static void netlink_plain(void) { netlink(RTMGRP_LINK); }
static void netlink_high_group(void) { in_group(netlink(RTMGRP_LINK), RTNLGRP_BRVLAN); }
static void netlink_unbound(void) { in_group(must(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE)), RTNLGRP_LINK); }

/* The answer to a request stays unread. */
static void netlink_unread(void)
{
	struct {
		struct nlmsghdr head;
		struct rtgenmsg body;
	} request = {{sizeof request, RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 1, 0}, {AF_UNSPEC}};

	must(send(netlink(0), &request, sizeof request, 0));
}

/* A server that shares its port with whoever asks for that, and has written the port to DIR/port. */
static void shared_port(void)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof name;
	int server = must(socket(AF_INET, SOCK_STREAM, 0));
	FILE *port = fopen("port", "w");

	must(setsockopt(server, SOL_SOCKET, SO_REUSEPORT, &(int){1}, sizeof(int)));
	must(bind(server, (struct sockaddr *)&name, sizeof name));
	must(listen(server, 5));
	must(getsockname(server, (struct sockaddr *)&name, &size));
	if (!port || fprintf(port, "%d", ntohs(name.sin_port)) < 0 || fclose(port) != 0)
		wrong("port: %m");
}

/* What criu forgets of internet sockets: each is set to a value that is not the usual one. */
static const struct option {
	int family, type, level, name, value;
} options[] = {
	{AF_INET, SOCK_STREAM, IPPROTO_TCP, TCP_USER_TIMEOUT, 4711},
	{AF_INET, SOCK_STREAM, IPPROTO_TCP, TCP_DEFER_ACCEPT, 3},
	{AF_INET, SOCK_STREAM, IPPROTO_TCP, TCP_SYNCNT, 3},
	{AF_INET, SOCK_STREAM, IPPROTO_IP, IP_TOS, 0x10},
	{AF_INET6, SOCK_STREAM, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 4096},
	{AF_INET6, SOCK_STREAM, IPPROTO_IPV6, IPV6_TCLASS, 0x10},
	{AF_INET, SOCK_DGRAM, IPPROTO_IP, IP_MULTICAST_TTL, 7},
	{AF_INET, SOCK_DGRAM, IPPROTO_IP, IP_MULTICAST_LOOP, 0},
	{AF_INET6, SOCK_DGRAM, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 7},
	{AF_INET6, SOCK_DGRAM, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 0},
};
enum { noptions = sizeof options / sizeof *options };
static int with_option[noptions + 1], was[noptions];
static const char filter[] = "00000013";

static int value_of(int i)
{
	int value = 0;
	socklen_t size = sizeof value;

	must(getsockopt(with_option[i], options[i].level, options[i].name, &value, &size));
	return value;
}

static void settings(void)
{
	FILE *out = fopen("/proc/self/coredump_filter", "w");

	if (!out || fputs("0x13", out) < 0 || fclose(out) != 0)
		wrong("coredump_filter: %m");
	for (int i = 0; i < noptions; i++) {
		with_option[i] = must(socket(options[i].family, options[i].type, 0));
		must(setsockopt(with_option[i], options[i].level, options[i].name, &options[i].value, sizeof(int)));
		was[i] = value_of(i);
	}
	with_option[noptions] = must(socket(AF_INET, SOCK_STREAM, 0));
	try(setsockopt(with_option[noptions], IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
}

static void look_at_settings(void)
{
	char text[20] = "";
	FILE *in = fopen("/proc/self/coredump_filter", "r");

	if (!in || !fgets(text, sizeof text, in) || strncmp(text, filter, 8) != 0)
		wrong("the coredump filter is %s", text);
	fclose(in);
	for (int i = 0; i < noptions; i++)
		if (value_of(i) != was[i])
			wrong("option %d of level %d is %d instead of %d", options[i].name, options[i].level, value_of(i), was[i]);
	must(getsockopt(with_option[noptions], IPPROTO_TCP, TCP_CONGESTION, text, &(socklen_t){sizeof text}));
	if (strcmp(text, "reno") != 0)
		wrong("the congestion control is %s", text);
}

static int watcher;

static void watch_name(const char *name)
{
	watcher = must(inotify_init1(IN_NONBLOCK));
	must(inotify_add_watch(watcher, name, IN_OPEN));
}

/* Its lower layer has a file. With the layers APART, this is seen in the numbers of devices. */
static void mount_overlay(bool apart)
{
	char options[500];

	must(mkdir("lower", 0700));
	must(mkdir("lower/in", 0700));
	must(mkdir("changes", 0700));
	if (apart)
		try(mount("odd", "changes", "tmpfs", 0, NULL));
	must(mkdir("changes/upper", 0700));
	must(mkdir("changes/work", 0700));
	must(close(must(creat("lower/in/watched", 0600))));
	snprintf(options, sizeof options, "lowerdir=%1$s/lower,upperdir=%1$s/changes/upper,workdir=%1$s/changes/work", arguments[2]);
	try(mount("odd", "/mnt", "overlay", 0, options));
	if (apart)
		must(umount2("changes", MNT_DETACH)); /* the overlay has it */
}

/* Nobody can open what is watched by its handle. */
static void watch_overlay(void)
{
	mount_overlay(false);
	watch_name("/mnt/in/watched");
}

/* The kernel tells that it has a name, and gives it none. */
static void remove_lower(void)
{
	mount_overlay(false);
	must(open("/mnt/in/watched", O_RDONLY));
	must(unlink("/mnt/in/watched"));
}

/* It has a name, and is in the upper layer by now. */
static void remove_linked(void)
{
	mount_overlay(true);
	must(open("/mnt/in/watched", O_RDONLY));
	must(link("/mnt/in/watched", "/mnt/in/other"));
	must(unlink("/mnt/in/watched"));
}

static void look_at_overlay(void)
{
	char events[1000];

	while (read(watcher, events, sizeof events) > 0)
		;
	must(close(must(open("/mnt/in/watched", O_RDONLY))));
	if (read(watcher, events, sizeof events) <= 0)
		wrong("the watch has no event");
}

static void watch_nameless(void)
{
	char name[40];

	snprintf(name, sizeof name, "/dev/shm/odd-%d", getpid());
	watched = must(open(name, O_RDWR | O_CREAT, 0600));
	watch_name(name);
	must(unlink(name));
}

static void watch_file_system(void)
{
	watcher = try(fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK, O_RDONLY));
	try(fanotify_mark(watcher, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_CLOSE_WRITE, AT_FDCWD, "/dev/shm"));
}

/* To read the file breaks the lease, and SIGIO ends the process. */
static void write_lease(void)
{
	try(fcntl(must(open("leased", O_CREAT | O_RDWR | O_CLOEXEC, 0600)), F_SETLEASE, F_WRLCK));
}

static void read_lease(void)
{
	must(close(must(creat("leased", 0600))));
	try(fcntl(must(open("leased", O_RDONLY | O_CLOEXEC)), F_SETLEASE, F_RDLCK));
}

/* Whoever opens the file waits for this process, which does not answer. */
static void permission_events(void)
{
	int group = try(fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY | O_CLOEXEC));

	must(open("guarded", O_CREAT | O_RDWR | O_CLOEXEC, 0600));
	try(fanotify_mark(group, FAN_MARK_ADD, FAN_OPEN_PERM, AT_FDCWD, "guarded"));
}

const struct kind of_files[] = {
	{"kvm", kvm, NULL},
	{"fuse", fuse, NULL},
	{"tun", tun, NULL},
	{"memory-devices", memory_devices, NULL},
	{"sysv-memory", sysv_memory, NULL},
	{"message-queue", message_queue, NULL},
	{"huge-memfd", huge_memfd, NULL},
	{"secret-file", secret_file, NULL},
	{"secret-memory", secret_memory, NULL},
	{"bpf-map", bpf_map, NULL},
	{"seccomp-notify", seccomp_notify, NULL},
	{"landlock", landlock, NULL},
	{"new-file-system", new_file_system, NULL},
	{"detached-mount", detached_mount, NULL},
	{"foreign-mount", foreign_mount, NULL},
	{"foreign-namespace", foreign_namespace, NULL},
	{"pidfd-outside", pidfd_outside, NULL},
	{"pidfd-inside", pidfd_inside, NULL},
	{"alarm-timer", alarm_timer, NULL},
	{"timers", timers, NULL},
	{"packet-pipe", packet_pipe, NULL},
	{"plain-pipe", plain_pipe, NULL},
	{"vsock", vsock, NULL},
	{"sockets", sockets, NULL},
	{"path-descriptor", path_descriptor, NULL},
	{"program-descriptor", program_descriptor, NULL},
	{"long-path", long_path, NULL},
	{"libaio", libaio, NULL},
	{"eventfd-semaphore", eventfd_semaphore, look_at_semaphore},
	{"dead-client", dead_client, NULL},
	{"unread-client", unread_client, NULL},
	{"waiting-client", waiting_client, NULL},
	{"netlink", netlink_plain, NULL},
	{"netlink-high-group", netlink_high_group, NULL},
	{"netlink-unbound", netlink_unbound, NULL},
	{"netlink-unread", netlink_unread, NULL},
	{"shared-port", shared_port, NULL},
	{"settings", settings, look_at_settings},
	{"watch-overlay", watch_overlay, look_at_overlay},
	{"removed-lower", remove_lower, NULL},
	{"removed-linked", remove_linked, NULL},
	{"watch-nameless", watch_nameless, NULL},
	{"watch-file-system", watch_file_system, NULL},
	{"write-lease", write_lease, NULL},
	{"read-lease", read_lease, NULL},
	{"permission-events", permission_events, NULL},
	{"epoll", epoll, look_at_epoll},
	{"epoll-duplicate", epoll_duplicate, look_at_epoll},
	{"epoll-moved", epoll_moved, look_at_epoll},
	{"epoll-reused", epoll_reused, look_at_epoll},
	{0},
};
