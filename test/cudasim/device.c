/* device.c: what a process can learn about its GPUs. The lock does not hold these calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "process.h"

EXPORT CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
#define DRIVER(series, module, cuda) if (SIM_DRIVER == series) *version = cuda;
	SIM_DRIVERS(DRIVER)
#undef DRIVER
	return CUDA_SUCCESS;
}

/* Common start of the calls about one device. */
static CUresult device_of(CUdevice ordinal, const void *out, struct sim_device **d)
{
	CUresult r = sim_ready();
	if (r)
		return r;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*d = sim_device_of(ordinal);
	return *d ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
	struct sim_device *d;
	CUresult r = device_of(ordinal, out, &d);
	if (!r)
		*out = ordinal;
	return r;
}

EXPORT CUresult cuDeviceGetCount(int *out)
{
	CUresult r = sim_ready();
	if (r)
		return r;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = sim.nvisible;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *out, int size, CUdevice ordinal)
{
	struct sim_device *d;
	CUresult r = device_of(ordinal, out, &d);
	if (!r && size > 0)
		snprintf(out, (size_t)size, "%s", sim.host.model);
	return r;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *out, CUdevice ordinal)
{
	struct sim_device *d;
	CUresult r = device_of(ordinal, out, &d);
	if (!r)
		*out = d->uuid;
	return r;
}
ALIAS(cuDeviceGetUuid) CUresult cuDeviceGetUuid_v2(CUuuid *out, CUdevice ordinal);

/* As in the real driver: after a move still the bus id of the first GPU. */
EXPORT CUresult cuDeviceGetPCIBusId(char *out, int size, CUdevice ordinal)
{
	struct sim_device *d;
	CUresult r = device_of(ordinal, out, &d);
	if (!r && size <= (int)strlen(d->pci))
		return CUDA_ERROR_INVALID_VALUE;
	if (!r)
		snprintf(out, (size_t)size, "%s", d->pci);
	return r;
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *out, const char *pci)
{
	CUresult r = sim_ready();
	if (r)
		return r;
	if (!out || !pci)
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < sim.nvisible; i++)
		if (!strcmp(sim_device_of(i)->pci, pci)) {
			*out = i;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice ordinal)
{
	struct sim_device *d;
	CUresult r = device_of(ordinal, out, &d);
	if (!r && d->gpu < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!r)
		*out = sim.host.gpu[d->gpu].bytes;
	return r;
}
ALIAS(cuDeviceTotalMem_v2) CUresult cuDeviceTotalMem(size_t *out, CUdevice ordinal);

EXPORT CUresult cuDeviceGetAttribute(int *out, int attribute, CUdevice ordinal)
{
	static const struct { int attribute, value; } known[] = {
		{1, 1024}, {2, 1024}, {3, 1024}, {4, 64},	       /* threads per block, block x y z */
		{5, 2147483647}, {6, 65535}, {7, 65535},	       /* grid x y z */
		{8, 49152}, {9, 65536}, {10, 32}, {12, 65536},	       /* shared, constant, warp, registers */
		{13, 1980000}, {15, 1}, {16, 132}, {17, 0}, {18, 0},   /* clock, overlap, SMs, timeout, integrated */
		{19, 1}, {20, 0}, {31, 1}, {32, 1}, {35, 0},	       /* map host, compute mode, concurrent, ECC, TCC */
		{36, 3201000}, {37, 6144}, {38, 62914560}, {39, 2048}, /* memory clock, bus, L2, threads per SM */
		{40, 3}, {41, 1}, {75, 9}, {76, 0}, {78, 1}, {83, 1},  /* copy engines, UVA, 9.0, priorities, managed */
		{89, 1}, {90, 1}, {106, 233472},		       /* concurrent managed, preemption, shared per SM */
		{128, 1}, {132, 1},				       /* fabric handles, multicast */
	};
	struct sim_device *d;
	CUresult r = device_of(ordinal, out, &d);
	if (r)
		return r;
	unsigned domain, bus, device;
	if (sscanf(d->pci, "%x:%x:%x", &domain, &bus, &device) != 3)
		return CUDA_ERROR_UNKNOWN;
	switch (attribute) {
	case 33:
		*out = (int)bus;
		return CUDA_SUCCESS;
	case 34:
		*out = (int)device;
		return CUDA_SUCCESS;
	case 50:
		*out = (int)domain;
		return CUDA_SUCCESS;
	}
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (known[i].attribute == attribute) {
			*out = known[i].value;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}
