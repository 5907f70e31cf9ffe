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

/* A message. A descriptor of each part goes along. */
struct given {
	char owner[24];
	struct {
		uint64_t memory, part;
	} which[BATCH];
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

static bool give(const struct memory *m, uint64_t *from, struct given *given, struct outgoing *o)
{
	for (size_t part = 0; part < m->count && o->count < BATCH; part++) {
		if (*from) {
			--*from;
			continue;
		}
		if (driver.cuMemExportToShareableHandle(&o->list[o->count], m->parts[part], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
			return false;
		given->which[o->count].memory = m->number;
		given->which[o->count++].part = part;
	}
	return true;
}

int share_give(uint64_t from, uint64_t *count)
{
	struct given given = {.owner = {0}};
	struct outgoing parts = {.data = &given, .size = sizeof given};
	bool all = rights_open() >= 0;

	memcpy(given.owner, ipc_name(), sizeof given.owner);
	for (const struct memory *m = memory_first(); m && all; m = m->next)
		if (share_is(m) && !m->opened)
			all = !m->out && give(m, &from, &given, &parts);
	*count = parts.count;
	all = rights_send(&parts) && all;
	agent_progress();
	return rights_leave(all);
}

bool share_try(void)
{
	bool all = true;

	for (const struct memory *m = memory_first(); m && all; m = m->next)
		if (share_is(m) && m->opened) {
			all = rights_try();
			break;
		}
	for (uint64_t from = 0, count = 1; count && all; from += count) {
		all = share_give(from, &count) >= 0;
		rights_hang_up();
	}
	return all;
}

static bool waits_for(const struct memory *m, const char *owner, uint64_t number)
{
	return share_is(m) && m->opened && m->out && m->number == number && !memcmp(m->owner, owner, sizeof m->owner);
}

static void drop(struct memory *m)
{
	while (m->taken)
		driver.cuMemRelease(m->parts[--m->taken]);
}

static CUresult take(struct memory *m, uint64_t part, int fd, CUresult (*put_up)(struct memory *))
{
	if (part < m->taken) /* it came before, when somebody was killed */
		return CUDA_SUCCESS;
	CUresult r = part == m->taken && part < m->count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	if (!r && !(r = driver.cuMemImportFromShareableHandle(&m->parts[part], (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)))
		m->taken++;
	if (!r && m->taken == m->count && !(r = put_up(m))) {
		m->out = false;
		m->taken = 0;
	}
	if (r)
		drop(m);
	return r;
}

static CUresult take_message(CUresult (*put_up)(struct memory *m))
{
	struct given given;
	int list[BATCH];
	size_t n = rights_receive(&given, sizeof given, list);
	CUresult r = n ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM; /* a message came, and some of its descriptors may not be had */

	for (size_t i = 0; i < n && !r; i++)
		for (struct memory *m = memory_first(); m && !r; m = m->next)
			if (waits_for(m, given.owner, given.which[i].memory))
				r = take(m, given.which[i].part, list[i], put_up);
	while (n)
		close(list[--n]);
	agent_progress();
	return r;
}

CUresult share_take(uint64_t messages, CUresult (*put_up)(struct memory *m))
{
	CUresult r = rights_take() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	while (!r && messages--)
		r = take_message(put_up);
	rights_hang_up();
	return r;
}
