#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels.h"
#include "report.h"

#define BLOCK 256
#define MAX_GRID 4096
#define CHUNK_BYTES (4u << 20)

static CUfunction entry(CUmodule mod, const char *name)
{
	CUfunction fn;

	must(cu.ModuleGetFunction(&fn, mod, name), "cuModuleGetFunction(%s)", name);
	return fn;
}

static void open_collective(struct gpu *g, void *meeting)
{
	CUmodule mod;

	if (!cu.ModuleLoadData(&mod, collective_ptx)) {
		g->collective = entry(mod, "cw_collective");
		return;
	}
	must(cu.ModuleLoadData(&mod, meeting_ptx), "cuModuleLoadData on GPU %d", g->ordinal);
	g->collective = entry(mod, "cw_meet");
	need(cu.MemHostRegister, "cuMemHostRegister_v2", "--ranks");
	need(cu.MemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", "--ranks");
	must(cu.MemHostRegister(meeting, MEETING_BYTES, CU_MEMHOSTREGISTER_DEVICEMAP), "cuMemHostRegister for --ranks");
	must(cu.MemHostGetDevicePointer(&g->meeting, meeting, 0), "cuMemHostGetDevicePointer for --ranks");
}

void gpu_open(struct gpu *g, int ordinal, void *meeting, struct memory memory, int copy_wait)
{
	CUmodule mod;
	int count = 0;

	*g = (struct gpu){.ordinal = ordinal, .memory = memory, .copy_wait = copy_wait};
	must(cu.DeviceGetCount(&count), "cuDeviceGetCount");
	if (ordinal >= count)
		die(EXIT_CUDA, "GPU %d: the driver shows %d GPUs (see --gpus)", ordinal, count);
	must(cu.DeviceGet(&g->dev, ordinal), "cuDeviceGet(%d)", ordinal);
	must(cu.PrimaryCtxRetain(&g->ctx, g->dev), "cuDevicePrimaryCtxRetain on GPU %d", ordinal);
	gpu_use(g);
	must(cu.ModuleLoadData(&mod, kernels_ptx), "cuModuleLoadData on GPU %d", ordinal);
	g->spin = entry(mod, "cw_spin");
	g->fill = entry(mod, "cw_fill");
	g->step = entry(mod, "cw_step");
	if (meeting)
		open_collective(g, meeting);
	must(cu.StreamCreate(&g->stream, copy_wait ? 0 : CU_STREAM_NON_BLOCKING), "cuStreamCreate on GPU %d", ordinal);
	memory_open(g);
}

void gpu_close(struct gpu *g)
{
	gpu_use(g);
	for (int i = 0; i < g->nbuffers; i++)
		memory_free(g, &g->buffers[i]);
	memory_close(g);
	/* Takes the module and all streams and events with it. */
	must(cu.PrimaryCtxRelease(g->dev), "cuDevicePrimaryCtxRelease on GPU %d", g->ordinal);
}

void gpu_use(const struct gpu *g)
{
	must(cu.CtxSetCurrent(g->ctx), "cuCtxSetCurrent to GPU %d", g->ordinal);
}

static void launch(struct gpu *g, CUfunction fn, const char *name, uint64_t threads, void **params)
{
	uint64_t grid = (threads + BLOCK - 1) / BLOCK;
	unsigned block = threads < BLOCK ? threads : BLOCK;

	if (grid > MAX_GRID)
		grid = MAX_GRID; /* the kernels stride */
	must(cu.LaunchKernel(fn, grid, 1, 1, block, 1, 1, 0, g->stream, params, NULL),
	     "launch of %s on GPU %d", name, g->ordinal);
}

static struct buffer *add(struct gpu *g, struct buffer b)
{
	struct buffer *slot = &g->buffers[g->nbuffers++];
	void *params[] = {&b.ptr, &b.nwords, &b.seed};

	*slot = b;
	launch(g, g->fill, "cw_fill", b.nwords, params);
	gpu_wait(g);
	return slot;
}

static struct buffer *add_device(struct gpu *g, struct buffer b)
{
	memory_take(g, &b);
	return add(g, b);
}

struct buffer *gpu_add_buffer(struct gpu *g, uint64_t bytes, uint32_t seed)
{
	return add_device(g, (struct buffer){.nwords = bytes / sizeof(uint32_t), .seed = seed, .kind = "device"});
}

struct buffer *gpu_add_ballast(struct gpu *g, uint64_t bytes, uint32_t seed)
{
	return add_device(g, (struct buffer){.nwords = bytes / sizeof(uint32_t), .seed = seed, .still = 1, .kind = "ballast"});
}

void gpu_add_flat(struct gpu *g, uint64_t bytes, unsigned char value)
{
	struct buffer b = {
		.nwords = bytes / sizeof(uint32_t), .seed = value * 0x01010101u, .still = 1, .flat = 1, .kind = "flat",
	};

	memory_take(g, &b);
	must(cu.MemsetD8(b.ptr, value, bytes), "cuMemsetD8 on GPU %d", g->ordinal);
	g->buffers[g->nbuffers++] = b;
}

struct buffer *gpu_add_managed(struct gpu *g, uint64_t bytes, uint32_t seed)
{
	struct buffer b = {.nwords = bytes / sizeof(uint32_t), .seed = seed, .kind = "managed"};

	need(cu.MemAllocManaged, "cuMemAllocManaged", "--managed");
	must(cu.MemAllocManaged(&b.ptr, bytes, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged on GPU %d", g->ordinal);
	return add(g, b);
}

void gpu_submit_busy(struct gpu *g, long ms)
{
	uint64_t ns = (uint64_t)ms * 1000000;
	void *params[] = {&ns};

	launch(g, g->spin, "cw_spin", 1, params);
}

void gpu_submit_step(struct gpu *g, struct gpu *by)
{
	for (int i = 0; i < g->nbuffers; i++) {
		struct buffer *b = &g->buffers[i];
		void *params[] = {&b->ptr, &b->nwords};

		if (b->still)
			continue;
		launch(by, by->step, "cw_step", b->nwords, params);
	}
}

void gpu_submit_collective(struct gpu *g, uint64_t group, uint32_t rank, uint32_t size, uint64_t generation)
{
	void *params[] = {g->meeting ? (uint64_t *)&g->meeting : &group, &rank, &size, &generation};

	launch(g, g->collective, "cw_collective", 1, params);
}

void gpu_submit_hour(struct gpu *g)
{
	CUstream ticks = g->stream;

	must(cu.StreamCreate(&g->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate on GPU %d", g->ordinal);
	gpu_submit_busy(g, 3600 * 1000);
	g->stream = ticks;
}

int gpu_mark(struct gpu *g, int before)
{
	CUevent *mark = &g->marks[g->nmarks % before];
	int again = g->nmarks++ >= (unsigned)before;
	CUresult done = again ? cu.EventQuery(*mark) : 0;

	if (done && done != CUDA_ERROR_NOT_READY)
		must(done, "cuEventQuery on GPU %d", g->ordinal);
	if (!again)
		must(cu.EventCreate(mark, CU_EVENT_DISABLE_TIMING), "cuEventCreate on GPU %d", g->ordinal);
	must(cu.EventRecord(*mark, g->stream), "cuEventRecord on GPU %d", g->ordinal);
	return !done;
}

void gpu_wait(struct gpu *g)
{
	uint32_t word;

	if (g->copy_wait && g->nbuffers) {
		must(cu.MemcpyDtoH(&word, g->buffers[0].ptr, sizeof(word)), "cuMemcpyDtoH from GPU %d", g->ordinal);
		return;
	}
	must(cu.StreamSynchronize(g->stream), "cuStreamSynchronize on GPU %d", g->ordinal);
}

/* Compares n words that were read from word `at` on; describes the first that differs. */
static uint64_t compare(const struct gpu *g, const struct buffer *b, uint64_t at, const uint32_t *got,
			uint64_t n, uint64_t steps)
{
	uint32_t want = b->flat ? b->seed : pattern_word(b->seed, at) + (b->still ? 0 : (uint32_t)steps);
	uint32_t slope = !b->flat;
	uint64_t wrong = 0, first = 0;

	for (uint64_t i = 0; i < n; i++) {
		if (got[i] == want + slope * (uint32_t)i)
			continue;
		if (!wrong++)
			first = i;
	}
	if (wrong) {
		bad("GPU %d, %s buffer, tick %llu: word %llu is 0x%08x and should be 0x%08x (%llu of the %llu words from word %llu on are wrong)",
		    g->ordinal, b->kind, (unsigned long long)steps, (unsigned long long)(at + first), got[first],
		    want + slope * (uint32_t)first, (unsigned long long)wrong, (unsigned long long)n, (unsigned long long)at);
		bad_more(wrong - 1);
	}
	return wrong;
}

void gpu_check_sample(struct gpu *g, uint64_t steps, uint32_t *scratch)
{
	for (int i = 0; i < g->nbuffers; i++) {
		struct buffer *b = &g->buffers[i];
		uint64_t last = b->nwords - GPU_SAMPLE_WORDS;
		/* The start, the end, and a place that wanders over the whole buffer. */
		uint64_t at[] = {0, last, steps * 2654435761u % (last + 1)};

		for (int k = 0; k < 3; k++) {
			must(cu.MemcpyDtoH(scratch, b->ptr + at[k] * sizeof(uint32_t), GPU_SAMPLE_BYTES),
			     "cuMemcpyDtoH from GPU %d", g->ordinal);
			compare(g, b, at[k], scratch, GPU_SAMPLE_WORDS, steps);
		}
	}
}

struct tally gpu_check_all(struct gpu *g, uint64_t steps)
{
	const uint64_t chunk = CHUNK_BYTES / sizeof(uint32_t);
	uint32_t *host = malloc(CHUNK_BYTES);
	struct tally t = {0, 0};

	if (!host)
		die(EXIT_USAGE, "out of host memory");
	for (int i = 0; i < g->nbuffers; i++) {
		struct buffer *b = &g->buffers[i];

		for (uint64_t at = 0; at < b->nwords; at += chunk) {
			uint64_t n = b->nwords - at < chunk ? b->nwords - at : chunk;

			must(cu.MemcpyDtoH(host, b->ptr + at * sizeof(uint32_t), n * sizeof(uint32_t)),
			     "cuMemcpyDtoH from GPU %d", g->ordinal);
			t.bad += compare(g, b, at, host, n, steps);
			t.words += n;
		}
	}
	free(host);
	return t;
}

void gpu_identity(const struct gpu *g, char uuid[UUID_LEN], char pci[PCI_LEN])
{
	CUuuid id;
	const unsigned char *b = id.bytes;

	must(cu.DeviceGetUuid(&id, g->dev), "cuDeviceGetUuid of GPU %d", g->ordinal);
	snprintf(uuid, UUID_LEN, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		 b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7],
		 b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
	must(cu.DeviceGetPCIBusId(pci, PCI_LEN, g->dev), "cuDeviceGetPCIBusId of GPU %d", g->ordinal);
}
