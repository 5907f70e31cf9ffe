/*
 * The calls of the driver that the guest serves or makes. CALL(result, name, parameters...)
 *
 * served, and why:
 *   cuInit                         the threads of the guest begin beside those of the driver (agent.c)
 *   cuMemCreate                    512 MiB and more are made of parts (parts.c)
 *   cuMemMap, cuMemRelease, cuMemRetainAllocationHandle,
 *   cuMemGetAllocationPropertiesFromHandle
 *                                  all parts under one handle
 *   cuMemExportToShareableHandle, cuMemImportFromShareableHandle
 *                                  what processes share is known, and can be taken down (ipc.c)
 *   cuDeviceGetAttribute           devices have neither multicast nor fabric handles: neither could be put up again (ipc.c)
 *   cuMemExportToShareableHandle, cuMulticastBindMem, cuMulticastBindAddr, cuMemMapArrayAsync
 *                                  what takes one allocation gets one: the memory is made whole
 *   cuMemGetAddressRange, cuPointerGetAttribute, cuPointerGetAttributes
 *                                  the whole mapping, not that of a part
 *   cuMemAlloc, cuMemFree, cuMemFreeAsync
 *                                  512 MiB and more are made of parts (alloc.c)
 *   cuCtxDestroy, cuCtxDetach, cuDevicePrimaryCtxReset, cuDevicePrimaryCtxRelease
 *                                  a context that ends takes its memory along
 *   cuIpcGetMemHandle, cuIpcOpenMemHandle, cuIpcCloseMemHandle
 *                                  parts have no such handles of the driver's (ipc.c)
 *   cuMemSetAccess, cuMemUnmap     not of what cuMemAlloc has made
 *   cuPointerSetAttribute, and the copies and fills of memops.h
 *                                  SYNC_MEMOPS, which parts do not have (memops.c)
 *   cuLaunchKernel, cuLaunchKernelEx, cuGraphLaunch, cuLaunchHostFunc
 *                                  held back by the gate in programs that are linked with the driver, too (gate.c)
 *   cuGetProcAddress               as dlsym: the guest's functions in place of the driver's
 */
