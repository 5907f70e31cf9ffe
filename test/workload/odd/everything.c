/* A process that has everything that can be set of one, and tells of it: whatever a restore does not give again is seen
   in what it tells before and after. */
#include "odd.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <linux/keyctl.h>
#include <linux/landlock.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <linux/netlink.h>
#include <termios.h>

enum { page = 4096, large = 64 * page };

static FILE *out; /* the snapshot: lines of a name, a space and a value */
static volatile int second; /* the other thread */

/* What older kernels do not have is told in DIR/missing. */
#define may_lack(call) ((long)(call) == -1 ? fprintf(out, "%s: %m\n", #call) : 0)

/* Memory: each mapping has a state of its own. */
static struct memory {
	const char *name;
	char *at;
} memory[40];
static char *guarded;

static char *map(const char *name, int flags)
{
	static int n;
	char *at = try(mmap(NULL, large + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0));

	/* So that none is joined with another one. */
	must(munmap(at, page));
	must(munmap(at + page + large, page));
	memory[n] = (struct memory){name, at + page};
	return memory[n++].at;
}

static void advise(const char *name, int advice)
{
	char *at = map(name, 0);

	memset(at, 1, page);
	may_lack(madvise(at, large, advice));
}

static void have_memory(void)
{
	unsigned long node = 1;

	map("plain", 0)[0] = 1;
	memset(map("private", 0), 1, large);
	must(mlock(map("locked", 0), large));
	must(mlock2(map("locked-on-fault", 0), large, MLOCK_ONFAULT));
	try(syscall(SYS_mbind, map("bound", 0), large, 2 /* MPOL_BIND */, &node, 64, 0));
	try(syscall(SYS_mbind, map("interleaved", 0), large, 3 /* MPOL_INTERLEAVE */, &node, 64, 0));
	try(syscall(SYS_mbind, map("preferred", 0), large, 1 /* MPOL_PREFERRED */, &node, 64, 0));
	may_lack(syscall(462 /* mseal */, map("sealed", 0), (size_t)large, 0));
	map("no-reserve", MAP_NORESERVE);
	advise("huge", MADV_HUGEPAGE);
	advise("not-huge", MADV_NOHUGEPAGE);
	advise("not-forked", MADV_DONTFORK);
	advise("wiped-on-fork", MADV_WIPEONFORK);
	advise("not-dumped", MADV_DONTDUMP);
	advise("mergeable", MADV_MERGEABLE);
	advise("sequential", MADV_SEQUENTIAL);
	advise("random", MADV_RANDOM);
	prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, map("named", 0), (size_t)large, "everything"); /* many kernels are without */
	guarded = map("guarded", 0) + 2 * page;
	guarded[page] = 1;
	may_lack(madvise(guarded, page, 102 /* MADV_GUARD_INSTALL */));
}

/* Sockets: each option that can be set to another value has one. */
static struct sock {
	const char *name;
	int fd;
} sockets[20];

static void add_socket(const char *name, int fd)
{
	static int n;

	sockets[n++] = (struct sock){name, must(fd)};
}

static void connection(int family, const char *const names[3])
{
	struct sockaddr_in6 name = {.sin6_family = family};
	socklen_t size = sizeof name;
	int server = must(socket(family, SOCK_STREAM, 0)), client = must(socket(family, SOCK_STREAM, 0));

	if (family == AF_INET6)
		name.sin6_addr = in6addr_loopback;
	else
		((struct sockaddr_in *)&name)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	must(bind(server, (struct sockaddr *)&name, family == AF_INET ? sizeof(struct sockaddr_in) : sizeof name));
	must(listen(server, 5));
	must(getsockname(server, (struct sockaddr *)&name, &size));
	must(connect(client, (struct sockaddr *)&name, size));
	add_socket(names[0], server);
	add_socket(names[1], client);
	add_socket(names[2], must(accept(server, NULL, NULL)));
}

