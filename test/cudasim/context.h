/* context.h: contexts, and which one a thread has. */
#ifndef CUDASIM_CONTEXT_H
#define CUDASIM_CONTEXT_H

#include "process.h"

/* The calling thread's context, or NULL. */
CUcontext context_current(void);
int context_device(CUcontext c); /* index in sim.device */

/* Enters the gate with a current context: 3, 201 or 0; on 0 call gate_leave(). */
CUresult context_enter(CUcontext *c);

#endif