#ifndef SERVED
#define SERVED CALL
#endif
#ifndef HELD_BACK
#define HELD_BACK CALL
#endif
SERVED(CUresult, cuInit, unsigned flags)
SERVED(CUresult, cuDeviceGetAttribute, int *out, int attribute, CUdevice device)
SERVED(CUresult, cuMemCreate, CUhandle *handle, size_t size, const struct properties *wanted, unsigned long long flags)
SERVED(CUresult, cuMemRelease, CUhandle handle)
SERVED(CUresult, cuMemMap, CUdeviceptr at, size_t size, size_t offset, CUhandle handle, unsigned long long flags)
SERVED(CUresult, cuMemUnmap, CUdeviceptr at, size_t size)
SERVED(CUresult, cuMemRetainAllocationHandle, CUhandle *handle, void *at)
SERVED(CUresult, cuMemGetAllocationPropertiesFromHandle, struct properties *its, CUhandle handle)
SERVED(CUresult, cuMemExportToShareableHandle, void *out, CUhandle handle, int type, unsigned long long flags)
SERVED(CUresult, cuMemImportFromShareableHandle, CUhandle *out, void *descriptor, int type)
SERVED(CUresult, cuMemMapArrayAsync, struct array_mapping *list, unsigned count, void *stream)
SERVED(CUresult, cuMemMapArrayAsync_ptsz, struct array_mapping *list, unsigned count, void *stream)
SERVED(CUresult, cuMulticastBindMem, CUhandle group, size_t group_offset, CUhandle handle, size_t offset, size_t size, unsigned long long flags)
SERVED(CUresult, cuMulticastBindAddr, CUhandle group, size_t group_offset, CUdeviceptr at, size_t size, unsigned long long flags)
SERVED(CUresult, cuMemGetAddressRange_v2, CUdeviceptr *base, size_t *size, CUdeviceptr at)
SERVED(CUresult, cuPointerGetAttribute, void *out, int attribute, CUdeviceptr at)
SERVED(CUresult, cuPointerGetAttributes, unsigned count, int *attributes, void **out, CUdeviceptr at)
SERVED(CUresult, cuMemAlloc_v2, CUdeviceptr *out, size_t size)
SERVED(CUresult, cuMemFree_v2, CUdeviceptr at)
SERVED(CUresult, cuMemFreeAsync, CUdeviceptr at, void *stream)
SERVED(CUresult, cuMemFreeAsync_ptsz, CUdeviceptr at, void *stream)
SERVED(CUresult, cuCtxDetach, CUcontext whose)
SERVED(CUresult, cuCtxDestroy, CUcontext whose)
SERVED(CUresult, cuCtxDestroy_v2, CUcontext whose)
SERVED(CUresult, cuDevicePrimaryCtxRelease, CUdevice whose)
SERVED(CUresult, cuDevicePrimaryCtxRelease_v2, CUdevice whose)
SERVED(CUresult, cuDevicePrimaryCtxReset, CUdevice whose)
SERVED(CUresult, cuDevicePrimaryCtxReset_v2, CUdevice whose)
SERVED(CUresult, cuIpcGetMemHandle, struct ipc *out, CUdeviceptr at)
SERVED(CUresult, cuIpcOpenMemHandle, CUdeviceptr *out, struct ipc handle, unsigned flags)
SERVED(CUresult, cuIpcOpenMemHandle_v2, CUdeviceptr *out, struct ipc handle, unsigned flags)
SERVED(CUresult, cuIpcCloseMemHandle, CUdeviceptr at)
SERVED(CUresult, cuPointerSetAttribute, const void *value, int attribute, CUdeviceptr at)
SERVED(CUresult, cuMemSetAccess, CUdeviceptr at, size_t size, const struct access *who, size_t count)
#define UNPACKED(...) __VA_ARGS__
#define MEMOP(name, parameters, arguments, to, from)                                                                             \
	SERVED(CUresult, name, UNPACKED parameters)                                                                    \
	SERVED(CUresult, name##_ptds, UNPACKED parameters)
#include "memops.h"
#define LAUNCH(name, ...)                                                                                              \
	HELD_BACK(CUresult, name, __VA_ARGS__)                                                                         \
	HELD_BACK(CUresult, name##_ptsz, __VA_ARGS__)
LAUNCH(cuLaunchKernel, void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **parameters, void **extra)
LAUNCH(cuLaunchKernelEx, const void *config, void *f, void **parameters, void **extra)
LAUNCH(cuGraphLaunch, void *graph, void *stream)
LAUNCH(cuLaunchHostFunc, void *stream, void (*f)(void *), void *argument)
#undef LAUNCH
#undef UNPACKED
SERVED(CUresult, cuGetProcAddress, const char *name, void **out, int version, uint64_t flags)
SERVED(CUresult, cuGetProcAddress_v2, const char *name, void **out, int version, uint64_t flags, int *status)
CALL(CUresult, cuCtxSetCurrent, CUcontext context)
CALL(CUresult, cuMemHostAlloc, void **out, size_t size, unsigned flags)
CALL(CUresult, cuMemFreeHost, void *at)
CALL(CUresult, cuMemcpyDtoHAsync_v2, void *to, CUdeviceptr from, size_t size, void *stream)
CALL(CUresult, cuMemcpyHtoDAsync_v2, CUdeviceptr to, const void *from, size_t size, void *stream)
CALL(CUresult, cuMemsetD8Async, CUdeviceptr at, unsigned char value, size_t size, void *stream)
CALL(CUresult, cuMemcpyDtoDAsync_v2, CUdeviceptr to, CUdeviceptr from, size_t size, void *stream)
CALL(CUresult, cuModuleLoadData, void **module, const void *image)
CALL(CUresult, cuModuleGetFunction, void **function, void *module, const char *name)
CALL(CUresult, cuStreamCreate, void **out, unsigned flags)
CALL(CUresult, cuStreamDestroy_v2, void *stream)
CALL(CUresult, cuThreadExchangeStreamCaptureMode, int *mode)
CALL(CUresult, cuDeviceGetCount, int *out)
CALL(CUresult, cuDeviceGetUuid_v2, unsigned char *uuid, CUdevice device)
CALL(CUresult, cuDeviceTotalMem_v2, size_t *out, CUdevice device)
CALL(CUresult, cuDevicePrimaryCtxGetState, CUdevice device, unsigned *flags, int *active)
CALL(CUresult, cuDevicePrimaryCtxRetain, CUcontext *out, CUdevice device)
CALL(CUresult, cuDeviceCanAccessPeer, int *out, CUdevice device, CUdevice owner)
CALL(CUresult, cuCtxGetDevice, CUdevice *out)
CALL(CUresult, cuCtxGetCurrent, CUcontext *out)
CALL(CUresult, cuCtxPushCurrent_v2, CUcontext context)
CALL(CUresult, cuCtxPopCurrent_v2, CUcontext *out)
CALL(CUresult, cuCtxSynchronize, void)
CALL(CUresult, cuMemAddressReserve, CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr at, unsigned long long flags)
CALL(CUresult, cuMemAddressFree, CUdeviceptr at, size_t size)
CALL(CUresult, cuMemGetAccess, unsigned long long *flags, const struct location *who, CUdeviceptr at)
CALL(CUresult, cuStreamSynchronize, void *stream)
CALL(CUresult, cuStreamIsCapturing, void *stream, int *out)
#undef SERVED
#undef HELD_BACK
