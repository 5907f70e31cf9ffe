#include "peers.h"

#include <stdio.h>
#include <string.h>

#include "files.h"
#include "report.h"

static struct {
	enum peers wanted;
	int on;
} run;

/* Who has access to gpus[i] when it is on, as an index; -1: nobody. */
static int accessor(int n, int i)
{
	if (n < 2 || run.wanted == PEERS_NONE || (run.wanted == PEERS_ONE && i != 1))
		return -1;
	return (i + n - 1) % n;
}

static CUresult set(struct gpu *gpus, int n, int on)
{
	CUresult r = CUDA_SUCCESS;

	for (int i = 0; i < n && !r; i++)
		if (accessor(n, i) >= 0)
			r = memory_allow(&gpus[i], &gpus[accessor(n, i)], on);
	if (!r)
		run.on = on;
	return r;
}

void peers_connect(struct gpu *gpus, int n, enum peers peers, int now)
{
	int can = 0;

	run.wanted = peers;
	if (peers == PEERS_NONE)
		return;
	if (n < 2)
		die(EXIT_USAGE, "--peer: needs two GPUs (see --gpus)");
	need(cu.DeviceCanAccessPeer, "cuDeviceCanAccessPeer", "--peer");
	must(cu.DeviceCanAccessPeer(&can, gpus[0].dev, gpus[1].dev), "cuDeviceCanAccessPeer");
	if (!can)
		die(EXIT_CUDA, "--peer: GPU %d cannot access GPU %d's memory", gpus[0].ordinal, gpus[1].ordinal);
	if (now)
		must(set(gpus, n, 1), "peer access");
}

struct gpu *peers_of(struct gpu *gpus, int n, int i)
{
	int by = run.on ? accessor(n, i) : -1;

	return by < 0 ? NULL : &gpus[by];
}

struct gpu *peers_stepper(struct gpu *gpus, int n, int i, uint64_t tick)
{
	struct gpu *by = tick % 2 ? peers_of(gpus, n, i) : NULL;

	return by ? by : &gpus[i];
}

void peers_answer(const struct role *r, struct gpu *gpus, int n)
{
	char want[2] = "", text[32];
	int on, len;
	CUresult result;

	if (file_read(r->dir, "peer", want, 2))
		return;
	on = !memcmp(want, "on", 2);
	result = set(gpus, n, on);
	len = snprintf(text, sizeof(text), "{\"on\":%s,\"result\":%d}\n", on ? "true" : "false", result);
	if (!file_write(r->dir, "peered", text, len))
		file_remove(r->dir, "peer");
}
