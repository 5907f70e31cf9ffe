/*
 * The files by which a test talks to the workload. None stays open.
 */
#ifndef CUDAWORK_FILES_H
#define CUDAWORK_FILES_H

#include <stddef.h>

#define PATH_LEN 4096

/* "dir/name" into out[PATH_LEN]. */
void path_join(char *out, const char *dir, const char *name);

void dir_make(const char *dir); /* ends the process when it cannot */
int file_exists(const char *dir, const char *name);
void file_remove(const char *dir, const char *name);

/* Writes dir/name.tmp and renames it to dir/name: 0, or -1 with errno. */
int file_write(const char *dir, const char *name, const void *data, size_t len);

/*
 * Writes dir/name.0 and dir/name.1 in turns, and makes dir/name a link to the one written last. len is always
 * the same: then a process that is copied while it writes finds the file in its size, also when the original
 * has gone on.
 */
int file_update(const char *dir, const char *name, const void *data, size_t len, unsigned turn);

/* Reads exactly len bytes: 0, or -1 with errno. */
int file_read(const char *dir, const char *name, void *data, size_t len);

/* A relative sleep: no absolute time survives a move to another machine. May end early. */
void sleep_ms(long ms);

#endif
