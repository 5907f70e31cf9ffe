/* agent.h: the thread that obeys who dumps and restores the process. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* The threads are there that could move memory: they begin in cuInit. */
bool agent_started(void);

/* Memory of another process was opened, or closed (-1), that cannot be taken down here. */
void agent_unserved(int more);
/* In a forked child there is no agent. */
void agent_in_a_child(void);

/* The command that is under way gets on. */
void agent_progress(void);

/* Starts a thread that takes no signals, and whose end nobody waits for. It has made the calls that begin a thread. */
bool start_a_thread(void *(*routine)(void *), void *argument);
