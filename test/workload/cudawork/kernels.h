/*
 * The device code. The real driver compiles the text; a simulated driver has no
 * compiler and recognises the entries by their names.
 *
 *   cw_spin       (u64 ns)                             keeps the stream busy for ns nanoseconds
 *   cw_fill       (u64 ptr, u64 nwords, u32 seed)      word[i] = pattern_word(seed, i)
 *   cw_step       (u64 ptr, u64 nwords)                word[i] += 1
 *   cw_collective (u64 group, u32 rank, u32 size, u64 generation)
 *                 in a module of its own, for a simulated driver only. It ends when all
 *                 ranks of the group have submitted the generation, as a collective does.
 *   cw_meet       (u64 flags, u32 rank, u32 size, u64 generation)
 *                 in a module of its own, the same for a real driver: through host memory.
 */
#ifndef CUDAWORK_KERNELS_H
#define CUDAWORK_KERNELS_H

#include <stdint.h>

extern const char kernels_ptx[];
extern const char collective_ptx[], meeting_ptx[];

/* What cw_fill writes, computed by the host; all arithmetic wraps at 32 bits. */
static inline uint32_t pattern_word(uint32_t seed, uint64_t i)
{
	return seed * 2654435761u + (uint32_t)i;
}

#endif