static void have_sockets(void)
{
	struct sockaddr_nl name = {.nl_family = AF_NETLINK};
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct ip_mreqn group = {.imr_multiaddr.s_addr = inet_addr("224.0.1.35"), .imr_ifindex = 1};
	struct ipv6_mreq group6 = {.ipv6mr_interface = 1};
	struct ip_mreq_source source = {{inet_addr("224.0.1.36")}, {htonl(INADDR_LOOPBACK)}, {htonl(INADDR_LOOPBACK)}};
	int pair[2];

	connection(AF_INET, (const char *const[]){"listener", "client", "server"});
	connection(AF_INET6, (const char *const[]){"listener6", "client6", "server6"});
	add_socket("udp", socket(AF_INET, SOCK_DGRAM, 0));
	must(bind(sockets[6].fd, (struct sockaddr *)&any, sizeof any));
	must(setsockopt(sockets[6].fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group));
	must(setsockopt(sockets[6].fd, IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, &source, sizeof source));
	add_socket("udp6", socket(AF_INET6, SOCK_DGRAM, 0));
	inet_pton(AF_INET6, "ff02::123", &group6.ipv6mr_multiaddr);
	must(setsockopt(sockets[7].fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &group6, sizeof group6));
	add_socket("raw", socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
	add_socket("netlink", socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE));
	must(bind(sockets[9].fd, (struct sockaddr *)&name, sizeof name));
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	add_socket("unix", pair[0]);
	add_socket("unix-peer", pair[1]);
	must(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
	add_socket("unix-datagram", pair[0]);
	add_socket("unix-datagram-peer", pair[1]);
}

static const int levels[] = {SOL_SOCKET, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, IPPROTO_UDP, SOL_NETLINK, IPPROTO_RAW};

/* Not asked for: those that measure, or that the kernel changes, such as TCP_QUICKACK, and the multicast TTL of a
   connection; those that a read changes; what only criu may set (TCP_REPAIR and its company); and what no program sets
   alone. */
static bool asked_for(const struct sock *s, int level, int name)
{
	static const struct { int level, name; } not[] = {
		{SOL_SOCKET, SO_ERROR}, {SOL_SOCKET, SO_COOKIE}, {SOL_SOCKET, SO_INCOMING_CPU}, {SOL_SOCKET, SO_MEMINFO},
		{SOL_SOCKET, 56 /* SO_INCOMING_NAPI_ID */}, {SOL_SOCKET, SO_PEERSEC}, {SOL_SOCKET, 77 /* SO_PEERPIDFD */},
		{SOL_SOCKET, 71 /* SO_NETNS_COOKIE */}, {SOL_SOCKET, SO_ATTACH_FILTER}, {SOL_SOCKET, 74 /* SO_TXREHASH */},
		{IPPROTO_TCP, TCP_QUICKACK}, {IPPROTO_TCP, TCP_REPAIR}, {IPPROTO_TCP, TCP_REPAIR_QUEUE},
		{IPPROTO_TCP, TCP_QUEUE_SEQ}, {IPPROTO_TCP, TCP_INFO}, {IPPROTO_TCP, TCP_TIMESTAMP}, {IPPROTO_TCP, TCP_ULP},
		{IPPROTO_TCP, TCP_REPAIR_WINDOW}, {IPPROTO_TCP, TCP_CC_INFO}, {IPPROTO_TCP, 35 /* TCP_ZEROCOPY_RECEIVE */},
		{IPPROTO_UDP, 1 /* UDP_CORK, which criu refuses */}, {IPPROTO_UDP, 100 /* UDP_ENCAP */},
		{IPPROTO_IP, IP_ROUTER_ALERT}, {IPPROTO_IP, IP_PKTOPTIONS}, {IPPROTO_IP, IP_MSFILTER}, {IPPROTO_IP, MCAST_MSFILTER},
		{IPPROTO_IPV6, IPV6_2292PKTOPTIONS}, {IPPROTO_IPV6, MCAST_MSFILTER},
	};

	for (size_t i = 0; i < sizeof not / sizeof *not; i++)
		if (not[i].level == level && not[i].name == name)
			return false;
	if (strstr(s->name, "client") || strstr(s->name, "server"))
		return !(level == IPPROTO_IP && name == IP_MULTICAST_TTL) &&
		       !(level == IPPROTO_IPV6 && (name == IPV6_MULTICAST_IF || name == IPV6_MULTICAST_HOPS || name == IPV6_V6ONLY));
	return true;
}

static void each_option(void (*do_with)(struct sock *s, int level, int name, unsigned char *value, socklen_t size))
{
	for (struct sock *s = sockets; s->name; s++)
		for (size_t l = 0; l < sizeof levels / sizeof *levels; l++)
			for (int name = 1; name < 110; name++) {
				unsigned char value[64] = {0};
				socklen_t size = sizeof value;

				if (asked_for(s, levels[l], name) && getsockopt(s->fd, levels[l], name, value, &size) == 0)
					do_with(s, levels[l], name, value, size);
			}
}

static void set_option(struct sock *s, int level, int name, unsigned char *value, socklen_t size)
{
	unsigned char now[64];
	socklen_t length = sizeof now;
	int wanted;

	if (level == SOL_SOCKET && (name == SO_RCVTIMEO || name == SO_SNDTIMEO)) {
		must(setsockopt(s->fd, level, name, &(struct timeval){.tv_sec = 7}, sizeof(struct timeval)));
		return;
	}
	if (level == SOL_SOCKET && name == SO_LINGER) {
		must(setsockopt(s->fd, level, name, &(struct linger){1, 7}, sizeof(struct linger)));
		return;
	}
	if (level == IPPROTO_TCP && name == TCP_CONGESTION) {
		must(setsockopt(s->fd, level, name, "reno", 4));
		return;
	}
	if (size != sizeof wanted)
		return;
	memcpy(&wanted, value, sizeof wanted);
	wanted++;
	if (setsockopt(s->fd, level, name, &wanted, sizeof wanted) == 0 &&
	    getsockopt(s->fd, level, name, now, &length) == 0 && memcmp(now, value, size) != 0)
		return;
	setsockopt(s->fd, level, name, &(int){0}, sizeof(int)); /* one that was on */
}

static void tell_option(struct sock *s, int level, int name, unsigned char *value, socklen_t size)
{
	fprintf(out, "option %d/%d of %s: ", level, name, s->name);
	for (socklen_t i = 0; i < size && i < 64; i++)
		fprintf(out, "%02x", value[i]);
	fprintf(out, "\n");
}

/* Terminals: what the program has written is not read yet, nor what was typed. */
static int master, slave;

static void have_terminal(void)
{
	struct winsize size = {33, 77, 5, 6};
	struct termios how;

	must(openpty(&master, &slave, NULL, NULL, &size));
	must(tcgetattr(slave, &how));
	how.c_lflag &= ~ECHO;
	how.c_cc[VMIN] = 3;
	must(tcsetattr(slave, TCSANOW, &how));
	must(write(slave, "a\nb\n", 4));
	must(write(master, "typed\n", 6));
}

/* Keyrings of the session, the process and each thread, with a key each. */
static void have_keyrings(void)
{
	static const int rings[] = {KEY_SPEC_SESSION_KEYRING, KEY_SPEC_PROCESS_KEYRING, KEY_SPEC_THREAD_KEYRING};

	try(syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, "everything"));
	for (int i = 0; i < 3; i++)
		must(syscall(SYS_add_key, "user", "everything", "secret", 6, rings[i]));
}

