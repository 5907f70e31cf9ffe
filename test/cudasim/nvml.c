/* nvml.c: the simulated libnvidia-ml.so.1: what is where on the host's GPUs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "account.h"

struct sim_nvml_device {
	int gpu;
};

static struct {
	int users; /* nvmlInit counts */
	struct sim_host host;
	int ndevices;
	struct sim_nvml_device device[SIM_MAX_GPUS];
} nvml;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
	nvmlReturn_t r = NVML_SUCCESS;
	pthread_mutex_lock(&mutex);
	if (!nvml.users) {
		const char *root = getenv("CUDASIM_ROOT");
		int err = host_load(&nvml.host, root);
		if (err) {
			sim_log("nvmlInit: CUDASIM_ROOT=%s is not a simulated host: %s", root ? root : "", strerror(-err));
			r = NVML_ERROR_DRIVER_NOT_LOADED;
		} else {
			uint32_t seen = host_visible(&nvml.host);
			nvml.ndevices = 0;
			for (int i = 0; i < nvml.host.ngpus; i++)
				if (seen & 1u << i)
					nvml.device[nvml.ndevices++].gpu = i;
		}
	}
	if (!r)
		nvml.users++;
	pthread_mutex_unlock(&mutex);
	return r;
}
ALIAS(nvmlInit_v2) nvmlReturn_t nvmlInit(void);

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
	(void)flags;
	return nvmlInit_v2();
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
	pthread_mutex_lock(&mutex);
	nvmlReturn_t r = nvml.users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
	if (nvml.users)
		nvml.users--;
	pthread_mutex_unlock(&mutex);
	return r;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t r)
{
	switch (r) {
	case NVML_SUCCESS: return "The operation was successful";
	case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
	case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
	case NVML_ERROR_NOT_FOUND: return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
	case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
	default: return "Unknown Error";
	}
}

static nvmlReturn_t copy_text(char *out, unsigned size, const char *text)
{
	if (!nvml.users)
		return NVML_ERROR_UNINITIALIZED;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(text) >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

static nvmlReturn_t check(nvmlDevice_t d, const void *out)
{
	if (!nvml.users)
		return NVML_ERROR_UNINITIALIZED;
	bool mine = d >= nvml.device && d < nvml.device + nvml.ndevices;
	return mine && out ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned size) { return copy_text(out, size, nvml.host.driver); }

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out)
{
	if (!nvml.users)
		return NVML_ERROR_UNINITIALIZED;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = (unsigned)nvml.ndevices;
	return NVML_SUCCESS;
}
ALIAS(nvmlDeviceGetCount_v2) nvmlReturn_t nvmlDeviceGetCount(unsigned *out);

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned i, nvmlDevice_t *out)
{
	if (!nvml.users)
		return NVML_ERROR_UNINITIALIZED;
	if (!out || i >= (unsigned)nvml.ndevices)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = &nvml.device[i];
	return NVML_SUCCESS;
}
ALIAS(nvmlDeviceGetHandleByIndex_v2) nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned i, nvmlDevice_t *out);

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
	CUuuid u;
	if (!nvml.users)
		return NVML_ERROR_UNINITIALIZED;
	if (!out || !uuid || uuid_parse(&u, uuid))
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < nvml.ndevices; i++)
		if (nvml.device[i].gpu == host_find(&nvml.host, &u)) {
			*out = &nvml.device[i];
			return NVML_SUCCESS;
		}
	return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *out, unsigned size)
{
	char text[SIM_UUID_TEXT];
	nvmlReturn_t r = check(d, out);
	if (r)
		return r;
	uuid_format(&nvml.host.gpu[d->gpu].uuid, text);
	return copy_text(out, size, text);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *out, unsigned size)
{
	nvmlReturn_t r = check(d, out);
	return r ? r : copy_text(out, size, nvml.host.model);
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned *out)
{
	nvmlReturn_t r = check(d, out);
	if (!r)
		*out = (unsigned)d->gpu;
	return r;
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t d, unsigned *out)
{
	nvmlReturn_t r = check(d, out);
	if (!r)
		*out = (unsigned)(d - nvml.device);
	return r;
}

/* A CUDA process must not open its own entry on the host: ask libcuda who we are. */
static const char *own_name(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	const char *(*name)(void) = cuda ? (const char *(*)(void))dlsym(cuda, "cudasim_process_name") : NULL;
	if (cuda)
		dlclose(cuda);
	return name ? name() : NULL;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *out)
{
	uint64_t used;
	nvmlReturn_t r = check(d, out);
	if (r)
		return r;
	if (account_list(&nvml.host, d->gpu, own_name(), &used, NULL, 0) < 0)
		return NVML_ERROR_UNKNOWN;
	out->total = nvml.host.gpu[d->gpu].bytes;
	out->used = used;
	out->free = out->total - used;
	return NVML_SUCCESS;
}

/*
 * ROOT/nvml says what this library does not tell, as the real one does in some
 * containers and virtual machines: "hide" lists no process, "unknown" lists them
 * without what they hold, "add M" lists them with so many MiB more, which is what a
 * context takes on a real GPU.
 */
struct view {
	bool hide, unknown;
	uint64_t more;
};

static struct view read_view(void)
{
	char path[SIM_FULLPATH], text[64] = "";
	struct view v = {0};
	unsigned long mib;
	host_path(&nvml.host, path, "nvml");
	if (read_file(path, text, sizeof text) <= 0)
		return v;
	text[strcspn(text, "\n")] = 0;
	if (!text[0])
		return v;
	if (!strcmp(text, "hide"))
		v.hide = true;
	else if (!strcmp(text, "unknown"))
		v.unknown = true;
	else if (sscanf(text, "add %lu", &mib) == 1)
		v.more = (uint64_t)mib << 20;
	else
		sim_log("%s: \"%s\" ignored: want hide, unknown or add MIB", path, text);
	return v;
}

/* *count: in, the room in infos; out, the number of processes. */
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *count, nvmlProcessInfo_t *infos)
{
	enum { MOST = 256 };
	struct account_use use[MOST];
	uint64_t used;
	nvmlReturn_t r = check(d, count);
	if (r)
		return r;
	int n = account_list(&nvml.host, d->gpu, own_name(), &used, use, MOST);
	if (n < 0)
		return NVML_ERROR_UNKNOWN;
	struct view view = read_view();
	if (view.hide)
		n = 0;
	unsigned room = *count;
	*count = (unsigned)n;
	if (room < (unsigned)n)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	if (n && !infos)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < n; i++)
		infos[i] = (nvmlProcessInfo_t){(unsigned)use[i].pid, view.unknown ? ~0ull : use[i].bytes + view.more, 0xffffffffu, 0xffffffffu};
	return NVML_SUCCESS;
}
