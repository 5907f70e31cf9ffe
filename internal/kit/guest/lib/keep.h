/* keep.h: memory that stays on the GPUs while it is out, because somebody else holds it. For the agent alone. */
#pragma once
#include "parts.h"

/* What of it lies on a GPU; internal/core/agent has the same. */
struct kept {
	unsigned char gpu[16]; /* its UUID */
	uint64_t bytes;
};

#define MOST_GPUS 64

extern struct kept kept[MOST_GPUS];

/* Puts descriptors of the parts of all memory that is moving into a socket, and returns that; -1 if not all fit. */
int keep(void);
/* Returns a socket through which that socket is to be sent back, or -1. */
int keep_connect(void);
/* Closes what is here of these sockets. */
void keep_hang_up(void);
/* Gets hold of the socket that was sent back. */
CUresult kept_take(void);
/* Makes memory anew that is next in it, with its content. CONTEXT is one of the memory's GPU. All of it, or nothing. */
CUresult kept_put_up(struct memory *m, CUcontext context);