static void tell_keyring(const char *name, const char *of, int ring)
{
	bool found = syscall(SYS_keyctl, KEYCTL_SEARCH, ring, "user", "everything", 0) != -1;

	fprintf(out, "%s keyring of %s: %s\n", of, name, found ? "has its key" : "none");
}

static int removed;

static void have_files(void)
{
	struct timespec times[2] = {{1000, 5}, {2000, 6}};
	int fds[2];

	removed = must(open("removed", O_RDWR | O_CREAT, 0640));
	must(write(removed, "content", 7));
	must(fsetxattr(removed, "trusted.everything", "value", 5, 0));
	must(futimens(removed, times));
	must(unlink("removed"));
	must(pipe2(fds, O_NONBLOCK));
	must(fcntl(fds[0], F_SETPIPE_SZ, 16 * page));
	must(write(fds[1], "unread", 6));
	must(fcntl(fds[0], F_SETSIG, SIGUSR1));
	must(fcntl(fds[0], F_SETOWN, getpid()));
}

static void have_settings(void)
{
	FILE *file;

	if ((file = fopen("/proc/self/coredump_filter", "w"))) {
		fputs("0x13", file);
		fclose(file);
	}
	if ((file = fopen("/proc/self/oom_score_adj", "w"))) {
		fputs("123", file);
		fclose(file);
	}
	umask(027);
	must(setpriority(PRIO_PROCESS, 0, 3));
	must(prctl(PR_SET_TIMERSLACK, 70001));
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	may_lack(prctl(67 /* PR_SET_MEMORY_MERGE */, 1, 0, 0, 0));
	prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0);
	prctl(57 /* PR_SET_IO_FLUSHER */, 1, 0, 0, 0);
	prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0);
	prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_INDIRECT_BRANCH, PR_SPEC_DISABLE, 0, 0);
	prctl(PR_SET_TSC, PR_TSC_ENABLE);
	prctl(65 /* PR_SET_MDWE */, 0, 0, 0, 0);
}

