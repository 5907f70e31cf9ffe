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
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

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
__attribute__((visibility("hidden"), used)) void gate_wait(void)
{
	uint32_t closed;

	while ((closed = __atomic_load_n(&gate_closed, __ATOMIC_ACQUIRE)) && !take_pass() && !driver_forked())
		futex_wait(&gate_closed, closed, NULL);
}

#define STRING_(x) #x
#define STRING(x) STRING_(x)

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
	"gate_is_closed:\n"
	".cfi_startproc\n"
	".cfi_def_cfa_offset 16\n"
	"	push %rdi; push %rsi; push %rdx; push %rcx; push %r8; push %r9; push %rax\n"
	".cfi_adjust_cfa_offset 56\n"
	"	sub $136, %rsp\n"
	".cfi_adjust_cfa_offset 136\n"
	"	movups %xmm0, (%rsp); movups %xmm1, 16(%rsp); movups %xmm2, 32(%rsp); movups %xmm3, 48(%rsp)\n"
	"	movups %xmm4, 64(%rsp); movups %xmm5, 80(%rsp); movups %xmm6, 96(%rsp); movups %xmm7, 112(%rsp)\n"
	"	call gate_wait\n"
	"	movups (%rsp), %xmm0; movups 16(%rsp), %xmm1; movups 32(%rsp), %xmm2; movups 48(%rsp), %xmm3\n"
	"	movups 64(%rsp), %xmm4; movups 80(%rsp), %xmm5; movups 96(%rsp), %xmm6; movups 112(%rsp), %xmm7\n"
	"	add $136, %rsp\n"
	".cfi_adjust_cfa_offset -136\n"
	"	pop %rax; pop %r9; pop %r8; pop %rcx; pop %rdx; pop %rsi; pop %rdi\n"
	".cfi_adjust_cfa_offset -56\n"
	"	pop %r11\n"
	".cfi_adjust_cfa_offset -8\n"
	"	lea gate_targets(%rip), %r10\n"
	"	jmp *(%r10,%r11,8)\n"
	".cfi_endproc\n");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *gated(void *function)
{
	static size_t used;
	size_t i = 0;

	pthread_mutex_lock(&lock);
	while (i < used && gate_targets[i] != function)
		i++;
	if (i == used && used < ENTRIES)
		gate_targets[used++] = function;
	pthread_mutex_unlock(&lock);
	return i < ENTRIES ? gate_entries + 32 * i : function;
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

void gate_in_a_child(void)
{
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	gate_open();
}

void gate_open(void)
{
	__atomic_store_n(&gate_closed, 0, __ATOMIC_RELEASE);
	futex_wake(&gate_closed);
}
#else
void gate_wait(void) {}
void *gated(void *function) { return function; }
void gate_close(void) {}
void gate_pass(uint32_t calls) { (void)calls; }
void gate_open(void) {}
void gate_in_a_child(void) {}
#endif

#define IN_A_STREAM(name, parameters, arguments)                                                                       \
	CUresult name parameters                                                                                       \
	{                                                                                                              \
		if (!driver_known())                                                                                   \
			return CUDA_ERROR_NOT_INITIALIZED;                                                             \
		gate_wait();                                                                                           \
		return driver.name arguments;                                                                          \
	}
#define LAUNCH(name, parameters, arguments) IN_A_STREAM(name, parameters, arguments) IN_A_STREAM(name##_ptsz, parameters, arguments)
#include "launches.h"
