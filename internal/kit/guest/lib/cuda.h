/* The few types of the CUDA driver's API that the guest needs. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUhandle; /* CUmemGenericAllocationHandle */
typedef void *CUcontext;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_OPERATING_SYSTEM = 304,
	CUDA_ERROR_NOT_SUPPORTED = 801,
};

enum { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1, CU_MEM_CREATE_USAGE_HW_DECOMPRESS = 2 };
enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1, CU_MEM_LOCATION_TYPE_DEVICE = 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };

struct location {
	int type, id;
};

struct properties { /* CUmemAllocationProp */
	int type, handle_types;
	struct location location;
	void *win32;
	struct {
		unsigned char compression, rdma;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
};

struct access { /* CUmemAccessDesc */
	struct location location;
	int flags;
};

enum attribute { /* CUpointer_attribute */
	CONTEXT = 1,
	SYNC_MEMOPS = 6,
	BUFFER_ID = 7,
	DEVICE_ORDINAL = 9,
	IS_LEGACY_CUDA_IPC_CAPABLE = 10,
	RANGE_START_ADDR = 11,
	RANGE_SIZE = 12,
	ALLOWED_HANDLE_TYPES = 14,
	IS_GPU_DIRECT_RDMA_CAPABLE = 15,
	MAPPING_SIZE = 18,
	MAPPING_BASE_ADDR = 19,
	MEMORY_BLOCK_ID = 20,
	IS_HW_DECOMPRESS_CAPABLE = 21,
};

struct ipc { /* CUipcMemHandle */
	unsigned char bytes[64];
};

struct array_mapping { /* CUarrayMapInfo */
	int resource_type;
	void *resource;
	int subresource_type;
	uint64_t subresource[4];
	int operation, handle_type;
	CUhandle handle;
	unsigned long long offset;
	unsigned device_mask, flags, reserved[2];
};
