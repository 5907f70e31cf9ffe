/*
 * The part of the CUDA driver API that the workload calls, with prototypes of
 * our own: building needs no CUDA toolkit, and the library is found at run time.
 */
#ifndef CUDAWORK_DRIVER_H
#define CUDAWORK_DRIVER_H

#include <stddef.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct { unsigned char bytes[16]; } CUuuid;
typedef struct { char reserved[64]; } CUipcMemHandle;
typedef struct { char reserved[64]; } CUipcEventHandle;
typedef unsigned long long CUmemHandle; /* CUmemGenericAllocationHandle */
typedef struct CUmemPool_st *CUmempool;
typedef struct {
	int type, id;
} CUmemLocation;
typedef struct {
	int type;
	int handle_types; /* that it can be exported as */
	CUmemLocation location;
	void *windows;
	unsigned char compression, rdma;
	unsigned short usage;
	unsigned char reserved[4];
} CUmemProp; /* CUmemAllocationProp */
typedef struct {
	CUmemLocation location;
	int flags;
} CUmemAccess; /* CUmemAccessDesc */
typedef struct {
	int type;
	int handle_types;
	CUmemLocation location;
	void *windows;
	size_t most;
	unsigned short usage;
	unsigned char reserved[54];
} CUmempoolProps;
_Static_assert(sizeof(CUmemProp) == 32 && sizeof(CUmemAccess) == 12 && sizeof(CUmempoolProps) == 88, "as cuda.h has them");

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_NOT_READY = 600,
};

enum {
	CU_STREAM_NON_BLOCKING = 1,
	CU_EVENT_DISABLE_TIMING = 2,
	CU_MEM_ATTACH_GLOBAL = 1,
	CU_MEMHOSTREGISTER_DEVICEMAP = 2,
	CU_EVENT_INTERPROCESS = 4,
	CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,
	CU_MEM_ALLOCATION_TYPE_PINNED = 1,
	CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
	CU_MEM_LOCATION_TYPE_DEVICE = 1,
	CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
	CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
	CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
};

/*
 * field, exported name, whether the workload can start without it, parameters.
 * The suffix _v2 is the ABI that cuda.h has given to these names since CUDA 4.
 */