static void have_of_thread(int as)
{
	unsigned long node = 1;
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
		uint32_t least, most;
	} attr = {.size = 56, .policy = SCHED_BATCH, .flags = 1 /* reset on fork */, .nice = 4 + as};

	personality(as ? ADDR_NO_RANDOMIZE | UNAME26 : ADDR_NO_RANDOMIZE);
	try(syscall(SYS_set_mempolicy, as ? 3 /* MPOL_INTERLEAVE */ : 2 /* MPOL_BIND */, &node, 64));
	syscall(SYS_sched_setattr, 0, &attr, 0);
	prctl(PR_SET_NAME, as ? "the other" : "the first");
	syscall(SYS_ioprio_set, 1, 0, 2 << 13 | (3 + as));
}

/* The first thread may make no socket files. */
static void have_landlock(void)
{
	struct landlock_ruleset_attr may_not = {.handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_SOCK};
	int rules = syscall(SYS_landlock_create_ruleset, &may_not, sizeof may_not.handled_access_fs, 0);

	may_lack(rules);
	if (rules == -1)
		return;
	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	must(syscall(SYS_landlock_restrict_self, rules, 0));
	must(close(rules));
}

static void tell_of_landlock(void)
{
	bool may = mknod("socket", S_IFSOCK | 0600, 0) == 0;

	fprintf(out, "landlock: %s\n", may ? "allows" : "forbids");
	unlink("socket");
}

static void tell_status(const char *name, const char *path)
{
	/* What is the process's own, and does not change by itself. */
	static const char *const lines[] = {
		"Name", "Umask", "Tgid", "Pid", "Uid", "Gid", "Groups", "NSpid", "NSpgid", "NSsid", "Threads", "SigPnd", "ShdPnd",
		"SigBlk", "SigIgn", "SigCgt", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
		"Speculation_Store_Bypass", "SpeculationIndirectBranch", "Cpus_allowed", "Mems_allowed", "THP_enabled", "VmLck",
		"VmPin",
	};
	char line[2000];
	FILE *in = must(fopen(path, "r"));

	while (fgets(line, sizeof line, in)) {
		char *value = strchr(line, ':');

		for (size_t i = 0; value && i < sizeof lines / sizeof *lines; i++)
			if (strlen(lines[i]) == (size_t)(value - line) && strncmp(line, lines[i], value - line) == 0)
				fprintf(out, "%s of %s: %s", lines[i], name, value + 2);
	}
	fclose(in);
}

/* The file's lines with what is wanted. */
static void tell_file(const char *name, const char *path, const char *wanted)
{
	char line[2000];
	FILE *in = fopen(path, "r");

	for (int n = 1; in && fgets(line, sizeof line, in); n++)
		if (strstr(line, wanted))
			fprintf(out, "%s, line %d: %s%s", name, n, line, strchr(line, '\n') ? "" : "\n");
	if (in)
		fclose(in);
}

