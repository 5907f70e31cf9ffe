/*
 * imports.h: which process has imported which memory of which other. Each import is an
 * empty file below ROOT/imports that is named after it. It counts while the importer lives.
 */
#ifndef CUDASIM_IMPORTS_H
#define CUDASIM_IMPORTS_H

#include "account.h"
#include "memory.h"

struct sim_import {
	char importer[SIM_NAME], exporter[SIM_NAME];
	int gpu;
	uint64_t offset, size;
	int importer_pid, exporter_pid; /* as process_alive has them */
};

void import_note(const struct allocation *a);
void import_forget(const struct allocation *a);

/* Up to max imports of the host; their number. SELF is the caller's own name or NULL. */
int import_list(const struct sim_host *h, const char *self, struct sim_import *out, int max);

/*
 * The exporter gives an allocation back: whoever has imported it has the old memory from now on, and not what comes to be at its
 * place. That the content stays is not simulated: it is 0.
 */
void import_orphan(const struct allocation *a, int gpu);
bool import_is_orphan(const struct allocation *a);

#endif
