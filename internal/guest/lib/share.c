/*
 * share.c: memory that processes of a job have of each other (ipc.c). The driver restores no process that has another one's.
 * So that is taken down before, and put up again, at its addresses, once its owner has its own again: the owner gives
 * descriptors of the parts, which lie in a socket until who restores both has sent it on.
 */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>

#include "agent.h"
#include "alloc.h"
#include "rights.h"
#include "share.h"

static struct link links[MOST_LINKS];

/* The beginning of a message: these are parts of a memory. */
struct given {
	char owner[24];
	uint64_t number, first;
};

bool share_is(const struct memory *m) { return m->number && !m->ending; }

bool share_add(struct sharing *s, const struct memory *m, bool movable)
{
	if (s->count == MOST_LINKS)
		return false;
	struct link *l = &links[s->count++];
	*l = (struct link){.number = m->number, .opened = m->opened != 0, .movable = movable};
	memcpy(l->owner, m->opened ? m->owner : ipc_name(), sizeof l->owner);
	s->links = (uintptr_t)links;
	return true;
}

static bool give(const struct memory *m)
{
	struct given what = {.number = m->number};
	bool done = true;

	memcpy(what.owner, ipc_name(), sizeof what.owner);
	for (; what.first < m->count && done; what.first += BATCH) {
		int list[BATCH];
		size_t n = 0;
		while (done && n < BATCH && what.first + n < m->count)
			if ((done = !driver.cuMemExportToShareableHandle(&list[n], m->parts[what.first + n], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)))
				n++;
		done = done && rights_send(&what, sizeof what, list, n);
		while (n)
			close(list[--n]);
		agent_progress();
	}
	return done;
}

int share_give(void)
{
	bool all = rights_open() >= 0;

	for (const struct memory *m = memory_first(); m && all; m = m->next)
		if (share_is(m) && !m->opened)
			all = !m->out && give(m);
	return rights_leave(all);
}

static bool waits_for(const struct memory *m, const struct given *what)
{
	return share_is(m) && m->opened && m->out && m->number == what->number && !memcmp(m->owner, what->owner, sizeof m->owner);
}

static void drop(struct memory *m)
{
	while (m->taken)
		driver.cuMemRelease(m->parts[--m->taken]);
}

static CUresult take(struct memory *m, const struct given *what, const int *list, size_t n, CUresult (*put_up)(struct memory *))
{
	CUresult r = m->taken == what->first && n <= m->count - m->taken ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	for (size_t i = 0; i < n && !r; i++)
		if (!(r = driver.cuMemImportFromShareableHandle(&m->parts[m->taken], (void *)(intptr_t)list[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)))
			m->taken++;
	if (!r && m->taken == m->count && !(r = put_up(m))) {
		m->out = false;
		m->taken = 0;
	}
	if (r)
		drop(m);
	return r;
}

CUresult share_take(CUresult (*put_up)(struct memory *m))
{
	struct given what;
	int list[BATCH];
	size_t n;
	CUresult r = rights_take() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	while (!r && (n = rights_receive(&what, sizeof what, list))) {
		for (struct memory *m = memory_first(); m && !r; m = m->next)
			if (waits_for(m, &what))
				r = take(m, &what, list, n, put_up);
		while (n)
			close(list[--n]);
		agent_progress();
	}
	for (struct memory *m = memory_first(); m; m = m->next)
		if (m->opened)
			drop(m); /* of which not all came */
	rights_hang_up();
	return r;
}
