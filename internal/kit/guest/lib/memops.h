/*
 * memops.h: the copies and fills that need not wait for their end.
 * MEMOP(name, (parameters), (arguments), device address written, and read or 0); CUDA_MEMCPY2D and CUDA_MEMCPY3D by words
 */
MEMOP(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t n), (to, from, n), to, from)
MEMOP(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t n), (to, from, n), to, 0)
MEMOP(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t n), (to, from, n), to, from)
MEMOP(cuMemcpyPeer, (CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t n), (to, there, from, here, n), to, from)
MEMOP(cuMemcpy2D_v2, (const CUdeviceptr *copy), (copy), copy[11], copy[4])
MEMOP(cuMemcpy2DUnaligned_v2, (const CUdeviceptr *copy), (copy), copy[11], copy[4])
MEMOP(cuMemcpy3D_v2, (const CUdeviceptr *copy), (copy), copy[17], copy[6])
MEMOP(cuMemcpy3DPeer, (const CUdeviceptr *copy), (copy), copy[17], copy[6])
MEMOP(cuMemsetD8_v2, (CUdeviceptr at, unsigned char value, size_t n), (at, value, n), at, 0)
MEMOP(cuMemsetD16_v2, (CUdeviceptr at, unsigned short value, size_t n), (at, value, n), at, 0)
MEMOP(cuMemsetD32_v2, (CUdeviceptr at, unsigned value, size_t n), (at, value, n), at, 0)
MEMOP(cuMemsetD2D8_v2, (CUdeviceptr at, size_t pitch, unsigned char value, size_t width, size_t height), (at, pitch, value, width, height), at, 0)
MEMOP(cuMemsetD2D16_v2, (CUdeviceptr at, size_t pitch, unsigned short value, size_t width, size_t height), (at, pitch, value, width, height), at, 0)
MEMOP(cuMemsetD2D32_v2, (CUdeviceptr at, size_t pitch, unsigned value, size_t width, size_t height), (at, pitch, value, width, height), at, 0)
#undef MEMOP
