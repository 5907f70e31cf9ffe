/*
 * abi.h: the part of NVIDIA's driver ABI that the simulator implements.
 * Written from the documented types and numbers; no CUDA header is needed.
 */
#ifndef CUDASIM_ABI_H
#define CUDASIM_ABI_H

#include <stddef.h>
#include <stdint.h>

#include "drivers.h"

#define EXPORT __attribute__((visibility("default")))

/* The real library has most entries under two names; both reach one body. */
#define ALIAS(target) EXPORT __attribute__((alias(#target)))

typedef int CUresult;
enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_DEINITIALIZED = 4,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_IMAGE = 200,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_OPERATING_SYSTEM = 304,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_ILLEGAL_STATE = 401,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
	CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
	CUDA_ERROR_ILLEGAL_ADDRESS = 700,
	CUDA_ERROR_LAUNCH_FAILED = 719,
	CUDA_ERROR_NOT_PERMITTED = 800,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_UNKNOWN = 999,
};

typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct { unsigned char bytes[16]; } CUuuid;
typedef struct { char reserved[64]; } CUipcMemHandle;
typedef struct { char reserved[64]; } CUipcEventHandle;
typedef struct allocation *CUarray;
typedef struct {
	size_t width, height;
	unsigned format, channels;
} CUarrayDescriptor;
typedef struct { int type; unsigned char rest[140]; } CUdevResource;
typedef uint64_t CUmemHandle; /* CUmemGenericAllocationHandle */
typedef struct sim_pool *CUmempool;
typedef struct { int type, id; } CUmemLocation;
typedef struct {
	int type;
	int handleTypes;
	CUmemLocation location;
	void *windows;
	unsigned char flags[8]; /* compression, gpuDirectRDMACapable, usage */
} CUmemAllocationProp;
typedef struct {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;
typedef struct {
	int type;
	int handleTypes;
	CUmemLocation location;
	void *windows;
	size_t most;
	unsigned char reserved[56];
} CUmemPoolProps;
_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(CUmemAccessDesc) == 12, "CUmemAccessDesc");
_Static_assert(sizeof(CUmemPoolProps) == 88, "CUmemPoolProps");
enum {
	CU_MEM_ALLOCATION_TYPE_PINNED = 1,
	CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
	CU_MEM_LOCATION_TYPE_DEVICE = 1,
	CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
	CU_POINTER_ATTRIBUTE_CONTEXT = 1,
	CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
	CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18,
	CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19,
};
typedef struct sim_context *CUcontext;
typedef struct sim_stream *CUstream;
typedef struct sim_event *CUevent;
typedef struct sim_module *CUmodule;
typedef struct sim_function *CUfunction;

/* Checkpoint API: every args struct is 64 bytes on LP64. */
typedef enum {
	CU_PROCESS_STATE_RUNNING = 0,
	CU_PROCESS_STATE_LOCKED = 1,
	CU_PROCESS_STATE_CHECKPOINTED = 2,
	CU_PROCESS_STATE_FAILED = 3,
} CUprocessState;

typedef struct {
	uint32_t timeoutMs; /* 0 waits for ever */
	uint8_t reserved[60];
} CUcheckpointLockArgs;

typedef struct { uint8_t reserved[64]; } CUcheckpointCheckpointArgs;
typedef struct { uint8_t reserved[64]; } CUcheckpointUnlockArgs;

typedef struct {
	CUuuid oldUuid;
	CUuuid newUuid;
} CUcheckpointGpuPair;

typedef struct {
	CUcheckpointGpuPair *gpuPairs;
	uint32_t gpuPairsCount;
	uint8_t reserved[64 - sizeof(void *) - sizeof(uint32_t)];
} CUcheckpointRestoreArgs;

_Static_assert(sizeof(CUcheckpointLockArgs) == 64, "LockArgs");
_Static_assert(sizeof(CUcheckpointRestoreArgs) == 64, "RestoreArgs");
_Static_assert(sizeof(CUcheckpointGpuPair) == 32, "GpuPair");

/* NVML */
typedef int nvmlReturn_t;
enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_UNKNOWN = 999,
};
typedef struct sim_nvml_device *nvmlDevice_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
	unsigned int gpuInstanceId;
	unsigned int computeInstanceId;
} nvmlProcessInfo_t;
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "nvmlProcessInfo_t");

#endif
