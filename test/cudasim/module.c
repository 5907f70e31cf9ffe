/* module.c: PTX modules by the names of their entries, and the kernels that are known. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "memory.h"
#include "stream.h"

enum kernel { CW_SPIN, CW_FILL, CW_STEP, CW_COLLECTIVE, CUCRIU_HASH, KERNELS };
static const char *const kernel_names[KERNELS] = {"cw_spin", "cw_fill", "cw_step", "cw_collective", "cucriu_hash"};

struct sim_function {
	enum kernel kernel;
};
struct sim_module {
	struct sim_module *next;
	struct sim_function function[KERNELS];
	char *text;
};

static struct sim_module *modules;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* Does the PTX declare `.entry NAME(`? */
static bool has_entry(const char *text, const char *name)
{
	size_t n = strlen(name);
	for (const char *p = text; (p = strstr(p, ".entry"));) {
		p += strlen(".entry");
		p += strspn(p, " \t\r\n");
		if (!strncmp(p, name, n) && strchr(" \t\r\n(", p[n]))
			return true;
	}
	return false;
}

EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	CUcontext c;
	if (!out || !image)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = context_enter(&c);
	if (r)
		return r;
	static const unsigned char elf[] = {0x7f, 'E', 'L', 'F'};
	static const unsigned char fatbin[] = {0x50, 0xed, 0x55, 0xba};
	struct sim_module *m = NULL;
	if (!memcmp(image, elf, 4) || !memcmp(image, fatbin, 4) || !strstr(image, ".version") || !strstr(image, ".target")) {
		r = CUDA_ERROR_INVALID_IMAGE; /* only PTX */
	} else if (!(m = calloc(1, sizeof *m)) || !(m->text = strdup(image))) {
		free(m);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		for (int k = 0; k < KERNELS; k++)
			m->function[k].kernel = (enum kernel)k;
		pthread_mutex_lock(&mutex);
		m->next = modules;
		modules = m;
		pthread_mutex_unlock(&mutex);
		*out = m;
	}
	gate_leave();
	return r;
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned n, int *options, void **values)
{
	(void)n, (void)options, (void)values;
	return cuModuleLoadData(out, image);
}

static struct sim_module **find_module(CUmodule handle)
{
	struct sim_module **at = &modules;
	while (*at && *at != handle)
		at = &(*at)->next;
	return at;
}

EXPORT CUresult cuModuleUnload(CUmodule handle)
{
	CUcontext c;
	CUresult r = context_enter(&c);
	if (r)
		return r;
	pthread_mutex_lock(&mutex);
	struct sim_module **at = find_module(handle), *m = *at;
	if (m)
		*at = m->next;
	pthread_mutex_unlock(&mutex);
	if (m)
		free(m->text);
	free(m);
	gate_leave();
	return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name)
{
	CUcontext c;
	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = context_enter(&c);
	if (r)
		return r;
	pthread_mutex_lock(&mutex);
	struct sim_module *m = *find_module(handle);
	pthread_mutex_unlock(&mutex);
	if (!m) {
		r = CUDA_ERROR_INVALID_HANDLE;
	} else {
		int k = 0;
		while (k < KERNELS && strcmp(name, kernel_names[k]))
			k++;
		if (!has_entry(m->text, name)) {
			r = CUDA_ERROR_NOT_FOUND;
		} else if (k == KERNELS) {
			sim_log("kernel %s is in the module, but the simulator does not know it", name);
			r = CUDA_ERROR_NOT_FOUND;
		} else {
			*out = &m->function[k];
		}
	}
	gate_leave();
	return r;
}

static uint64_t param64(void **params, int i)
{
	uint64_t v;
	memcpy(&v, params[i], sizeof v);
	return v;
}

static uint32_t param32(void **params, int i)
{
	uint32_t v;
	memcpy(&v, params[i], sizeof v);
	return v;
}

#define WORDS (1u << 18) /* per piece: 1 MiB */

