#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

static const char usage[] =
	"usage: cudawork --dir DIR [options]\n"
	"  --dir DIR       status, check, checked and stop live here; made if missing\n"
	"  --gpus 0,1      GPUs to use, by ordinal (default 0)\n"
	"  --mib M         device memory on each GPU, in MiB (default 1)\n"
	"  --ballast M     so much more, in MiB, that is filled once and never changed\n"
	"  --ballast-pieces N  the same N times, each an allocation of its own (at most 16)\n"
	"  --zeros M       so much more, in MiB, that is 0 and never changed\n"
	"  --flat M        so much more, in MiB, of one byte that is not 0\n"
	"  --memory KIND   where device memory comes from: alloc (cuMemAlloc, the default), vmm,\n"
	"                  vmm-fd, vmm-fd-closed, vmm-rdma, host-numa, pool or pool-fd\n"
	"  --handle-mib M  with vmm: physical handles of this size, in one reservation\n"
	"  --peer WHO      which GPUs access the next one's memory: none, one or both\n"
	"  --peer-later    but not before DIR/peer says on\n"
	"  --tick-ms MS    least pause between ticks (default 30)\n"
	"  --copy-wait     wait for the end of a tick by a copy: no stop is needed to checkpoint us\n"
	"  --busy-ms MS    a kernel of this length in each tick, on each GPU\n"
	"  --threads T     ordinary CPU threads that count\n"
	"  --burn T        CPU threads that never pause\n"
	"  --trim          a thread that nearly always holds the lock of malloc\n"
	"  --spin MODE     a thread on each GPU that repeats one call: none, stream-sync,\n"
	"                  event-sync, ctx-sync, stream-query or event-query\n"
	"  --managed       1 MiB of managed memory\n"
	"  --mlock         all memory locked, now and later (mlockall)\n"
	"  --pinned        pinned host memory, checked all the time by a CPU thread\n"
	"  --registered    the same with host memory that is registered instead\n"
	"  --ipc-handles   IPC handles of memory and an event are taken, and never opened\n"
	"  --profiler WHEN a subscriber of CUPTI: none, on or ended\n"
	"  --fork-child    a child forked after cuInit that only waits. At SIGUSR1 it gives up\n"
	"                  the driver's descriptors and mappings, at SIGUSR2 it exits\n"
	"  --loaders N     N children forked after cuInit that answer at every tick\n"
	"  --share-files   the same child has our table of descriptors (CLONE_FILES)\n"
	"  --vfork         a thread that starts /bin/true again and again, by vfork\n"
	"  --context-later no context before DIR/context says on\n"
	"  --look          a GPU device that is opened, mapped and not used\n"
	"  --io-uring      an open io_uring\n"
	"  --procs N       N processes, each with DIR/rank-i and GPU gpus[i mod n]\n"
	"  --ranks N       the same with a collective in each tick\n"
	"  --ahead         with --ranks: only rank 0 synchronizes, so the others run ahead\n"
	"  --lead N        with --ahead: the others stay N ticks ahead of what their GPUs have done (at most 800)\n"
	"  --hog-rank R    with --ranks: rank R has a kernel of an hour on a stream of its own\n"
	"  --mesh N        with --ranks: each has N pieces of 2 MiB of each other one. They take the place of the\n"
	"                  collective, but with --ahead only rank 0 writes into them\n"
	"  --ipc           two processes; the first exports memory that the second reads\n"
	"  --ipc-vmm       the same by a handle of the VMM API\n"
	"  --ipc-later     with either: not before DIR/share says so\n"
	"exit status: 0 stopped, 1 stopped and content was wrong, 2 CUDA error, 3 usage or system\n";

static const char *const spin_names[] = {
	[SPIN_NONE] = "none",
	[SPIN_STREAM_SYNC] = "stream-sync",
	[SPIN_EVENT_SYNC] = "event-sync",
	[SPIN_CTX_SYNC] = "ctx-sync",
	[SPIN_STREAM_QUERY] = "stream-query",
	[SPIN_EVENT_QUERY] = "event-query",
};

static const char *const peer_names[] = {[PEERS_NONE] = "none", [PEERS_ONE] = "one", [PEERS_BOTH] = "both"};
static const char *const profiler_names[] = {[PROFILER_NONE] = "none", [PROFILER_ON] = "on", [PROFILER_ENDED] = "ended"};

