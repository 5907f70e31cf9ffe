/* entry.c: error names, and finding entry points by name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "abi.h"

static const struct {
	CUresult code;
	const char *name, *text;
} errors[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
	{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
	{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
	{CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
	{CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
	{CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
	{CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	{CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
	{CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
	{CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int find_error(CUresult code)
{
	for (int i = 0; i < (int)(sizeof errors / sizeof *errors); i++)
		if (errors[i].code == code)
			return i;
	return -1;
}

EXPORT CUresult cuGetErrorName(CUresult code, const char **out)
{
	int i = find_error(code);
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = i < 0 ? NULL : errors[i].name;
	return i < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult code, const char **out)
{
	int i = find_error(code);
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = i < 0 ? NULL : errors[i].text;
	return i < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* The newest variant of a name that VERSION knows. */
static void *lookup(void *library, const char *symbol, int version)
{
	static const struct { const char *suffix; int since; } variant[] = {{"_v4", 13000}, {"_v2", 3020}, {"", 0}};
	for (size_t i = 0; i < sizeof variant / sizeof *variant; i++) {
		char name[128];
		snprintf(name, sizeof name, "%s%s", symbol, variant[i].suffix);
		void *p = version >= variant[i].since ? dlsym(library, name) : NULL;
		if (p)
			return p;
	}
	return NULL;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags, int *status)
{
	Dl_info info;
	(void)flags;
	if (!symbol || !out)
		return CUDA_ERROR_INVALID_VALUE;
	void *library = dladdr((void *)errors, &info) ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
	*out = library ? lookup(library, symbol, version) : NULL;
	if (library)
		dlclose(library);
	if (status)
		*status = *out ? 0 : 1; /* SUCCESS, SYMBOL_NOT_FOUND */
	/* The real one returns success with a status; without one, the error. */
	return *out || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **out, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(symbol, out, version, flags, NULL);
}
