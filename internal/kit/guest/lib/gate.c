/*
 * gate.c: holds calls to the driver back before they begin. Who asks for a function of the
 * driver is given an entry of the table below, which jumps there while the gate is open: the
 * arguments, the stack and the return address are the program's, so nothing need be known of
 * the function. A call that has begun is not counted: whether any has not ended is for the
 * driver to say (agent.c).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "front.h"
#include "gate.h"
#include "guest.h"

void futex_wait(uint32_t *word, uint32_t value, const struct timespec *most)
{
	int before = errno;

	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, most, NULL, 0);
	errno = before;
}

void futex_wake(uint32_t *word)
{
	int before = errno;

	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
	errno = before;
}

#ifdef __x86_64__
#define ENTRIES 1024 /* libcuda 580 has 800 functions */

__attribute__((visibility("hidden"))) uint32_t gate_closed; /* 0 while it is open, else a number that it has not had before */
__attribute__((visibility("hidden"))) void *gate_targets[ENTRIES];
extern char gate_entries[] __attribute__((visibility("hidden")));

static uint32_t passes; /* how many calls may begin although the gate is closed */

static bool take_pass(void)
{
	uint32_t left = __atomic_load_n(&passes, __ATOMIC_RELAXED);

	while (left && !__atomic_compare_exchange_n(&passes, &left, left - 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	return left > 0;
}

/* A child that was forked meanwhile has nobody who opens its gate, and the driver refuses it everything. */
__attribute__((visibility("hidden"), used)) void *gate_wait(size_t entry)
{
	uint32_t closed;

	while ((closed = __atomic_load_n(&gate_closed, __ATOMIC_ACQUIRE)) && !take_pass() && !driver_forked())
		futex_wait(&gate_closed, closed, NULL);
	return gate_targets[entry];
}

/* An entry is 32 bytes. One that finds the gate closed keeps all registers in which there may be arguments. */
__asm__(".text\n"
	".balign 32\n"
	".hidden gate_entries\n"
	"gate_entries:\n"
	".cfi_startproc\n"
	".set entry, 0\n"
	".rept " STRING(ENTRIES) "\n"
	".balign 32\n"
	"	cmpl $0, gate_closed(%rip)\n"
	"	jne 1f\n"
	"	jmp *gate_targets+8*entry(%rip)\n"
	"1:	pushq $entry\n"
	".cfi_adjust_cfa_offset 8\n"
	"	jmp gate_is_closed\n"
	".cfi_adjust_cfa_offset -8\n"
	".set entry, entry+1\n"
	".endr\n"
	".cfi_endproc\n"
	JUMP_WHERE("gate_is_closed", "gate_wait"));

void *gated(void *function)
{
	for (size_t i = 0; i < ENTRIES; i++) {
		void *its = NULL;
		if (__atomic_compare_exchange_n(&gate_targets[i], &its, function, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) || its == function)
			return gate_entries + 32 * i;
	}
	return function;
}

const void *gate_target_of(const void *entry)
{
	const size_t i = ((const char *)entry - gate_entries) / 32;

	return (const char *)entry >= gate_entries && i < ENTRIES ? __atomic_load_n(&gate_targets[i], __ATOMIC_ACQUIRE) : NULL;
}

static void close_with(uint32_t calls)
{
	static uint32_t last;

	__atomic_store_n(&passes, calls, __ATOMIC_RELAXED);
	last = last == UINT32_MAX ? 1 : last + 1;
	__atomic_store_n(&gate_closed, last, __ATOMIC_RELEASE);
}

void gate_close(void) { close_with(0); }

void gate_pass(uint32_t calls)
{
	if (!gate_closed)
		return;
	close_with(calls);
	futex_wake(&gate_closed);
}

void gate_in_a_child(void) { gate_open(); }

void gate_open(void)
{
	__atomic_store_n(&gate_closed, 0, __ATOMIC_RELEASE);
	futex_wake(&gate_closed);
}
#else
void *gated(void *function) { return function; }
const void *gate_target_of(const void *entry) { return (void)entry, NULL; }
void gate_close(void) {}
void gate_pass(uint32_t calls) { (void)calls; }
void gate_open(void) {}
void gate_in_a_child(void) {}
#endif
