#include "ipc.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels.h"
#include "report.h"

#define CONNECT_MS 60000
#define UNMAP_MS 10000

#define VMM_BYTES (2ull << 20)
#define VMM_VALUE 0x5a

struct offer {
	CUipcMemHandle handle;
	uint32_t seed;
	int pid, fd; /* that has the handle of the VMM API */
};

static struct {
	CUdeviceptr ptr;
	uint32_t seed;
	uint32_t seen[GPU_SAMPLE_WORDS]; /* steps that each word had counted when last read */
} import;

static struct {
	CUmemHandle handle;
	CUdeviceptr at;
} export; /* of the VMM API */

static CUdeviceptr map_handle(struct gpu *g, CUmemHandle handle)
{
	CUmemAccess access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, g->dev}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr at;

	must(cu.MemAddressReserve(&at, VMM_BYTES, 0, 0, 0), "cuMemAddressReserve");
	must(cu.MemMap(at, VMM_BYTES, 0, handle, 0), "cuMemMap on GPU %d", g->ordinal);
	must(cu.MemSetAccess(at, VMM_BYTES, &access, 1), "cuMemSetAccess on GPU %d", g->ordinal);
	return at;
}

static void export_handle(struct gpu *g, struct offer *o)
{
	CUmemProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, g->dev},
	};

	need(cu.MemExport, "cuMemExportToShareableHandle", "--ipc-vmm");
	must(cu.MemCreate(&export.handle, VMM_BYTES, &prop, 0), "cuMemCreate on GPU %d", g->ordinal);
	export.at = map_handle(g, export.handle);
	must(cu.MemsetD8(export.at, VMM_VALUE, VMM_BYTES), "cuMemsetD8 on GPU %d", g->ordinal);
	must(cu.MemExport(&o->fd, export.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "cuMemExportToShareableHandle");
	o->pid = getpid();
}

static void offer_memory(const struct role *r, struct gpu *g)
{
	struct offer o = {.seed = g->buffers[0].seed};

	need(cu.IpcGetMemHandle, "cuIpcGetMemHandle", "--ipc");
	if (r->ipc_vmm)
		export_handle(g, &o);
	else
		must(cu.IpcGetMemHandle(&o.handle, g->buffers[0].ptr), "cuIpcGetMemHandle on GPU %d", g->ordinal);
	if (file_write(r->common, IPC_HANDLE, &o, sizeof(o)))
		die(EXIT_USAGE, "cannot write %s/" IPC_HANDLE ": %s", r->common, strerror(errno));
}

/* Takes the exporter's descriptor, and closes it when the memory is mapped. */
static CUdeviceptr import_handle(struct gpu *g, const struct offer *o)
{
	int process = (int)syscall(SYS_pidfd_open, o->pid, 0), fd = (int)syscall(SYS_pidfd_getfd, process, o->fd, 0);
	CUmemHandle handle;
	CUdeviceptr at;

	if (fd < 0)
		die(EXIT_USAGE, "the exporter's descriptor: %s", strerror(errno));
	need(cu.MemImport, "cuMemImportFromShareableHandle", "--ipc-vmm");
	must(cu.MemImport(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), "cuMemImportFromShareableHandle");
	at = map_handle(g, handle);
	close(fd);
	close(process);
	return at;
}

