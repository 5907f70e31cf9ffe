/*
 * front.c: what a program that is linked with the driver finds first, under the driver's names. An entry jumps where
 * names.c has led it: to who comes next in the order of the dynamic loader, or to the guest.
 */
#include "front.h"

#ifdef __x86_64__

#define SIZE 32 /* of an entry */

extern char front_entries[] __attribute__((visibility("hidden")));
extern char front_end[] __attribute__((visibility("hidden")));
extern void *front_targets[] __attribute__((visibility("hidden")));

#define CALL(result, name, ...)
#define SERVED(result, name, ...)                                                                                      \
	".balign " STRING(SIZE) "\n"                                                                                   \
	".globl " #name "\n"                                                                                           \
	".type " #name ", @function\n"                                                                                 \
	#name ":\n"                                                                                                    \
	"	jmp *front_targets+8*front_number(%rip)\n"                                                            \
	"1:	pushq $front_number\n"                                                                                \
	".cfi_adjust_cfa_offset 8\n"                                                                                   \
	"	jmp front_is_asked\n"                                                                                 \
	".cfi_adjust_cfa_offset -8\n"                                                                                  \
	".size " #name ", .-" #name "\n"                                                                               \
	".pushsection .data.rel.local, \"aw\"\n"                                                                       \
	"	.quad 1b\n"                                                                                           \
	".popsection\n"                                                                                                \
	".set front_number, front_number+1\n"
#define HELD_BACK SERVED

__asm__(".pushsection .data.rel.local, \"aw\"\n"
	".balign 8\n"
	".hidden front_targets\n"
	"front_targets:\n"
	".popsection\n"
	".text\n"
	".balign " STRING(SIZE) "\n"
	".hidden front_entries\n"
	".set front_number, 0\n"
	"front_entries:\n"
	".cfi_startproc\n"
#include "calls.h"
	".hidden front_end\n"
	"front_end:\n"
	".cfi_endproc\n"
	JUMP_WHERE("front_is_asked", "front"));

void front_leads_to(size_t number, void *target) { __atomic_store_n(&front_targets[number], target, __ATOMIC_RELEASE); }

void *front_target(size_t number) { return __atomic_load_n(&front_targets[number], __ATOMIC_ACQUIRE); }

size_t front_number_of(const void *address)
{
	const char *at = address;

	return at >= front_entries && at < front_end ? (size_t)(at - front_entries) / SIZE : (size_t)-1;
}
#else
void front_leads_to(size_t number, void *target) { (void)number, (void)target; }
void *front_target(size_t number) { return front(number); }
size_t front_number_of(const void *address) { return (void)address, (size_t)-1; }
#endif
