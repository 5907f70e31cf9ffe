/* Messages on stderr, the ends of the process, and the count of what was found wrong. */
#ifndef CUDAWORK_REPORT_H
#define CUDAWORK_REPORT_H

#include <stdint.h>

enum {
	EXIT_GOOD = 0,
	EXIT_BAD = 1,   /* ran until stopped, but some content was wrong */
	EXIT_CUDA = 2,  /* the driver, or a call to it, failed */
	EXIT_USAGE = 3, /* arguments, or the system around us */
};

/* One line on stderr, with the program and the pid in front; unbuffered. */
void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* say, then _exit: other threads may be inside the driver, whose exit handlers must not run under them. */
void die(int status, const char *fmt, ...) __attribute__((format(printf, 2, 3), noreturn));

/* Counts wrong content; the first few are described on stderr, so that a broken buffer does not fill the disk. */
void bad(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void bad_more(uint64_t n); /* counted, not described */
uint64_t bad_count(void);

#endif
