/*
 * keep.c: memory that stays on the GPUs while this process has none of it. A descriptor of each part lies in a
 * socket, as a message that nobody has read, and who dumps the process takes that socket along. It comes back through
 * another one. The driver restores no memory that a process has imported, and makes no descriptor of it. So what
 * comes back is copied, on its GPU, into new memory.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent.h"
#include "keep.h"
#include "rights.h"

struct kept kept[MOST_GPUS];

/* Of the socket that was sent back: what was read of it. */
static int received[BATCH];
static size_t received_count, received_used;

void keep_hang_up(void)
{
	while (received_used < received_count)
		close(received[received_used++]);
	rights_hang_up();
}

int keep_connect(void)
{
	keep_hang_up();
	return rights_open();
}

/* The next descriptor, which is the caller's to close; -1 if there is none. */
static int next_descriptor(void)
{
	char byte;

	if (received_used == received_count) {
		received_count = rights_receive(&byte, 1, received);
		received_used = 0;
	}
	return received_used < received_count ? received[received_used++] : -1;
}

CUresult kept_take(void)
{
	return rights_take() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool keep_parts(const struct memory *m, struct outgoing *o)
{
	for (size_t i = 0; i < m->count; i++) {
		if (!rights_room(o) || driver.cuMemExportToShareableHandle(&o->list[o->count], m->parts[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
			return false;
		o->count++;
	}
	return true;
}

int keep(void)
{
	struct outgoing parts = {.data = "", .size = 1};
	bool all = keep_connect() >= 0;

	memset(kept, 0, sizeof kept);
	for (const struct memory *m = memory_first(); m && all; m = m->next) {
		if (!m->moving)
			continue;
		struct kept *k = &kept[m->wanted.location.id];
		k->bytes += m->size;
		all = !driver.cuDeviceGetUuid_v2(k->gpu, m->wanted.location.id) && keep_parts(m, &parts);
	}
	all = rights_send(&parts) && all;
	return rights_leave(all);
}

/* Takes a part away again, up to a mapping. */
static void unmake(struct memory *m, size_t i, const struct mapping *end)
{
	for (const struct mapping *p = m->mappings; p != end; p = p->next)
		driver.cuMemUnmap(p->at + i * m->part_size, memory_length(m, i));
	driver.cuMemRelease(m->parts[i]);
}

/* Makes a part, wherever its memory is mapped. */
static CUresult make(struct memory *m, size_t i)
{
	const size_t size = memory_length(m, i);
	const struct mapping *p;
	CUresult r = memory_make_part(m, i);

	if (r)
		return r;
	for (p = m->mappings; p && !r; p = p->next) {
		const CUdeviceptr at = p->at + i * m->part_size;
		if ((r = driver.cuMemMap(at, size, 0, m->parts[i], 0)))
			break;
		if (m->access_count && (r = driver.cuMemSetAccess(at, size, m->access, m->access_count))) {
			driver.cuMemUnmap(at, size);
			break;
		}
	}
	if (r)
		unmake(m, i, p);
	return r;
}

/* Where the content of a part is. */
struct place {
	CUdeviceptr spare; /* addresses for it */
	CUhandle part;
	size_t size;
	void *stream;
};

static CUresult lay_out(const struct memory *m, struct place *old)
{
	const struct access own = {m->wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	int fd = next_descriptor();
	CUresult r = fd < 0 ? CUDA_ERROR_INVALID_VALUE : driver.cuMemImportFromShareableHandle(&old->part, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

	if (fd >= 0)
		close(fd);
	if (r)
		return r;
	if (!(r = driver.cuMemMap(old->spare, old->size, 0, old->part, 0))) {
		if (!(r = driver.cuMemSetAccess(old->spare, old->size, &own, 1)))
			return r;
		driver.cuMemUnmap(old->spare, old->size);
	}
	driver.cuMemRelease(old->part);
	return r;
}

static void give_back(const struct place *old)
{
	driver.cuMemUnmap(old->spare, old->size);
	driver.cuMemRelease(old->part);
}

static CUresult wait_for(CUresult begun, void *stream) { return begun ? begun : driver.cuStreamSynchronize(stream); }

/* The GPU has no room for the part a second time. */
static CUresult replace_by_way_of_the_host(struct memory *m, size_t i, const struct place *old)
{
	void *host = mmap(NULL, old->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (host != MAP_FAILED)
		madvise(host, old->size, MADV_HUGEPAGE);
	CUresult r = host == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : wait_for(driver.cuMemcpyDtoHAsync_v2(host, old->spare, old->size, old->stream), old->stream);

	give_back(old);
	agent_progress();
	if (!r && !(r = make(m, i)) &&
	    (r = wait_for(driver.cuMemcpyHtoDAsync_v2(m->mappings->at + i * m->part_size, host, old->size, old->stream), old->stream)))
		unmake(m, i, NULL);
	if (host != MAP_FAILED)
		munmap(host, old->size);
	return r;
}

static CUresult replace(struct memory *m, size_t i, struct place *old)
{
	old->size = memory_length(m, i);
	CUresult r = lay_out(m, old);
	if (r)
		return r;
	r = make(m, i);
	if (r == CUDA_ERROR_OUT_OF_MEMORY)
		return replace_by_way_of_the_host(m, i, old);
	if (!r && (r = wait_for(driver.cuMemcpyDtoDAsync_v2(m->mappings->at + i * m->part_size, old->spare, old->size, old->stream), old->stream)))
		unmake(m, i, NULL);
	give_back(old);
	return r;
}

CUresult kept_put_up(struct memory *m, CUcontext context)
{
	struct place old;
	size_t made = 0;
	CUresult r = driver.cuCtxSetCurrent(context);

	if (!r && !(r = driver.cuMemAddressReserve(&old.spare, memory_length(m, 0), 0, 0, 0))) {
		if (!(r = driver.cuStreamCreate(&old.stream, 1 /* CU_STREAM_NON_BLOCKING */))) {
			for (; made < m->count && !(r = replace(m, made, &old)); made++)
				agent_progress();
			driver.cuStreamDestroy_v2(old.stream);
		}
		driver.cuMemAddressFree(old.spare, memory_length(m, 0));
	}
	while (r && made)
		unmake(m, --made, NULL);
	driver.cuCtxSetCurrent(NULL);
	return r;
}
