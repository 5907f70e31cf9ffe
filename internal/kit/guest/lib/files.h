/* files.h: memory that is out, in the files of an image. For the agent alone. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a piece of it is; internal/kit/pages has the same. The pieces are in the order of their offsets. What is in none is 0. */
struct piece {
	uint64_t offset; /* in staging */
	uint64_t at;	 /* in the file */
	uint32_t size;
	uint32_t file;
};

/* Receives the descriptors of a list of so many pieces and of their files, all in one message. false: they are not there. */
bool files_take(uint64_t count);
/* Closes them. */
void files_close(void);
/* Is there anything but 0? */
bool files_have(size_t offset, size_t size);
/* Reads it. Several threads may. */
bool files_read(char *buffer, size_t offset, size_t size);
