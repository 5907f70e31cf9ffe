/* drivers.h: written by go test ./internal/kit/drivers -update. What is known of drivers is there. */
#ifndef CUDASIM_DRIVERS_H
#define CUDASIM_DRIVERS_H

/* The simulated ones: series, version of the kernel module, CUDA version. */
#define SIM_DRIVERS(DRIVER) \
	DRIVER(550, "550.163.01", 12040) \
	DRIVER(570, "570.211.01", 12080) \
	DRIVER(580, "580.159.04", 13000) \

#define SIM_DEFAULT 580 /* measured */
#define SIM_CHECKPOINT 570 /* the first with the checkpoint API */
#define SIM_GPU_PAIRS 580 /* the first that restores onto other GPUs */
#define SIM_PEER_LIMIT (512ull << 20)
#define SIM_EVENT_THREAD "cuda-EvtHandlr"
#define SIM_SOCKET_PREFIX "cuda-uvmfd-"
#define SIM_CONTROL_NODE "nvidiactl"

/* Numbers of the kernel module. */
#define RM_CONTROL 0xc020462a
#define RM_CLASS_GPU_MEMORY 0x40
#define RM_CLASS_SYSTEM_MEMORY 0x3e
#define RM_CLASS_P2P 0x503b
#define RM_CLASS_FABRIC 0xf8
#define RM_CLASS_IMPORTED 0xf9
#define RM_CLASS_IMPORTED_REF 0xfb
#define RM_CLASS_MULTICAST 0xfd
#define RM_CLASS_SUBDEVICE 0x2080
#define RM_GET_HANDLE_INFO 0xd02
#define RM_ARE_DUPLICATES 0xd07
#define RM_GET_SURFACE_INFO 0x410110
#define RM_GET_FABRIC_INFO 0xf80101
#define RM_GET_ADDRESS 0x410103
#define RM_HANDLE_PARENT 1
#define RM_HANDLE_CLASS 2
#define RM_FLEXIBLE 1
#define RM_SURFACE_PAGES 7
#define RM_FIRST_CLIENT 0xc1d00000
#define RM_MOST_CLIENTS 0x100000
#define RM_FIRST_OBJECT 0x5c000000
#define RM_MOST_OBJECTS 0x1000000
#define RM_GET_PIDS 0x2080018d
#define RM_GET_PID_INFO 0x2080018e
#define RM_GET_GPU 0x20800142
#define RM_PIDS_ROOM 950
#define RM_PID_INFOS_ROOM 200
#define RM_STATUS_OK 0
#define RM_STATUS_INVALID_CLIENT 0x23

#endif
