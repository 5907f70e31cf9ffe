/*
 * The calls of the driver that the guest serves or makes. CALL(result, name, parameters...)
 *
 * served, and why:
 *   cuMemCreate                    512 MiB and more are made of parts (parts.c)
 *   cuMemMap, cuMemUnmap, cuMemRelease, cuMemRetainAllocationHandle,
 *   cuMemGetAllocationPropertiesFromHandle
 *                                  all parts under one handle
 *   cuMemExportToShareableHandle, cuMulticastBindMem, cuMulticastBindAddr, cuMemMapArrayAsync
 *                                  what takes one allocation gets one: the memory is made whole
 *   cuMemGetAddressRange, cuPointerGetAttribute, cuPointerGetAttributes
 *                                  the whole mapping, not that of a part
 *   cuGetProcAddress               as dlsym: the guest's functions in place of the driver's
 */
#ifndef SERVED
#define SERVED CALL
#endif
SERVED(CUresult, cuMemCreate, CUhandle *handle, size_t size, const struct properties *wanted, unsigned long long flags)
SERVED(CUresult, cuMemRelease, CUhandle handle)
SERVED(CUresult, cuMemMap, CUdeviceptr at, size_t size, size_t offset, CUhandle handle, unsigned long long flags)
SERVED(CUresult, cuMemUnmap, CUdeviceptr at, size_t size)
SERVED(CUresult, cuMemRetainAllocationHandle, CUhandle *handle, void *at)
SERVED(CUresult, cuMemGetAllocationPropertiesFromHandle, struct properties *its, CUhandle handle)
SERVED(CUresult, cuMemExportToShareableHandle, void *out, CUhandle handle, int type, unsigned long long flags)
SERVED(CUresult, cuMemMapArrayAsync, struct array_mapping *list, unsigned count, void *stream)
SERVED(CUresult, cuMemMapArrayAsync_ptsz, struct array_mapping *list, unsigned count, void *stream)
SERVED(CUresult, cuMulticastBindMem, CUhandle group, size_t group_offset, CUhandle handle, size_t offset, size_t size, unsigned long long flags)
SERVED(CUresult, cuMulticastBindAddr, CUhandle group, size_t group_offset, CUdeviceptr at, size_t size, unsigned long long flags)
SERVED(CUresult, cuMemGetAddressRange_v2, CUdeviceptr *base, size_t *size, CUdeviceptr at)
SERVED(CUresult, cuPointerGetAttribute, void *out, int attribute, CUdeviceptr at)
SERVED(CUresult, cuPointerGetAttributes, unsigned count, int *attributes, void **out, CUdeviceptr at)
SERVED(CUresult, cuGetProcAddress, const char *name, void **out, int version, uint64_t flags)
SERVED(CUresult, cuGetProcAddress_v2, const char *name, void **out, int version, uint64_t flags, int *status)
CALL(CUresult, cuDeviceGetCount, int *out)
CALL(CUresult, cuDeviceTotalMem_v2, size_t *out, CUdevice device)
CALL(CUresult, cuDevicePrimaryCtxGetState, CUdevice device, unsigned *flags, int *active)
CALL(CUresult, cuDevicePrimaryCtxRetain, CUcontext *out, CUdevice device)
CALL(CUresult, cuDevicePrimaryCtxRelease_v2, CUdevice device)
CALL(CUresult, cuCtxGetCurrent, CUcontext *out)
CALL(CUresult, cuCtxPushCurrent_v2, CUcontext context)
CALL(CUresult, cuCtxPopCurrent_v2, CUcontext *out)
CALL(CUresult, cuCtxSynchronize, void)
CALL(CUresult, cuMemAddressReserve, CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr at, unsigned long long flags)
CALL(CUresult, cuMemAddressFree, CUdeviceptr at, size_t size)
CALL(CUresult, cuMemSetAccess, CUdeviceptr at, size_t size, const struct access *who, size_t count)
CALL(CUresult, cuMemGetAccess, unsigned long long *flags, const struct location *who, CUdeviceptr at)
CALL(CUresult, cuMemcpyDtoD_v2, CUdeviceptr to, CUdeviceptr from, size_t size)
#undef SERVED