static void tell_memory(void)
{
	char line[2000];
	const struct memory *of = NULL;
	FILE *in = must(fopen("/proc/self/smaps", "r"));

	while (fgets(line, sizeof line, in)) {
		unsigned long start, end;
		char protection[5] = "";

		if (sscanf(line, "%lx-%lx %4s", &start, &end, protection) == 3) {
			of = NULL;
			for (const struct memory *m = memory; m->name; m++)
				if ((unsigned long)m->at == start)
					of = m;
			if (of)
				fprintf(out, "mapping %s: %lx %s\n", of->name, end - start, protection);
		}
		if (of && strncmp(line, "VmFlags:", 8) == 0)
			fprintf(out, "VmFlags of %s:%s", of->name, line + 8);
		if (of && strncmp(line, "Rss:", 4) == 0 && strcmp(of->name, "locked-on-fault") == 0)
			fprintf(out, "Rss of %s:%s", of->name, line + 4);
	}
	fclose(in);
	in = must(fopen("/proc/self/numa_maps", "r"));
	while (fgets(line, sizeof line, in)) {
		unsigned long start;
		char policy[100];

		if (sscanf(line, "%lx %99s", &start, policy) == 2)
			for (const struct memory *m = memory; m->name; m++)
				if ((unsigned long)m->at == start)
					fprintf(out, "policy of %s: %s\n", m->name, policy);
	}
	fclose(in);
	fprintf(out, "guard: %ld\n",
		syscall(SYS_process_vm_readv, getpid(), &(struct iovec){line, 1}, 1, &(struct iovec){guarded, 1}, 1, 0));
}

static void tell_of_thread(const char *name, int tid)
{
	char path[60], what[60];
	unsigned char attr[56] = {0};

	snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
	tell_status(name, path);
	snprintf(path, sizeof path, "/proc/self/task/%d/personality", tid);
	snprintf(what, sizeof what, "personality of %s", name);
	tell_file(what, path, "");
	fprintf(out, "I/O priority of %s: %ld\n", name, syscall(SYS_ioprio_get, 1, tid));
	must(syscall(SYS_sched_getattr, tid, attr, sizeof attr, 0));
	fprintf(out, "scheduling of %s: ", name);
	for (size_t i = 4; i < sizeof attr; i++)
		fprintf(out, "%02x", attr[i]);
	fprintf(out, "\n");
}

/* What only a thread itself can ask. */
static void tell_own(const char *name)
{
	static const struct { const char *name; int get; } asked[] = {
		{"dumpable", PR_GET_DUMPABLE}, {"keepcaps", PR_GET_KEEPCAPS}, {"no new privileges", PR_GET_NO_NEW_PRIVS},
		{"timer slack", PR_GET_TIMERSLACK}, {"machine checks", PR_MCE_KILL_GET}, {"secure bits", PR_GET_SECUREBITS},
		{"huge pages", PR_GET_THP_DISABLE}, {"I/O flusher", 58}, {"write or execute", 66}, {"merging", 68},
	};
	unsigned long nodes = 0;
	int mode = -1, subreaper = 0;

	for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
		fprintf(out, "%s of %s: %d\n", asked[i].name, name, prctl(asked[i].get, 0, 0, 0, 0));
	prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
	fprintf(out, "subreaper of %s: %d\n", name, subreaper);
	fprintf(out, "store bypass of %s: %d\n", name, prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0));
	fprintf(out, "indirect branches of %s: %d\n", name, prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_INDIRECT_BRANCH, 0, 0, 0));
	must(syscall(SYS_get_mempolicy, &mode, &nodes, 64, NULL, 0));
	fprintf(out, "memory policy of %s: %d:%lx\n", name, mode, nodes);
	tell_keyring(name, "session", KEY_SPEC_SESSION_KEYRING);
	tell_keyring(name, "process", KEY_SPEC_PROCESS_KEYRING);
	tell_keyring(name, "thread", KEY_SPEC_THREAD_KEYRING);
}

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static bool second_tells;

static void *other_thread(void *unused)
{
	(void)unused;
	have_of_thread(1);
	pthread_mutex_lock(&turn);
	second = syscall(SYS_gettid);
	for (;;) {
		pthread_cond_broadcast(&turned);
		while (!second_tells)
			pthread_cond_wait(&turned, &turn);
		tell_own("the other");
		second_tells = false;
	}
	return NULL;
}

