/* A kind of odd process: how a process becomes one, and how it looks whether it still is. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct kind {
	const char *name;
	void (*become)(void);
	void (*look)(void); /* calls wrong() if it is no longer what it was; may be NULL */
};

/* Each ends with a kind without a name. */
extern const struct kind of_processes[], of_files[], of_names[], of_unrestorable[], of_everything[];

/* Shows that it is ready, and answers, in the calling thread; it does not return. */
__attribute__((noreturn)) void serve(void);

extern char **arguments; /* of the program */

/* Ends the process, and says why. */
__attribute__((noreturn, format(printf, 1, 2))) void wrong(const char *format, ...);

/* Ends the process because this kernel does not have what it needs. */
__attribute__((noreturn)) void not_here(const char *what);

/* A system call that must not fail, and one that the kernel may not have. */
#define must(call) ({ __typeof__(call) must_ = (call); if ((long)must_ == -1) wrong("%s: %m", #call); must_; })
#define try(call) ({ __typeof__(call) try_ = (call); if ((long)try_ == -1) not_here(#call); try_; })

/* Makes a child that becomes odd and then shows that it runs. child_runs() waits until it has shown it again. */
pid_t child(void (*become)(void));
void child_runs(pid_t pid);
