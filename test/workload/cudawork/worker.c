#include "worker.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "companions.h"
#include "files.h"
#include "gpu.h"
#include "ipc.h"
#include "loaders.h"
#include "mesh.h"
#include "peers.h"
#include "profiler.h"
#include "report.h"

#define MANAGED_BYTES (1u << 20) /* kept small: too much managed memory can hang a real GPU */

struct worker {
	const struct options *options;
	const struct role *role;
	struct gpu gpus[MAX_GPUS];
	int ngpus;
	uint64_t ticks;
	uint32_t *scratch; /* GPU_SAMPLE_BYTES of host memory, pinned or not */
	int status_failed, checked_failed; /* errno of the last write of each file, 0 when it was written */
};

static void set_up(struct worker *w)
{
	static uint32_t pageable[GPU_SAMPLE_WORDS];
	const struct options *o = w->options;
	uint32_t seed = 1 + 100 * w->role->rank;

	if (o->trim) /* among the first threads, which a dump has work for it first */
		companions_trim();
	driver_open();
	while (o->context_later && !file_exists(w->role->dir, "context"))
		sleep_ms(5);
	profiler_attach(o->profiler);
	w->ngpus = o->ngpus;
	for (int i = 0; i < w->ngpus; i++) {
		struct gpu *g = &w->gpus[i];

		gpu_open(g, o->gpus[i], w->role->meeting, o->memory, o->copy_wait);
		gpu_add_buffer(g, (uint64_t)o->mib << 20, seed + i);
		for (int k = 0; o->ballast_mib && k < o->ballast_pieces; k++)
			gpu_add_ballast(g, (uint64_t)o->ballast_mib << 20, seed + 70 + i);
		if (o->zeros_mib)
			gpu_add_flat(g, (uint64_t)o->zeros_mib << 20, 0);
		if (o->flat_mib)
			gpu_add_flat(g, (uint64_t)o->flat_mib << 20, 0x5a);
	}
	peers_connect(w->gpus, w->ngpus, o->peers, !o->peers_later);
	gpu_use(&w->gpus[0]);
	if (o->managed)
		gpu_add_managed(&w->gpus[0], MANAGED_BYTES, seed + 50);
	/* Fork while there are no threads but the driver's. */
	if (o->fork_child || o->share_files)
		companions_fork_child(o->share_files);
	loaders_start(o->loaders, w->role->rank * o->loaders);
	if (o->look)
		companions_look();
	if (o->io_uring)
		companions_io_uring();
	if (w->role->rank == o->hog_rank)
		gpu_submit_hour(&w->gpus[0]);
	if (o->ipc_handles)
		ipc_take_handles(&w->gpus[0]);
	w->scratch = o->pinned ? companions_pin(&w->gpus[0], o->pinned) : pageable;
	ipc_connect(w->role, &w->gpus[0]);
	mesh_connect(w->role, &w->gpus[0], o->mesh);
	companions_spin(w->gpus, w->ngpus, o->spin);
	if (o->vfork)
		companions_vfork();
	companions_count(o->threads);
	companions_burn(o->burn);
}

/*
 * Whether this is a rank that leaves its GPU work alone, as training loops do of which
 * only one rank looks at the loss. Once in a while it synchronizes as well.
 */
static int runs_ahead(const struct worker *w)
{
	return w->role->ahead && w->role->rank && (w->ticks + 1) % w->role->ahead;
}

static long cpu_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/*
 * The first ticks after that come without a pause: each rank is ahead by a number of its own, and the hog
 * by far, because who is ahead of it waits for it without end once it is held. With --lead they stay that far ahead.
 * Else the pause is so long that the job takes a tenth of a CPU at most, because many jobs
 * are tested at once. (A restored thread begins to count anew.)
 */
static void pause_after_tick(struct worker *w)
{
	static long before;
	long now = cpu_ms(), least = w->options->tick_ms, pause = 9 * (now - before);
	uint64_t lead = w->role->rank == w->options->hog_rank ? 100 : 4u * w->role->rank;

	before = now;
	if (pause > 1000)
		pause = 1000;
	if (runs_ahead(w) && (w->options->lead ? gpu_mark(&w->gpus[0], w->options->lead) : w->ticks % w->role->ahead < lead))
		return;
	if (w->role->ahead && file_exists(w->role->common, "stop"))
		return; /* it takes many ticks more until all are level */
	if (least)
		sleep_ms(pause > least ? pause : least);
}

