/*
 * hash.cu: the hash of each slice of memory, on the GPU that has it. hash.ptx is what nvcc makes of it (Makefile), so
 * that nobody who builds the library needs nvcc.
 *
 * It is a polynomial over the field of 2^61-1 elements, at a random place that is the process's own, and
 * a second one at another: that two different slices of 4 MiB have the same hash is less likely than 2^-80, whatever they
 * are. A word of 64 bits is more than an element, so it is two halves, the upper one times a further random element.
 */
typedef unsigned long long u64;

#define P ((1ull << 61) - 1)

struct place { /* hash.c has the same */
	u64 at, step, upper; /* the place, its power by which a thread goes on, and what upper halves are taken times */
};

static __device__ u64 reduce(u64 x) { return (x & P) + (x >> 61); }

static __device__ u64 times(u64 a, u64 b)
{
	u64 low = a * b;

	return reduce((low & P) + (low >> 61 | __umul64hi(a, b) << 3));
}

static __device__ u64 element(u64 word, u64 upper) { return (word & 0xffffffff) + times(word >> 32, upper); }

static __device__ u64 power(u64 a, unsigned n)
{
	u64 r = 1;

	for (; n; n >>= 1, a = times(a, a))
		if (n & 1)
			r = times(r, a);
	return r;
}

static __device__ u64 next(u64 h, ulonglong2 words, struct place p)
{
	h = times(h, p.step);
	h = reduce(h + times(element(words.x, p.upper), p.at));
	return reduce(h + element(words.y, p.upper));
}

/* A block for each slice; slices and size are multiples of 16 bytes. step is at^(2 * blockDim.x). */
extern "C" __global__ void cucriu_hash(const ulonglong2 *memory, u64 size, u64 slice, u64 *out, struct place a, struct place b)
{
	__shared__ u64 sums[2][256];
	const u64 begin = blockIdx.x * slice / 16, end = min(begin + slice / 16, size / 16);
	u64 x = 0, y = 0;

	for (u64 i = begin + threadIdx.x; i < end; i += blockDim.x) {
		const ulonglong2 words = memory[i];
		x = next(x, words, a);
		y = next(y, words, b);
	}
	sums[0][threadIdx.x] = times(x, power(a.at, 2 * threadIdx.x));
	sums[1][threadIdx.x] = times(y, power(b.at, 2 * threadIdx.x));
	for (unsigned n = blockDim.x / 2; n; n /= 2) {
		__syncthreads();
		for (int k = 0; k < 2 && threadIdx.x < n; k++)
			sums[k][threadIdx.x] = reduce(sums[k][threadIdx.x] + sums[k][threadIdx.x + n]);
	}
	if (threadIdx.x < 2) {
		const u64 h = reduce(sums[threadIdx.x][0]);
		out[2 * blockIdx.x + threadIdx.x] = h >= P ? h - P : h;
	}
}
