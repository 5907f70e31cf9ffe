/* share.h: memory that processes of a job have of each other. For the agent alone. */
#pragma once
#include "parts.h"

/* One memory that this process has given, or opened; internal/core/agent has the same. */
struct link {
	char owner[24];
	uint64_t number;
	uint32_t opened;  /* it is another process's */
	uint32_t movable; /* it can be taken down here */
};

/* What the agent says of it. */
struct sharing {
	uint32_t down; /* how much of others' memory is taken down */
	uint32_t count;
	uint64_t links; /* the address of as many, since LIST */
	uint64_t from;  /* the other side says which part GIVE begins with, as they are counted over all memory that was given */
	uint64_t given; /* how many descriptors of parts it gave */
};

#define MOST_LINKS 4096

/* Adds a memory to the list. false: there are too many. */
bool share_add(struct sharing *s, const struct memory *m, bool movable);
bool share_is(const struct memory *m);
/*
 * Puts descriptors of parts of the memory that was given into a socket, from a part on, and returns that, and how many; -1 if it cannot.
 * It is only as many as fit into a message, because the kernel allows a user few descriptors that are on their way.
 */
int share_give(uint64_t from, uint64_t *given);
/* Reports whether there can be descriptors of all of it, and others can be had of what was opened. */
bool share_try(void);
/*
 * What was opened, and is in so many messages in the socket that was sent here, gets parts again. When it has all, PUT_UP
 * maps it.
 */
CUresult share_take(uint64_t messages, CUresult (*put_up)(struct memory *m));
