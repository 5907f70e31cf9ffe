#include "role.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "report.h"

/*
 * Ranks must agree on the tick after which they end: one that left a tick earlier would
 * leave the others in a collective that never completes. Whoever is about to submit
 * tick n and finds no agreement writes n+1 down before it submits n. Tick n cannot
 * complete without it, so everybody reads the note before n+1 at the latest; and two
 * that write at once are both before the same n and write the same.
 *
 * Where ranks run ahead only rank 0 writes, and a tick further on than any can be.
 */
struct agreement {
	uint64_t ino, mtime_ns; /* of the stop file it belongs to: an older run's note is void */
	uint64_t last;          /* the last tick to run */
};

static int ranks_stop(const struct role *r, uint64_t next)
{
	char from[PATH_LEN], to[PATH_LEN];
	struct agreement want, found;
	struct stat st;

	path_join(to, r->common, "stop");
	if (stat(to, &st))
		return 0;
	want.ino = st.st_ino;
	want.mtime_ns = st.st_mtim.tv_sec * 1000000000ull + st.st_mtim.tv_nsec;
	want.last = next + 1 + r->ahead;
	if (!file_read(r->common, "stop.at", &found, sizeof(found)) &&
	    found.ino == want.ino && found.mtime_ns == want.mtime_ns)
		return next > found.last;
	if (r->ahead && r->rank)
		return 0;

	path_join(from, r->dir, "stop.at");
	path_join(to, r->common, "stop.at");
	if (file_write(r->dir, "stop.at", &want, sizeof(want)) || rename(from, to))
		say("cannot write %s: %s; going on", to, strerror(errno));
	return 0;
}

int role_stop(const struct role *r, uint64_t next)
{
	if (r->part == RANK)
		return ranks_stop(r, next);
	return file_exists(r->dir, "stop") || file_exists(r->common, "stop");
}