static void fill_words(uint32_t *w, size_t n, uint32_t first)
{
	for (size_t i = 0; i < n; i++)
		w[i] = first + (uint32_t)i;
}

static void step_words(uint32_t *w, size_t n)
{
	for (size_t i = 0; i < n; i++)
		w[i]++;
}

static CUresult over_words(CUcontext c, enum kernel kernel, CUdeviceptr p, uint64_t nwords, uint32_t base)
{
	struct region region;
	if (!nwords)
		return CUDA_SUCCESS;
	CUresult r = nwords > UINT64_MAX / 4 ? CUDA_ERROR_ILLEGAL_ADDRESS : memory_reach(c, p, nwords * 4, true);
	if (r)
		return r;
	if (region_open(&region, p, nwords * 4))
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	uint32_t *buf = malloc(WORDS * 4);
	if (!buf)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	for (uint64_t at = 0; at < nwords && !r; at += WORDS) {
		size_t n = nwords - at < WORDS ? (size_t)(nwords - at) : WORDS;
		if (kernel == CW_FILL) {
			fill_words(buf, n, base + (uint32_t)at);
		} else {
			r = region_read(&region, at * 4, buf, n * 4);
			step_words(buf, n);
		}
		if (!r)
			r = region_write(&region, at * 4, buf, n * 4);
	}
	free(buf);
	region_close(&region);
	return r;
}

/* Not the hash of a GPU, but as good a one, and that of nothing but zeros is 0, too: like FNV-1a over words, with two factors. */
static CUresult hash_slices(CUcontext c, CUdeviceptr p, uint64_t size, uint64_t slice, uint64_t *out, unsigned count, const uint64_t *keys[2])
{
	struct region region;
	CUresult r = memory_reach(c, p, size, true);
	if (r)
		return r;
	if (region_open(&region, p, size))
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	uint64_t *buf = malloc(slice);
	if (!buf)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned i = 0; i < count && !r; i++) {
		uint64_t n = size - i * slice < slice ? size - i * slice : slice;
		if ((r = region_read(&region, i * slice, buf, n)))
			break;
		for (int k = 0; k < 2; k++) {
			uint64_t h = 0;
			for (uint64_t w = 0; w < n / 8; w++)
				h = (h ^ buf[w]) * (1099511628211ull + 2 * keys[k][0]), h ^= h >> 29;
			out[2 * i + (unsigned)k] = h;
		}
	}
	free(buf);
	region_close(&region);
	return r;
}

EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
			       unsigned shared, CUstream stream, void **params, void **extra)
{
	CUcontext c;
	(void)shared;
	CUresult r = context_enter(&c);
	if (r)
		return r;
	if (!f || !gx || !gy || !gz || !bx || !by || !bz || (uint64_t)bx * by * bz > 1024 || !params || extra) {
		r = f ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
	} else if (!stream_valid(stream)) {
		r = CUDA_ERROR_INVALID_HANDLE;
	} else {
		switch (f->kernel) {
		case CW_SPIN:
			r = stream_spin(stream, param64(params, 0));
			break;
		case CW_FILL:
			r = over_words(c, CW_FILL, param64(params, 0), param64(params, 1), param32(params, 2) * 2654435761u);
			break;
		case CW_STEP:
			r = over_words(c, CW_STEP, param64(params, 0), param64(params, 1), 0);
			break;
		case CW_COLLECTIVE:
			r = stream_collective(stream, param64(params, 0), param32(params, 1), param32(params, 2), param64(params, 3));
			break;
		case CUCRIU_HASH:
			r = hash_slices(c, param64(params, 0), param64(params, 1), param64(params, 2), (uint64_t *)(uintptr_t)param64(params, 3), gx,
					(const uint64_t *[]){params[4], params[5]});
			break;
		default:
			r = CUDA_ERROR_INVALID_HANDLE;
		}
	}
	gate_leave();
	return r;
}
