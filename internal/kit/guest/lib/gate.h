/* gate.h: holds calls to the driver back. */
#pragma once
#include <stdint.h>
#include <time.h>

/* A function with the same effect, which waits first while the gate is closed. */
void *gated(void *function);
/* The function that such an entry leads to, or NULL. */
const void *gate_target_of(const void *entry);
void gate_close(void);
/* While it is closed: so many calls may begin all the same, until gate_close is called again. */
void gate_pass(uint32_t calls);
void gate_open(void);
/* In a forked child it is open. */
void gate_in_a_child(void);

/* These leave errno alone. */
void futex_wait(uint32_t *word, uint32_t value, const struct timespec *most);
void futex_wake(uint32_t *word);
