/*
 * cudawork: a CUDA job whose every word of GPU memory is known at every tick. What a
 * dump, a restore or a migration must not change shows in it as a mismatch, a missing
 * tick or a dead process. It is an ordinary driver API program and knows nothing of
 * checkpoints.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>

#include "group.h"
#include "options.h"
#include "report.h"
#include "role.h"
#include "worker.h"

int main(int argc, char **argv)
{
	static struct role alone = {.part = ALONE, .size = 1};
	struct options o = options_parse(argc, argv);

	/* A reader of our stderr that went away is no reason to end. */
	signal(SIGPIPE, SIG_IGN);
	if (o.mlock && mlockall(MCL_CURRENT | MCL_FUTURE)) {
		perror("mlockall");
		return 3;
	}
	if (o.ipc || o.ranks || o.procs)
		return group_run(&o);
	dir_make(o.dir);
	snprintf(alone.dir, sizeof(alone.dir), "%s", o.dir);
	snprintf(alone.common, sizeof(alone.common), "%s", o.dir);
	return worker_run(&o, &alone);
}
