/* What the linker needs to know of the driver. It is never loaded. */
#define FUNCTION(name) void name(void) {}
FUNCTION(cuInit) FUNCTION(cuDevicePrimaryCtxRetain) FUNCTION(cuCtxSetCurrent)
FUNCTION(cuMemAlloc_v2) FUNCTION(cuMemFree_v2) FUNCTION(cuMemcpyHtoD_v2)
