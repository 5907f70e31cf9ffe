/* alloc.h: memory for which a program has an address and no handle. */
#pragma once
#include "parts.h"

/* Gives the parts of a record an address, and puts it into the list. The companion is one of the current context. */
CUresult ordinary_place(struct memory *m, CUdeviceptr companion, CUdeviceptr *out);

/* The ordinary memory that an address lies in, or NULL. For who has the records for himself. */
struct memory *ordinary_at(CUdeviceptr at);

/* Whether the companion is there, and so the context: the driver reads that of one that has ended, and crashes. */
bool ordinary_lives(const struct memory *m);

/* The memory that begins at an address, marked as ending. NULL: there is none, or another thread ends it. If it was OPENED more than once it STAYS. */
struct memory *ordinary_begin_end(CUdeviceptr at, bool opened, bool *stays);
/* FREED is what the driver answered when the companion was given back. If it did not let it go now, the memory stays. */
CUresult ordinary_end(struct memory *m, CUresult freed);

/* Makes a socket, and a thread, for who may ask for memory later; and whether they are there. */
void ipc_start(void);
bool ipc_started(void);
/* By which others ask for what this process has given: ipc.c. */
const char *ipc_name(void);
/* Another process is connected, to open memory of this one: it may have a descriptor already, and no record. */
bool ipc_gives(void);
/* A descriptor by which other processes can import memory, or -1. For who has the records for himself. */
int ipc_export(struct memory *m);