static long number(const char *option, const char *text, long min, long max)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(text, &end, 10);
	if (errno || end == text || *end || n < min || n > max)
		die(EXIT_USAGE, "--%s %s: want a number from %ld to %ld", option, text, min, max);
	return n;
}

static void parse_gpus(struct options *o, const char *list)
{
	char *copy = strdup(list), *save = NULL;

	if (!copy)
		die(EXIT_USAGE, "out of memory");
	o->ngpus = 0;
	for (char *t = strtok_r(copy, ",", &save); t; t = strtok_r(NULL, ",", &save)) {
		if (o->ngpus == MAX_GPUS)
			die(EXIT_USAGE, "--gpus %s: more than %d", list, MAX_GPUS);
		o->gpus[o->ngpus] = number("gpus", t, 0, 1023);
		for (int i = 0; i < o->ngpus; i++)
			if (o->gpus[i] == o->gpus[o->ngpus])
				die(EXIT_USAGE, "--gpus %s: %s is named twice", list, t);
		o->ngpus++;
	}
	free(copy);
	if (!o->ngpus)
		die(EXIT_USAGE, "--gpus: the list is empty");
}

static int parse_name(const char *option, const char *name, const char *const *names, int n)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(name, names[i]))
			return i;
	die(EXIT_USAGE, "--%s %s: no such thing (cudawork --help lists them)", option, name);
}
#define NAMED(option, names) parse_name(option, optarg, names, sizeof(names) / sizeof(names[0]))