static void map_memory(const struct role *r, struct gpu *g)
{
	struct offer o;

	need(cu.IpcOpenMemHandle, "cuIpcOpenMemHandle_v2", "--ipc");
	need(cu.IpcCloseMemHandle, "cuIpcCloseMemHandle", "--ipc");
	for (long waited = 0; file_read(r->common, IPC_HANDLE, &o, sizeof(o)); waited += 10) {
		if (waited > CONNECT_MS)
			die(EXIT_USAGE, "--ipc: the exporter has not written %s/" IPC_HANDLE, r->common);
		sleep_ms(10);
	}
	if (r->ipc_vmm)
		import.ptr = import_handle(g, &o);
	else
		must(cu.IpcOpenMemHandle(&import.ptr, o.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
		     "cuIpcOpenMemHandle on GPU %d", g->ordinal);
	import.seed = o.seed;
	file_remove(r->common, IPC_HANDLE);
}

void ipc_connect(const struct role *r, struct gpu *g)
{
	gpu_use(g);
	if (r->part == EXPORTER)
		offer_memory(r, g);
	else if (r->part == IMPORTER && !r->ipc_later)
		map_memory(r, g);
}

static void give_up_memory(const struct role *r, struct gpu *g)
{
	if (!export.handle)
		return;
	gpu_use(g);
	if (export.at && file_exists(r->common, IPC_UNMAP)) {
		must(cu.MemUnmap(export.at, VMM_BYTES), "cuMemUnmap on GPU %d", g->ordinal);
		export.at = 0;
		file_remove(r->common, IPC_UNMAP);
	}
	if (!export.at && file_exists(r->common, IPC_RELEASE)) {
		must(cu.MemRelease(export.handle), "cuMemRelease on GPU %d", g->ordinal);
		export.handle = 0;
		file_remove(r->common, IPC_RELEASE);
	}
}

void ipc_check(const struct role *r, struct gpu *g)
{
	uint32_t got[GPU_SAMPLE_WORDS];

	if (r->part == EXPORTER)
		give_up_memory(r, g);
	if (r->part != IMPORTER)
		return;
	gpu_use(g);
	if (!import.ptr) {
		if (!file_exists(r->common, IPC_SHARE))
			return;
		map_memory(r, g);
		file_write(r->common, IPC_SHARED, "", 0);
	}
	must(cu.MemcpyDtoH(got, import.ptr, sizeof(got)), "cuMemcpyDtoH from imported memory on GPU %d", g->ordinal);
	if (r->ipc_vmm) {
		if (got[0] != VMM_VALUE * 0x01010101u)
			bad("imported memory: %#x", got[0]);
		return;
	}
	for (uint32_t i = 0; i < GPU_SAMPLE_WORDS; i++) {
		uint32_t steps = got[i] - pattern_word(import.seed, i);

		/* The exporter may be in the middle of a step, so words differ by one; but each only grows. */
		if ((int32_t)(steps - import.seen[i]) < 0)
			bad("imported memory: word %u has counted %u steps, and %u before", i, steps, import.seen[i]);
		import.seen[i] = steps;
	}
}

void ipc_disconnect(const struct role *r, struct gpu *g)
{
	if (r->part == IMPORTER) {
		gpu_use(g);
		if (r->ipc_vmm && import.ptr)
			must(cu.MemUnmap(import.ptr, VMM_BYTES), "cuMemUnmap");
		else if (import.ptr)
			must(cu.IpcCloseMemHandle(import.ptr), "cuIpcCloseMemHandle on GPU %d", g->ordinal);
		if (file_write(r->common, IPC_UNMAPPED, "", 0))
			say("cannot write %s/" IPC_UNMAPPED ": %s", r->common, strerror(errno));
	} else if (r->part == EXPORTER) {
		for (long waited = 0; !file_exists(r->common, IPC_UNMAPPED); waited += 10) {
			if (waited > UNMAP_MS) {
				say("--ipc: the importer still maps our memory after %d s; ending all the same", UNMAP_MS / 1000);
				return;
			}
			sleep_ms(10);
		}
	}
}

void ipc_take_handles(struct gpu *g)
{
	CUipcMemHandle memory;
	CUipcEventHandle handle;
	CUevent event;

	need(cu.IpcGetMemHandle, "cuIpcGetMemHandle", "--ipc-handles");
	need(cu.IpcGetEventHandle, "cuIpcGetEventHandle", "--ipc-handles");
	gpu_use(g);
	must(cu.IpcGetMemHandle(&memory, g->buffers[0].ptr), "cuIpcGetMemHandle on GPU %d", g->ordinal);
	must(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS), "cuEventCreate on GPU %d", g->ordinal);
	must(cu.IpcGetEventHandle(&handle, event), "cuIpcGetEventHandle on GPU %d", g->ordinal);
}
