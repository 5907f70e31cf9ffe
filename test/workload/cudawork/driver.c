#include "driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "report.h"

struct driver cu;

static const struct {
	const char *name;
	size_t offset; /* of the pointer in struct driver */
	int optional;
} calls[] = {
#define DRIVER_ROW(field, name, optional, params) {name, offsetof(struct driver, field), optional},
	DRIVER_CALLS(DRIVER_ROW)
#undef DRIVER_ROW
};

void driver_open(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!lib)
		die(EXIT_CUDA, "no CUDA driver: %s (set LD_LIBRARY_PATH, or run under cudasim-run)", dlerror());
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *sym = dlsym(lib, calls[i].name);

		if (!sym && !calls[i].optional)
			die(EXIT_CUDA, "libcuda.so.1 exports no %s: the driver is too old or incomplete", calls[i].name);
		memcpy((char *)&cu + calls[i].offset, &sym, sizeof(sym));
	}
	must(cu.Init(0), "cuInit");
}

void must(CUresult r, const char *fmt, ...)
{
	char what[256];
	const char *name = NULL;
	va_list ap;

	if (r == CUDA_SUCCESS)
		return;
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	if (!cu.GetErrorName || cu.GetErrorName(r, &name) != CUDA_SUCCESS || !name)
		name = "CUDA error";
	die(EXIT_CUDA, "%s: %s (%d)", what, name, r);
}

void need_call(int present, const char *name, const char *option)
{
	if (!present)
		die(EXIT_CUDA, "%s: libcuda.so.1 exports no %s", option, name);
}
