/* front.h: the names of the driver's functions that this library exports. */
#pragma once
#include <stddef.h>

/* Where a call of the function NUMBER of calls.h goes while it leads nowhere. */
void *front(size_t number) __attribute__((visibility("hidden"), used));
void front_leads_to(size_t number, void *target);
void *front_target(size_t number);
/* The number of an exported function, or a larger one. */
size_t front_number_of(const void *address);

#define STRING_(x) #x
#define STRING(x) STRING_(x)

/*
 * Code that is jumped to with a number on the stack, asks a function where the call goes that is being made, and jumps
 * there. All registers in which there may be arguments are kept.
 */
#define JUMP_WHERE(name, function)                                                                                     \
	name ":\n"                                                                                                    \
	".cfi_startproc\n"                                                                                            \
	".cfi_def_cfa_offset 16\n"                                                                                    \
	"	push %rdi; push %rsi; push %rdx; push %rcx; push %r8; push %r9; push %rax\n"                          \
	".cfi_adjust_cfa_offset 56\n"                                                                                 \
	"	sub $136, %rsp\n"                                                                                     \
	".cfi_adjust_cfa_offset 136\n"                                                                                \
	"	movups %xmm0, (%rsp); movups %xmm1, 16(%rsp); movups %xmm2, 32(%rsp); movups %xmm3, 48(%rsp)\n"       \
	"	movups %xmm4, 64(%rsp); movups %xmm5, 80(%rsp); movups %xmm6, 96(%rsp); movups %xmm7, 112(%rsp)\n"    \
	"	mov 192(%rsp), %rdi\n"                                                                                \
	"	call " function "\n"                                                                                  \
	"	mov %rax, %r11\n"                                                                                     \
	"	movups (%rsp), %xmm0; movups 16(%rsp), %xmm1; movups 32(%rsp), %xmm2; movups 48(%rsp), %xmm3\n"       \
	"	movups 64(%rsp), %xmm4; movups 80(%rsp), %xmm5; movups 96(%rsp), %xmm6; movups 112(%rsp), %xmm7\n"    \
	"	add $136, %rsp\n"                                                                                     \
	".cfi_adjust_cfa_offset -136\n"                                                                               \
	"	pop %rax; pop %r9; pop %r8; pop %rcx; pop %rdx; pop %rsi; pop %rdi\n"                                 \
	".cfi_adjust_cfa_offset -56\n"                                                                                \
	"	add $8, %rsp\n"                                                                                       \
	".cfi_adjust_cfa_offset -8\n"                                                                                 \
	"	jmp *%r11\n"                                                                                          \
	".cfi_endproc\n"