#define DRIVER_CALLS(X) \
	X(Init, "cuInit", 0, (unsigned flags)) \
	X(GetErrorName, "cuGetErrorName", 1, (CUresult r, const char **name)) \
	X(DeviceGetCount, "cuDeviceGetCount", 0, (int *count)) \
	X(DeviceGet, "cuDeviceGet", 0, (CUdevice *dev, int ordinal)) \
	X(DeviceGetUuid, "cuDeviceGetUuid_v2", 0, (CUuuid *uuid, CUdevice dev)) \
	X(DeviceGetPCIBusId, "cuDeviceGetPCIBusId", 0, (char *id, int len, CUdevice dev)) \
	X(PrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 0, (CUcontext *ctx, CUdevice dev)) \
	X(PrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", 0, (CUdevice dev)) \
	X(CtxSetCurrent, "cuCtxSetCurrent", 0, (CUcontext ctx)) \
	X(CtxSynchronize, "cuCtxSynchronize", 0, (void)) \
	X(ModuleLoadData, "cuModuleLoadData", 0, (CUmodule *mod, const void *image)) \
	X(ModuleGetFunction, "cuModuleGetFunction", 0, (CUfunction *fn, CUmodule mod, const char *name)) \
	X(LaunchKernel, "cuLaunchKernel", 0, (CUfunction fn, \
		unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
		unsigned shared, CUstream stream, void **params, void **extra)) \
	X(MemAlloc, "cuMemAlloc_v2", 0, (CUdeviceptr *ptr, size_t bytes)) \
	X(MemFree, "cuMemFree_v2", 0, (CUdeviceptr ptr)) \
	X(MemsetD8, "cuMemsetD8_v2", 0, (CUdeviceptr ptr, unsigned char value, size_t bytes)) \
	X(MemcpyDtoH, "cuMemcpyDtoH_v2", 0, (void *dst, CUdeviceptr src, size_t bytes)) \
	X(MemcpyHtoD, "cuMemcpyHtoD_v2", 1, (CUdeviceptr dst, const void *src, size_t bytes)) \
	X(MemAllocManaged, "cuMemAllocManaged", 1, (CUdeviceptr *ptr, size_t bytes, unsigned flags)) \
	X(MemAllocHost, "cuMemAllocHost_v2", 1, (void **ptr, size_t bytes)) \
	X(MemFreeHost, "cuMemFreeHost", 1, (void *ptr)) \
	X(MemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", 1, (CUdeviceptr *ptr, void *host, unsigned flags)) \
	X(MemHostRegister, "cuMemHostRegister_v2", 1, (void *ptr, size_t bytes, unsigned flags)) \
	X(MemHostUnregister, "cuMemHostUnregister", 1, (void *ptr)) \
	X(MemAddressReserve, "cuMemAddressReserve", 1, (CUdeviceptr *ptr, size_t bytes, size_t alignment, CUdeviceptr at, unsigned long long flags)) \
	X(MemAddressFree, "cuMemAddressFree", 1, (CUdeviceptr ptr, size_t bytes)) \
	X(MemCreate, "cuMemCreate", 1, (CUmemHandle *handle, size_t bytes, const CUmemProp *prop, unsigned long long flags)) \
	X(MemRelease, "cuMemRelease", 1, (CUmemHandle handle)) \
	X(MemMap, "cuMemMap", 1, (CUdeviceptr ptr, size_t bytes, size_t offset, CUmemHandle handle, unsigned long long flags)) \
	X(MemUnmap, "cuMemUnmap", 1, (CUdeviceptr ptr, size_t bytes)) \
	X(MemSetAccess, "cuMemSetAccess", 1, (CUdeviceptr ptr, size_t bytes, const CUmemAccess *access, size_t n)) \
	X(MemExport, "cuMemExportToShareableHandle", 1, (void *out, CUmemHandle handle, int type, unsigned long long flags)) \
	X(MemImport, "cuMemImportFromShareableHandle", 1, (CUmemHandle *handle, void *shareable, int type)) \
	X(MempoolCreate, "cuMemPoolCreate", 1, (CUmempool *pool, const CUmempoolProps *props)) \
	X(MempoolDestroy, "cuMemPoolDestroy", 1, (CUmempool pool)) \
	X(MempoolSetAccess, "cuMemPoolSetAccess", 1, (CUmempool pool, const CUmemAccess *access, size_t n)) \
	X(MemAllocFromPool, "cuMemAllocFromPoolAsync", 1, (CUdeviceptr *ptr, size_t bytes, CUmempool pool, CUstream stream)) \
	X(MemFreeAsync, "cuMemFreeAsync", 1, (CUdeviceptr ptr, CUstream stream)) \
	X(DeviceCanAccessPeer, "cuDeviceCanAccessPeer", 1, (int *can, CUdevice dev, CUdevice peer)) \
	X(CtxEnablePeerAccess, "cuCtxEnablePeerAccess", 1, (CUcontext peer, unsigned flags)) \
	X(CtxDisablePeerAccess, "cuCtxDisablePeerAccess", 1, (CUcontext peer)) \
	X(StreamCreate, "cuStreamCreate", 0, (CUstream *stream, unsigned flags)) \
	X(StreamSynchronize, "cuStreamSynchronize", 0, (CUstream stream)) \
	X(StreamQuery, "cuStreamQuery", 1, (CUstream stream)) \
	X(EventCreate, "cuEventCreate", 1, (CUevent *event, unsigned flags)) \
	X(EventRecord, "cuEventRecord", 1, (CUevent event, CUstream stream)) \
	X(EventSynchronize, "cuEventSynchronize", 1, (CUevent event)) \
	X(EventQuery, "cuEventQuery", 1, (CUevent event)) \
	X(IpcGetMemHandle, "cuIpcGetMemHandle", 1, (CUipcMemHandle *handle, CUdeviceptr ptr)) \
	X(IpcGetEventHandle, "cuIpcGetEventHandle", 1, (CUipcEventHandle *handle, CUevent event)) \
	X(IpcOpenMemHandle, "cuIpcOpenMemHandle_v2", 1, (CUdeviceptr *ptr, CUipcMemHandle handle, unsigned flags)) \
	X(IpcCloseMemHandle, "cuIpcCloseMemHandle", 1, (CUdeviceptr ptr))

#define DRIVER_FIELD(field, name, optional, params) CUresult (*field) params;
struct driver {
	DRIVER_CALLS(DRIVER_FIELD)
};
#undef DRIVER_FIELD

/* Written once by driver_open, before any thread exists; only read afterwards. */
extern struct driver cu;

/* Opens libcuda.so.1 and calls cuInit. Ends the process when either fails. */
void driver_open(void);

/* Ends the process with exit status 2 unless r is CUDA_SUCCESS; the rest says what was tried. */
void must(CUresult r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Ends the process unless the optional call exists: need(cu.EventQuery, "cuEventQuery", "--spin event-query"). */
#define need(call, name, option) need_call((call) != NULL, name, option)
void need_call(int present, const char *name, const char *option);

#endif
