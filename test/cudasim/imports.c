/* imports.c: see imports.h. */
#define _GNU_SOURCE
#include "imports.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void import_path(char *path, const struct allocation *a)
{
	host_path(&sim.host, path, "imports/%s@%s@%d@%" PRIx64 "@%" PRIx64 "@%p", sim.name, a->exporter, a->exporter_gpu,
		  a->offset, a->size, (const void *)a);
}

/* Is there, once the exporter has given an allocation back that was imported. */
static void orphan_path(char *path, const char *importer, const char *exporter, int gpu, uint64_t offset)
{
	host_path(&sim.host, path, "gpu/orphan@%s@%s@%d@%" PRIx64, importer, exporter, gpu, offset);
}

bool import_is_orphan(const struct allocation *a)
{
	char path[SIM_FULLPATH];

	orphan_path(path, sim.name, a->exporter, a->exporter_gpu, a->offset);
	return !access(path, F_OK);
}

void import_orphan(const struct allocation *a, int gpu)
{
	char path[SIM_FULLPATH], importer[SIM_NAME], exporter[SIM_NAME];
	int of;
	uint64_t offset, size;

	host_path(&sim.host, path, "imports");
	DIR *d = opendir(path);
	for (struct dirent *e; d && (e = readdir(d));) {
		if (sscanf(e->d_name, "%47[^@]@%47[^@]@%d@%" SCNx64 "@%" SCNx64, importer, exporter, &of, &offset, &size) != 5 || of != gpu ||
		    offset != a->offset || strcmp(exporter, sim.name))
			continue;
		orphan_path(path, importer, exporter, of, offset);
		int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		if (fd >= 0)
			close(fd);
	}
	if (d)
		closedir(d);
}

void import_note(const struct allocation *a)
{
	char path[SIM_FULLPATH];
	orphan_path(path, sim.name, a->exporter, a->exporter_gpu, a->offset);
	unlink(path);
	import_path(path, a);
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		sim_log("%s cannot be made: nobody will know of this import", path);
	else
		close(fd);
}

void import_forget(const struct allocation *a)
{
	char path[SIM_FULLPATH];
	import_path(path, a);
	unlink(path);
	orphan_path(path, sim.name, a->exporter, a->exporter_gpu, a->offset);
	unlink(path);
}

int import_list(const struct sim_host *h, const char *self, struct sim_import *out, int max)
{
	char path[SIM_FULLPATH];
	int n = 0;
	host_path(h, path, "imports");
	DIR *d = opendir(path);
	for (struct dirent *e; d && n < max && (e = readdir(d));) {
		struct sim_import *i = &out[n];
		if (sscanf(e->d_name, "%47[^@]@%47[^@]@%d@%" SCNx64 "@%" SCNx64, i->importer, i->exporter, &i->gpu, &i->offset, &i->size) != 5)
			continue;
		i->importer_pid = process_alive(h, i->importer, self);
		i->exporter_pid = process_alive(h, i->exporter, self);
		if (i->importer_pid < 0) {
			host_path(h, path, "imports/%s", e->d_name);
			unlink(path);
		} else {
			n++;
		}
	}
	if (d)
		closedir(d);
	return n;
}
