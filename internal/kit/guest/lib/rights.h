/* rights.h: descriptors that lie in a socket, which somebody else takes along and sends on. For the agent alone. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#define BATCH 64 /* descriptors in a message; as many are open at once */

/* Makes a pair of sockets, and returns the end that the other side is to take; -1 if there can be none. */
int rights_open(void);
/* Closes the end of this side. WITH: and returns the other one; else that is closed, too. */
int rights_leave(bool with);
/* In place of the own end: the socket that was sent through it. */
bool rights_take(void);
/* Reports whether this process can have as many descriptors more as come in a message. */
bool rights_try(void);
void rights_hang_up(void);

/* A message that is being made. */
struct outgoing {
	const void *data;
	size_t size;
	int list[BATCH];
	size_t count;
};

/* Sends a message that is full, and makes room for the next descriptor. */
bool rights_room(struct outgoing *o);
/* Sends the descriptors, and closes them. */
bool rights_send(struct outgoing *o);
/* Receives a message with as much data, and returns how many descriptors came with it: the caller's to close. 0: there is none. */
size_t rights_receive(void *data, size_t size, int *list);
