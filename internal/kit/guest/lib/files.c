/* files.c: see files.h. What is read goes to memory of the GPUs' driver, into which no other process can write. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent.h"
#include "files.h"
#include "rights.h"

#define MOST_AT_ONCE (1u << 20) /* whose coming is progress, from a slow disk */

static int files[BATCH]; /* the first is the list */
static size_t file_count;
static const struct piece *pieces;
static size_t piece_count;

bool files_take(uint64_t count)
{
	char byte;

	file_count = rights_receive(&byte, 1, files);
	if (file_count < 2)
		return false;
	const void *at = mmap(NULL, count * sizeof *pieces, PROT_READ, MAP_PRIVATE, files[0], 0);
	if (at == MAP_FAILED)
		return false;
	pieces = at;
	piece_count = count;
	return true;
}

void files_close(void)
{
	if (pieces)
		munmap((void *)pieces, piece_count * sizeof *pieces);
	pieces = NULL;
	while (file_count)
		close(files[--file_count]);
}

/* The first piece that does not end before an offset. */
static size_t first_from(size_t offset)
{
	size_t low = 0, high = piece_count;

	while (low < high) {
		const size_t middle = (low + high) / 2;
		if (pieces[middle].offset + pieces[middle].size > offset)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

bool files_have(size_t offset, size_t size)
{
	const size_t i = first_from(offset);

	return i < piece_count && pieces[i].offset < offset + size;
}

static bool read_all(int file, char *to, size_t size, off_t at)
{
	while (size) {
		const ssize_t n = pread(file, to, size < MOST_AT_ONCE ? size : MOST_AT_ONCE, at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		agent_progress();
		to += n;
		size -= (size_t)n;
		at += n;
	}
	return true;
}

bool files_read(char *buffer, size_t offset, size_t size)
{
	const size_t end = offset + size;
	size_t done = offset;

	for (size_t i = first_from(offset); i < piece_count && pieces[i].offset < end; i++) {
		const struct piece *p = &pieces[i];
		const size_t from = p->offset > done ? p->offset : done;
		const size_t to = p->offset + p->size < end ? p->offset + p->size : end;
		if (p->file + 1 >= file_count)
			return false;
		memset(buffer + (done - offset), 0, from - done);
		if (!read_all(files[1 + p->file], buffer + (from - offset), to - from, (off_t)(p->at + (from - p->offset))))
			return false;
		done = to;
	}
	memset(buffer + (done - offset), 0, end - done);
	return true;
}
