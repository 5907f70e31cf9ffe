#include "report.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DESCRIBED_MAX 20

static _Atomic uint64_t bad_total;

static void line(const char *fmt, va_list ap)
{
	char text[512];
	int n = snprintf(text, sizeof(text), "cudawork[%d]: ", (int)getpid());

	vsnprintf(text + n, sizeof(text) - n - 1, fmt, ap);
	strcat(text, "\n");
	/* One write: lines of several processes on one stderr stay whole. A full disk is no reason to stop. */
	if (write(STDERR_FILENO, text, strlen(text)) < 0)
		return;
}

void say(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	line(fmt, ap);
	va_end(ap);
}

void die(int status, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	line(fmt, ap);
	va_end(ap);
	_exit(status);
}

void bad(const char *fmt, ...)
{
	uint64_t before = atomic_fetch_add(&bad_total, 1);
	va_list ap;

	if (before < DESCRIBED_MAX) {
		va_start(ap, fmt);
		line(fmt, ap);
		va_end(ap);
	} else if (before == DESCRIBED_MAX) {
		say("further mismatches are counted and no longer described");
	}
}

void bad_more(uint64_t n)
{
	atomic_fetch_add(&bad_total, n);
}

uint64_t bad_count(void)
{
	return atomic_load(&bad_total);
}
