/* alloc.h: memory for which a program has an address and no handle. */
#pragma once
#include "parts.h"

/* Gives the parts of a record an address, and puts it into the list. */
CUresult ordinary_place(struct memory *m, CUdeviceptr companion, CUdeviceptr *out);

/* The companion of the memory at an address; 0 if it has none. */
CUdeviceptr ordinary_companion(CUdeviceptr at);

/* Takes a record out of the list, and ends what was taken out. What the driver does not let go now goes back into the list. */
struct memory *ordinary_take_out(CUdeviceptr at, bool opened);
CUresult ordinary_end(struct memory *m);