static void tick(struct worker *w)
{
	const struct role *r = w->role;

	for (int i = 0; i < w->ngpus; i++) {
		struct gpu *g = &w->gpus[i], *by;

		gpu_use(g);
		if (w->options->busy_ms)
			gpu_submit_busy(g, w->options->busy_ms);
		by = peers_stepper(w->gpus, w->ngpus, i, w->ticks);
		gpu_use(by);
		gpu_submit_step(g, by);
		gpu_use(g);
		if (r->part == RANK && (!w->options->mesh || r->ahead))
			gpu_submit_collective(g, r->group, r->rank, r->size, w->ticks + 1);
	}
	if (runs_ahead(w)) {
		w->ticks++;
		return;
	}
	for (int i = 0; i < w->ngpus; i++) {
		gpu_use(&w->gpus[i]);
		gpu_wait(&w->gpus[i]);
	}
	w->ticks++;
	for (int i = 0; i < w->ngpus; i++) {
		gpu_use(&w->gpus[i]);
		gpu_check_sample(&w->gpus[i], w->ticks, w->scratch);
	}
	ipc_check(r, &w->gpus[0]);
	mesh_tick(r, &w->gpus[0], w->ticks);
	loaders_ask(w->ticks);
}

/*
 * Notes how the writing of one of our files went. The disk may be full: that is said once for each file, and
 * the job goes on. Returns whether the file was written.
 */
static int published(const struct worker *w, const char *name, int result, int *failed)
{
	if (!result) {
		if (*failed)
			say("%s/%s can be written again", w->role->dir, name);
		*failed = 0;
		return 1;
	}
	if (*failed != errno) {
		*failed = errno;
		say("cannot write %s/%s: %s; going on", w->role->dir, name, strerror(*failed));
	}
	return 0;
}

static void write_status(struct worker *w)
{
	char text[256 + MAX_GPUS * 128];
	int n = snprintf(text, sizeof(text), "{\"pid\":%d,\"tick\":%llu,\"gpus\":[", (int)getpid(),
			 (unsigned long long)w->ticks);

	for (int i = 0; i < w->ngpus; i++) {
		char uuid[UUID_LEN], pci[PCI_LEN];

		gpu_identity(&w->gpus[i], uuid, pci);
		n += snprintf(text + n, sizeof(text) - n, "%s{\"uuid\":\"%s\",\"pci\":\"%s\"}", i ? "," : "", uuid, pci);
	}
	n += snprintf(text + n, sizeof(text) - n, "],\"bad\":%llu}", (unsigned long long)bad_count());
	n += snprintf(text + n, sizeof(text) - n, "%*s\n", 255 + w->ngpus * 128 - n, "");

	published(w, "status", file_update(w->role->dir, "status", text, n, w->ticks), &w->status_failed);
}

/* Answers DIR/check. The request stays when the answer cannot be written, and is met at the next tick. */
static void answer_check(struct worker *w)
{
	struct tally all = {0, 0};
	char text[128];
	int n;

	if (!file_exists(w->role->dir, "check"))
		return;
	for (int i = 0; i < w->ngpus; i++) {
		struct gpu *by[] = {&w->gpus[i], peers_of(w->gpus, w->ngpus, i)};

		/* By way of each context that can reach it. */
		for (int k = 0; k < 2 && by[k]; k++) {
			struct tally t;

			gpu_use(by[k]);
			gpu_wait(by[k]);
			t = gpu_check_all(&w->gpus[i], w->ticks);
			all.words += t.words;
			all.bad += t.bad;
		}
	}
	if (w->role->ahead)
		mesh_tick(w->role, &w->gpus[0], w->ticks);
	n = snprintf(text, sizeof(text), "{\"tick\":%llu,\"bad\":%llu,\"words\":%llu}\n", (unsigned long long)w->ticks,
		     (unsigned long long)all.bad, (unsigned long long)all.words);
	if (published(w, "checked", file_write(w->role->dir, "checked", text, n), &w->checked_failed))
		file_remove(w->role->dir, "check");
}

static void tear_down(struct worker *w)
{
	ipc_disconnect(w->role, &w->gpus[0]);
	companions_end();
	loaders_end();
	for (int i = 0; i < w->ngpus; i++)
		gpu_close(&w->gpus[i]);
}

int worker_run(const struct options *o, const struct role *r)
{
	static struct worker w;

	w.options = o;
	w.role = r;
	set_up(&w);
	write_status(&w); /* tick 0: everything is in place */
	while (!role_stop(r, w.ticks + 1)) {
		tick(&w);
		write_status(&w);
		answer_check(&w);
		peers_answer(r, w.gpus, w.ngpus);
		pause_after_tick(&w);
	}
	tear_down(&w);
	if (bad_count()) {
		say("stopped after %llu ticks; %llu mismatches", (unsigned long long)w.ticks, (unsigned long long)bad_count());
		return EXIT_BAD;
	}
	return EXIT_GOOD;
}
