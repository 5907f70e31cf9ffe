#include "mesh.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "report.h"

#define PIECE (2ull << 20)
#define CONNECT_MS 60000

/* What a rank gives, in the common directory. */
struct gift {
	int pid, fds[MESH_MAX];
};

static struct {
	int pieces, fds[MESH_MAX]; /* open until all others have theirs */
	CUdeviceptr own;           /* all pieces, one after the other; a word for each rank in each piece */
	CUdeviceptr *others;       /* those of each rank */
} mesh;

static CUdeviceptr reserve(void)
{
	CUdeviceptr at;

	must(cu.MemAddressReserve(&at, mesh.pieces * PIECE, 0, 0, 0), "cuMemAddressReserve");
	return at;
}

static void map(const struct gpu *g, CUdeviceptr at, CUmemHandle handle)
{
	CUmemAccess access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, g->dev}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

	must(cu.MemMap(at, PIECE, 0, handle, 0), "cuMemMap on GPU %d", g->ordinal);
	must(cu.MemSetAccess(at, PIECE, &access, 1), "cuMemSetAccess on GPU %d", g->ordinal);
	must(cu.MemRelease(handle), "cuMemRelease");
}

static void file_of(char *name, size_t size, int rank) { snprintf(name, size, "mesh-%d", rank); }

void mesh_clear(const char *common, int ranks)
{
	char name[32];

	for (int i = 0; i < ranks; i++) {
		file_of(name, sizeof(name), i);
		file_remove(common, name);
	}
}

static void give(const struct role *r, const struct gpu *g)
{
	CUmemProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, g->dev},
	};
	static struct gift gift;
	char name[32];

	mesh.own = reserve();
	for (int i = 0; i < mesh.pieces; i++) {
		CUmemHandle handle;
		must(cu.MemCreate(&handle, PIECE, &prop, 0), "cuMemCreate on GPU %d", g->ordinal);
		must(cu.MemExport(&mesh.fds[i], handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "cuMemExportToShareableHandle");
		map(g, mesh.own + i * PIECE, handle);
	}
	must(cu.MemsetD8(mesh.own, 0, mesh.pieces * PIECE), "cuMemsetD8 on GPU %d", g->ordinal);
	must(cu.CtxSynchronize(), "cuCtxSynchronize");
	gift.pid = getpid();
	memcpy(gift.fds, mesh.fds, sizeof gift.fds);
	file_of(name, sizeof(name), r->rank);
	if (file_write(r->common, name, &gift, sizeof(gift)))
		die(EXIT_USAGE, "cannot write %s/%s: %s", r->common, name, strerror(errno));
}

static void take(const struct role *r, const struct gpu *g, int rank)
{
	static struct gift gift;
	char name[32];

	file_of(name, sizeof(name), rank);
	for (long waited = 0; file_read(r->common, name, &gift, sizeof(gift)); waited += 10) {
		if (waited > CONNECT_MS)
			die(EXIT_USAGE, "--mesh: rank %d has not written %s/%s", rank, r->common, name);
		sleep_ms(10);
	}
	mesh.others[rank] = reserve();
	int process = (int)syscall(SYS_pidfd_open, gift.pid, 0);
	for (int i = 0; i < mesh.pieces; i++) {
		CUmemHandle handle;
		int fd = (int)syscall(SYS_pidfd_getfd, process, gift.fds[i], 0);
		if (fd < 0)
			die(EXIT_USAGE, "descriptor %d of rank %d: %s", gift.fds[i], rank, strerror(errno));
		must(cu.MemImport(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), "cuMemImportFromShareableHandle");
		map(g, mesh.others[rank] + i * PIECE, handle);
		close(fd);
	}
	close(process);
}

void mesh_connect(const struct role *r, struct gpu *g, int pieces)
{
	if (!pieces)
		return;
	need(cu.MemExport, "cuMemExportToShareableHandle", "--mesh");
	need(cu.MemImport, "cuMemImportFromShareableHandle", "--mesh");
	need(cu.MemcpyHtoD, "cuMemcpyHtoD_v2", "--mesh");
	mesh.pieces = pieces;
	mesh.others = calloc(r->size, sizeof(*mesh.others));
	if (!mesh.others)
		die(EXIT_USAGE, "out of memory");
	gpu_use(g);
	give(r, g);
	for (int i = 0; i < r->size; i++)
		if (i != r->rank)
			take(r, g, i);
}

/* Another one may be a tick further, but not two: it waits for us. */
static void await_tick(const struct role *r, CUdeviceptr piece, int rank, uint32_t tick)
{
	uint32_t word, seen = tick - 1;

	for (;;) {
		must(cu.MemcpyDtoH(&word, piece + rank * sizeof(word), sizeof(word)), "cuMemcpyDtoH");
		if (word < seen || word > tick + 1)
			bad("tick %u: rank %d has written %u into memory of rank %d, and %u before", tick, rank, word, r->rank, seen);
		if (word >= tick)
			return;
		seen = word;
		sleep_ms(1);
	}
}

static void write_tick(const struct role *r, int rank, uint32_t tick)
{
	for (int i = 0; i < mesh.pieces; i++)
		must(cu.MemcpyHtoD(mesh.others[rank] + i * PIECE + r->rank * sizeof(tick), &tick, sizeof(tick)), "cuMemcpyHtoD into memory of rank %d", rank);
	must(cu.CtxSynchronize(), "cuCtxSynchronize");
}

/* All work of this rank has ended, so rank 0 has begun this tick, and cannot have ended the next one. */
static void check_ahead(uint32_t tick)
{
	uint32_t word;

	for (int i = 0; i < mesh.pieces; i++) {
		must(cu.MemcpyDtoH(&word, mesh.own + i * PIECE, sizeof(word)), "cuMemcpyDtoH");
		if (word != tick - 1 && word != tick)
			bad("tick %u: rank 0 has written %u into piece %d", tick, word, i);
	}
}

void mesh_tick(const struct role *r, struct gpu *g, uint32_t tick)
{
	if (!mesh.pieces)
		return;
	gpu_use(g);
	if (r->ahead && r->rank) {
		check_ahead(tick);
		return;
	}
	for (int k = 0; k < r->size; k++)
		if (k != r->rank)
			write_tick(r, k, tick);
	for (int k = 0; k < r->size && !r->ahead; k++)
		for (int i = 0; i < mesh.pieces && k != r->rank; i++)
			await_tick(r, mesh.own + i * PIECE, k, tick);
	for (int i = 0; i < mesh.pieces && tick == 1; i++)
		close(mesh.fds[i]); /* all others have the memory now */
}
