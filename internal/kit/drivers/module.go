package drivers

// What package nvrm asks the kernel module with: numbers of the open kernel modules, the same on all drivers that were
// compared.

// RMControl is NV_ESC_RM_CONTROL, _IOWR('F', 0x2a, NVOS54_PARAMETERS).
const RMControl = 0xc020462a

// Object classes, and the commands that ask about objects.
const (
	ClassGPUMemory    = 0x40   // NV01_MEMORY_LOCAL_USER
	ClassSystemMemory = 0x3e   // NV01_MEMORY_SYSTEM
	ClassP2P          = 0x503b // NV50_P2P
	ClassFabric       = 0xf8   // NV_MEMORY_FABRIC
	ClassImported     = 0xf9   // NV_MEMORY_FABRIC_IMPORT_V2
	ClassImportedRef  = 0xfb   // NV_MEMORY_FABRIC_IMPORTED_REF
	ClassMulticast    = 0xfd   // NV_MEMORY_MULTICAST_FABRIC
	ClassSubdevice    = 0x2080 // NV20_SUBDEVICE_0

	GetHandleInfo  = 0xd02    // NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO
	AreDuplicates  = 0xd07    // NV0000_CTRL_CMD_CLIENT_OBJECTS_ARE_DUPLICATES
	GetSurfaceInfo = 0x410110 // NV0041_CTRL_CMD_GET_SURFACE_INFO
	GetFabricInfo  = 0xf80101 // NV00F8_CTRL_CMD_GET_INFO
	GetAddress     = 0x410103 // NV0041_CTRL_CMD_GET_SURFACE_PHYS_ATTR

	HandleParent = 1 // NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_PARENT
	HandleClass  = 2 // NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID
	Flexible     = 1 // NV00F8_ALLOC_FLAGS_FLEXIBLE_FLA
	SurfacePages = 7 // NV0041_CTRL_SURFACE_INFO_INDEX_PHYS_SIZE, in units of 4 KiB
)

// The ranges of handles. The module numbers clients upwards from the first one. libcuda
// numbers its objects upwards, and leaves gaps where it has freed objects. Objects behind a
// gap of nvrm.WidestGap handles, left by that many freed objects in a row, are not found.
const (
	FirstClient = 0xc1d00000
	MostClients = 0x100000
	FirstObject = 0x5c000000
	MostObjects = 0x1000000
)

// What the module tells of the memory of all processes, and the lengths of its tables.
const (
	GetPIDs    = 0x2080018d // NV2080_CTRL_CMD_GPU_GET_PIDS
	GetPIDInfo = 0x2080018e // NV2080_CTRL_CMD_GPU_GET_PID_INFO
	GetGPU     = 0x20800142 // NV2080_CTRL_CMD_GPU_GET_ID

	PIDsRoom     = 950
	PIDInfosRoom = 200
)

// Answers of the module.
const (
	StatusOK            = 0
	StatusInvalidClient = 0x23
)
