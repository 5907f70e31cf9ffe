/* array.c: arrays, as device memory that has no address for the program. */
#include "context.h"
#include "memory.h"

static const unsigned format_bytes[] = {[1] = 1, [2] = 2, [3] = 4, [8] = 1, [9] = 2, [10] = 4, [0x10] = 2, [0x20] = 4};
#define FORMATS (sizeof format_bytes / sizeof *format_bytes)

EXPORT CUresult cuArrayCreate_v2(CUarray *out, const CUarrayDescriptor *d)
{
	CUcontext c;
	if (!out || !d || !d->width || !d->channels || d->channels > 4 || d->format >= FORMATS || !format_bytes[d->format])
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = context_enter(&c);
	if (r)
		return r;
	uint64_t size = d->width * (d->height ? d->height : 1) * d->channels * format_bytes[d->format];
	*out = memory_new(MEMORY_DEVICE, context_device(c), c, size);
	gate_leave();
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFree_v2(CUdeviceptr p);
EXPORT CUresult cuArrayDestroy(CUarray a) { return a ? cuMemFree_v2(a->va) : CUDA_ERROR_INVALID_HANDLE; }

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t n);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t n);

EXPORT CUresult cuMemcpyHtoA_v2(CUarray a, size_t offset, const void *from, size_t n)
{
	return a ? cuMemcpyHtoD_v2(a->va + offset, from, n) : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuMemcpyAtoH_v2(void *to, CUarray a, size_t offset, size_t n)
{
	return a ? cuMemcpyDtoH_v2(to, a->va + offset, n) : CUDA_ERROR_INVALID_HANDLE;
}
