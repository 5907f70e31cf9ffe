/* What a child that was forked from a CUDA process does. */
#ifndef CUDAWORK_CHILD_H
#define CUDAWORK_CHILD_H

#include <signal.h>
#include <sys/types.h>

/* Blocks the signals by which the child is asked; *before has the mask that was. */
void child_block_requests(sigset_t *before);

/*
 * Called with the requests blocked. Waits until the parent is gone. At SIGUSR1 the child
 * gives up what it inherited of the
 * driver: its descriptors become /dev/null, its mappings unreadable memory. At SIGUSR2 it
 * leaves by exit(), with the driver's own exit handlers.
 */
void child_wait(pid_t parent) __attribute__((noreturn));

#endif