struct options options_parse(int argc, char **argv)
{
	enum { DIR_ = 256, GPUS, MIB, BALLAST, ZEROS, FLAT, TICK_MS, BUSY_MS, THREADS, SPIN, MANAGED, MLOCK, PINNED, FORK_CHILD, IO_URING, IPC, RANKS, PROCS, AHEAD, HOG_RANK, BURN, HELP,
	       COPY_WAIT, PIECES, MEMORY, HANDLE, PEER, REGISTERED, IPC_HANDLES, IPC_VMM, IPC_LATER, PROFILER, LATER, LOADERS, SHARE_FILES, VFORK, LOOK, CONTEXT_LATER, TRIM, MESH, LEAD };
	static const struct option longs[] = {
		{"dir", 1, 0, DIR_}, {"gpus", 1, 0, GPUS}, {"mib", 1, 0, MIB},
		{"ballast", 1, 0, BALLAST}, {"zeros", 1, 0, ZEROS}, {"flat", 1, 0, FLAT},
		{"tick-ms", 1, 0, TICK_MS}, {"busy-ms", 1, 0, BUSY_MS},
		{"threads", 1, 0, THREADS}, {"spin", 1, 0, SPIN}, {"copy-wait", 0, 0, COPY_WAIT},
		{"managed", 0, 0, MANAGED}, {"mlock", 0, 0, MLOCK}, {"pinned", 0, 0, PINNED},
		{"fork-child", 0, 0, FORK_CHILD}, {"io-uring", 0, 0, IO_URING}, {"ipc", 0, 0, IPC}, {"ipc-vmm", 0, 0, IPC_VMM}, {"ipc-later", 0, 0, IPC_LATER},
		{"ranks", 1, 0, RANKS}, {"procs", 1, 0, PROCS}, {"ahead", 0, 0, AHEAD},
		{"hog-rank", 1, 0, HOG_RANK}, {"mesh", 1, 0, MESH}, {"lead", 1, 0, LEAD}, {"burn", 1, 0, BURN}, {"help", 0, 0, HELP},
		{"ballast-pieces", 1, 0, PIECES}, {"memory", 1, 0, MEMORY}, {"handle-mib", 1, 0, HANDLE},
		{"peer", 1, 0, PEER}, {"registered", 0, 0, REGISTERED}, {"ipc-handles", 0, 0, IPC_HANDLES},
		{"profiler", 1, 0, PROFILER}, {"peer-later", 0, 0, LATER}, {"loaders", 1, 0, LOADERS}, {"share-files", 0, 0, SHARE_FILES}, {"vfork", 0, 0, VFORK}, {"look", 0, 0, LOOK}, {"context-later", 0, 0, CONTEXT_LATER}, {"trim", 0, 0, TRIM}, {0, 0, 0, 0},
	};
	struct options o = {.gpus = {0}, .ngpus = 1, .mib = 1, .tick_ms = 30, .ballast_pieces = 1, .hog_rank = -1};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (c) {
		case DIR_: o.dir = optarg; break;
		case GPUS: parse_gpus(&o, optarg); break;
		case MIB: o.mib = number("mib", optarg, 1, 1 << 20); break;
		case BALLAST: o.ballast_mib = number("ballast", optarg, 1, 1 << 20); break;
		case ZEROS: o.zeros_mib = number("zeros", optarg, 1, 1 << 20); break;
		case FLAT: o.flat_mib = number("flat", optarg, 1, 1 << 20); break;
		case TICK_MS: o.tick_ms = number("tick-ms", optarg, 0, 3600 * 1000); break;
		case BUSY_MS: o.busy_ms = number("busy-ms", optarg, 0, 3600 * 1000); break;
		case THREADS: o.threads = number("threads", optarg, 0, 1000); break;
		case MESH: o.mesh = number("mesh", optarg, 1, MESH_MAX); break;
		case BURN: o.burn = number("burn", optarg, 0, 1000); break;
		case TRIM: o.trim = 1; break;
		case SPIN: o.spin = NAMED("spin", spin_names); break;
		case COPY_WAIT: o.copy_wait = 1; break;
		case MANAGED: o.managed = 1; break;
		case MLOCK: o.mlock = 1; break;
		case PINNED: o.pinned = PINNED_ALLOCATED; break;
		case FORK_CHILD: o.fork_child = 1; break;
		case SHARE_FILES: o.share_files = 1; break;
		case LOOK: o.look = 1; break;
		case CONTEXT_LATER: o.context_later = 1; break;
		case VFORK: o.vfork = 1; break;
		case LOADERS: o.loaders = number("loaders", optarg, 0, MAX_LOADERS); break;
		case IO_URING: o.io_uring = 1; break;
		case IPC: o.ipc = 1; break;
		case IPC_VMM: o.ipc = o.ipc_vmm = 1; break;
		case IPC_LATER: o.ipc_later = 1; break;
		case RANKS: o.ranks = number("ranks", optarg, 1, MAX_PROCS); break;
		case PROCS: o.procs = number("procs", optarg, 1, MAX_PROCS); break;
		case AHEAD: o.ahead = 1; break;
		case LEAD: o.lead = number("lead", optarg, 1, MOST_LEAD); break;
		case HOG_RANK: o.hog_rank = number("hog-rank", optarg, 0, MAX_PROCS - 1); break;
		case PIECES: o.ballast_pieces = number("ballast-pieces", optarg, 1, 16); break;
		case MEMORY: o.memory.kind = NAMED("memory", memory_names); break;
		case HANDLE: o.memory.handle_bytes = (uint64_t)number("handle-mib", optarg, 2, 1 << 20) << 20; break;
		case PEER: o.peers = NAMED("peer", peer_names); break;
		case LATER: o.peers_later = 1; break;
		case REGISTERED: o.pinned = PINNED_REGISTERED; break;
		case IPC_HANDLES: o.ipc_handles = 1; break;
		case PROFILER: o.profiler = NAMED("profiler", profiler_names); break;
		case HELP: fputs(usage, stdout); exit(EXIT_GOOD);
		default: fputs(usage, stderr); exit(EXIT_USAGE);
		}
	}
	if (optind < argc)
		die(EXIT_USAGE, "%s: not an option (cudawork --help)", argv[optind]);
	if (!o.dir)
		die(EXIT_USAGE, "--dir is missing (cudawork --help)");
	if (!!o.ipc + !!o.ranks + !!o.procs > 1)
		die(EXIT_USAGE, "--ipc, --ranks and --procs exclude one another");
	if ((o.ahead || o.hog_rank >= 0) && !o.ranks)
		die(EXIT_USAGE, "--ahead and --hog-rank are about --ranks");
	if (o.lead && !o.ahead)
		die(EXIT_USAGE, "--lead is about --ahead");
	if (o.mesh && !o.ranks)
		die(EXIT_USAGE, "--mesh is about --ranks");
	return o;
}
