/* linked.c: what a program sees that is linked with the driver, or (as a library) another's plugin. It takes the size in MiB. */
#include <stdio.h>
#include <stdlib.h>

#include "../../../internal/kit/guest/lib/cuda.h"

CUresult cuInit(unsigned), cuDevicePrimaryCtxRetain(CUcontext *, CUdevice), cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t), cuMemFree_v2(CUdeviceptr), cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);

static void row(const char *what, CUresult r) { printf("%s: %d\n", what, r), fflush(stdout); }

int plugin(size_t size)
{
	CUcontext context;
	CUdeviceptr at;

	row("cuInit", cuInit(0));
	row("context", cuDevicePrimaryCtxRetain(&context, 0));
	row("current", cuCtxSetCurrent(context));
	row("alloc", cuMemAlloc_v2(&at, size));
	row("write", cuMemcpyHtoD_v2(at, &size, sizeof size));
	row("free", cuMemFree_v2(at));
	row("free again", cuMemFree_v2(at));
	row("alloc an odd size", cuMemAlloc_v2(&at, size + 1));
	return 0;
}

int main(int argc, char **argv) { return argc > 1 ? plugin(strtoull(argv[1], NULL, 0) << 20) : 1; }
