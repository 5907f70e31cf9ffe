/*
 * hash.c: the GPUs hash each slice of memory that is taken out, and what has the same hash as the time before need not
 * be copied: who dumps the process has it. Nor need what is 0, of which the hash is 0. Nothing here is needed for a dump;
 * what does not work makes all slices new ones. hash.cu has the kernel, and says how sure it is.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "hash.h"

/* What nvcc makes of hash.cu. */
__asm__(".section .rodata\n"
	"hash_ptx:\n"
	".incbin \"hash.ptx\"\n"
	".byte 0\n"
	".previous\n");
extern const char hash_ptx[] __attribute__((visibility("hidden")));

#define THREADS 256 /* of a block: hash.cu */
#define P ((1ull << 61) - 1)
#ifndef MUCH /* memory, of which a copy takes longer than the kernel's compilation; the tests take less */
#define MUCH (32ull << 30)
#endif

struct place { /* hash.cu has the same */
	uint64_t at, step, upper;
};

struct hash {
	uint64_t of[2];
};

/* A table, which is in memory of its own: no thread of the program that is stopped can have its lock. */
struct table {
	void *at;
	size_t size;
};

static struct place places[2];
/* In a context, which is the one in which the witness was made: another one can have the same handle, and the same address. */
static struct {
	CUcontext context;
	void *function;
	CUdeviceptr witness;
	unsigned long long id;
} loaded[64];
static struct table before, now, same; /* two of hashes, and one of addresses */
static uint64_t before_generation;     /* 0: there is none */
static size_t before_slice;

static bool make_table(struct table *t, size_t size)
{
	t->size = size;
	t->at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (t->at == MAP_FAILED)
		t->at = NULL;
	return t->at;
}

static void drop_table(struct table *t)
{
	if (t->at)
		munmap(t->at, t->size);
	*t = (struct table){0};
}

static uint64_t times(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b % P); }

static void choose_places(const uint64_t *random)
{
	for (int i = 0; i < 2 && !places[1].step; i++) {
		places[i] = (struct place){random[2 * i] % (P - 2) + 1, 1, random[2 * i + 1] % (P - 2) + 1};
		for (int n = 0; n < 2 * THREADS; n++)
			places[i].step = times(places[i].step, places[i].at);
	}
}

static CUresult load(CUcontext context, int device)
{
	void *module;

	unsigned long long id = 0;

	if (loaded[device].function && loaded[device].context == context &&
	    !driver.cuPointerGetAttribute(&id, BUFFER_ID, loaded[device].witness) && id == loaded[device].id)
		return CUDA_SUCCESS;
	loaded[device].function = NULL;
	CUresult r = driver.cuMemAlloc_v2(&loaded[device].witness, 1);
	if (!r && !(r = driver.cuPointerGetAttribute(&loaded[device].id, BUFFER_ID, loaded[device].witness)) &&
	    !(r = driver.cuModuleLoadData(&module, hash_ptx)))
		r = driver.cuModuleGetFunction(&loaded[device].function, module, "cucriu_hash");
	loaded[device].context = context;
	if (r)
		loaded[device].function = NULL;
	return r;
}

static size_t slices(const struct memory *m, size_t slice) { return (m->size + slice - 1) / slice; }

static CUresult hash(const struct memory *m, CUcontext context, size_t slice, void *room)
{
	const int device = m->wanted.location.id;
	CUdeviceptr at = m->mappings->at;
	uint64_t size = m->size, step = slice, out = (uintptr_t)room;
	void *parameters[] = {&at, &size, &step, &out, &places[0], &places[1]}, *stream;
	CUresult r = driver.cuCtxSetCurrent(context);

	if (r || (r = load(context, device)) || (r = driver.cuStreamCreate(&stream, 1 /* CU_STREAM_NON_BLOCKING */)))
		return r;
	r = driver.cuLaunchKernel(loaded[device].function, (unsigned)slices(m, slice), 1, 1, THREADS, 1, 1, 0, stream, parameters, NULL);
	if (!r)
		r = driver.cuStreamSynchronize(stream);
	driver.cuStreamDestroy_v2(stream);
	return r;
}

/* To look only for what is 0: the kernel is there, or it is much memory. */
static bool worth_while(size_t bytes)
{
	for (size_t i = 0; i < sizeof loaded / sizeof *loaded; i++)
		if (loaded[i].function)
			return true;
	return bytes >= MUCH;
}

static bool is_zero(const struct hash *h) { return !h->of[0] && !h->of[1]; }

void hash_begin(struct hashing *h, CUcontext *contexts, size_t slice, size_t count, void *room)
{
	CUresult r = CUDA_SUCCESS;
	const bool comparable = h->base && h->base == before_generation && slice == before_slice;

	h->same = 0;
	h->slice = slice;
	h->count = count;
	drop_table(&now);
	drop_table(&same);
	if (!h->generation && !worth_while(count * slice))
		return;
	if (!make_table(&now, count * sizeof(struct hash)) || !make_table(&same, count * sizeof(uint64_t))) {
		drop_table(&now);
		return;
	}
	choose_places(h->random);
	for (struct memory *m = memory_first(); m && !r; m = m->next) {
		const size_t first = m->staged / slice, n = slices(m, slice);
		struct hash *its = (struct hash *)now.at + first;
		if (!m->moving)
			continue;
		r = hash(m, contexts[m->wanted.location.id], slice, room);
		memcpy(its, room, n * sizeof *its);
		for (size_t i = 0; i < n && comparable && m->hashed == h->base; i++)
			if (!is_zero(&its[i]) && m->hashed_at + i * slice >= h->base_start && m->hashed_at + (i + 1) * slice <= h->base_end &&
			    !memcmp(&its[i], (struct hash *)before.at + m->hashed_first + i, sizeof *its))
				((uint64_t *)same.at)[first + i] = m->hashed_at + i * slice;
	}
	if (r)
		drop_table(&now);
	else
		h->same = (uintptr_t)same.at;
}

bool hash_same(const struct hashing *h, size_t number) { return h->same && !h->copies_all && ((uint64_t *)same.at)[number]; }

bool hash_zero(const struct hashing *h, size_t number) { return now.at && !h->copies_all && is_zero((struct hash *)now.at + number); }

uint64_t hash_content(const struct hashing *h)
{
	uint64_t content = 0;

	for (size_t i = 0; i < h->count; i++)
		content += hash_zero(h, i) || hash_same(h, i) ? 0 : h->slice;
	return content;
}

void hash_end(struct hashing *h, uint64_t staging)
{
	drop_table(&before);
	before = now;
	now = (struct table){0};
	if (!h->generation)
		drop_table(&before);
	before_generation = before.at ? h->generation : 0;
	before_slice = h->slice;
	for (struct memory *m = memory_first(); m && before.at; m = m->next)
		if (m->moving) {
			m->hashed = h->generation;
			m->hashed_at = staging + m->staged;
			m->hashed_first = m->staged / h->slice;
		}
}