static void tell_of_files(void)
{
	char line[500];
	struct stat s;
	DIR *fds = must(opendir("/proc/self/fd"));
	struct dirent *entry;
	int unread = 0;
	struct termios how;

	must(fstat(removed, &s));
	fprintf(out, "removed file: %o %d %d %ld %ld.%ld\n", s.st_mode, s.st_uid, s.st_gid, (long)s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
	fprintf(out, "attribute of the removed file: %zd\n", fgetxattr(removed, "trusted.everything", line, sizeof line));
	while ((entry = readdir(fds))) {
		int fd = atoi(entry->d_name);

		if (entry->d_name[0] == '.' || fd == dirfd(fds) || fd == fileno(out))
			continue;
		fprintf(out, "descriptor %d flags: %x %x\n", fd, fcntl(fd, F_GETFL) & ~0100000 /* O_LARGEFILE */, fcntl(fd, F_GETFD));
		fprintf(out, "descriptor %d owner: %d %d\n", fd, fcntl(fd, F_GETOWN), fcntl(fd, F_GETSIG));
		if (fcntl(fd, F_GETPIPE_SZ) > 0)
			fprintf(out, "descriptor %d pipe: %d\n", fd, fcntl(fd, F_GETPIPE_SZ));
	}
	closedir(fds);
	must(ioctl(master, FIONREAD, &unread));
	fprintf(out, "terminal output: %d\n", unread);
	must(ioctl(slave, FIONREAD, &unread));
	fprintf(out, "terminal input: %d\n", unread);
	must(tcgetattr(slave, &how));
	fprintf(out, "terminal modes: %x %x %x %x %d\n", how.c_iflag, how.c_oflag, how.c_cflag, how.c_lflag, how.c_cc[VMIN]);
}

static void tell_group(const char *name, int fd, int family, const char *address)
{
	struct group_filter filter = {.gf_interface = 1, .gf_group.ss_family = family};
	socklen_t size = sizeof filter;
	int level = family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6;

	if (family == AF_INET)
		inet_pton(family, address, &((struct sockaddr_in *)&filter.gf_group)->sin_addr);
	else
		inet_pton(family, address, &((struct sockaddr_in6 *)&filter.gf_group)->sin6_addr);
	if (getsockopt(fd, level, MCAST_MSFILTER, &filter, &size) != 0)
		fprintf(out, "%s: %m\n", name);
	else
		fprintf(out, "%s: mode %d, %d sources\n", name, filter.gf_fmode, filter.gf_numsrc);
}

static void tell(void)
{
	tell_group("multicast group", sockets[6].fd, AF_INET, "224.0.1.35");
	tell_group("multicast source", sockets[6].fd, AF_INET, "224.0.1.36");
	tell_group("multicast group of IPv6", sockets[7].fd, AF_INET6, "ff02::123");
	tell_of_thread("the process", getpid());
	tell_of_thread("the other", second);
	tell_own("the first");
	tell_file("limits", "/proc/self/limits", "");
	tell_file("coredump_filter", "/proc/self/coredump_filter", "");
	tell_file("oom_score_adj", "/proc/self/oom_score_adj", "");
	tell_file("loginuid", "/proc/self/loginuid", "");
	tell_file("cgroup", "/proc/self/cgroup", "");
	tell_file("ksm_stat", "/proc/self/ksm_stat", "merge_any");
	tell_memory();
	tell_of_files();
	tell_of_landlock();
	each_option(tell_option);
}

static void everything(void)
{
	pthread_t other;

	out = must(fopen("missing", "w"));
	have_settings();
	have_files();
	have_terminal();
	have_sockets();
	each_option(set_option);
	have_memory();
	must(-pthread_create(&other, NULL, other_thread, NULL));
	pthread_mutex_lock(&turn);
	while (second == 0)
		pthread_cond_wait(&turned, &turn);
	pthread_mutex_unlock(&turn);
	have_of_thread(0);
	have_keyrings();
	have_landlock();
	must(fclose(out));
}

static void tell_everything(void)
{
	out = must(fopen("snapshot.new", "w"));
	tell();
	pthread_mutex_lock(&turn);
	second_tells = true;
	pthread_cond_broadcast(&turned);
	while (second_tells)
		pthread_cond_wait(&turned, &turn);
	pthread_mutex_unlock(&turn);
	must(fclose(out));
	must(rename("snapshot.new", "snapshot"));
}

const struct kind of_everything[] = {
	{"everything", everything, tell_everything},
	{0},
};
