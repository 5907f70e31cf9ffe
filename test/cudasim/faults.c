/*
 * faults.c: reads fault rules and says what they ask for. No malloc and no
 * stdio streams: the restore thread runs it while the job is stopped.
 */
#define _GNU_SOURCE
#include "faults.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "host.h"

#define MAX_RULES 64
#define MAX_TEXT 8192
#define ANY_OP OP_COUNT

static const char *const op_names[] = {"state", "tid", "lock", "checkpoint", "restore", "unlock", "any"};

struct rule {
	int op;
	struct fault_plan plan;
	bool has_pid;
	long pid;
	char comm[16];
	unsigned long skip, times; /* times 0: always */
};

static char env_text[MAX_TEXT];
static uint32_t env_used[MAX_RULES];

static bool parse_number(const char *word, unsigned long *out)
{
	char *end;
	if (!word || *word < '0' || *word > '9')
		return false;
	*out = strtoul(word, &end, 10);
	return !*end;
}

static bool parse_duration(const char *word, uint64_t *ns)
{
	char *end;
	if (!word || *word < '0' || *word > '9')
		return false;
	unsigned long long n = strtoull(word, &end, 10);
	uint64_t unit = !strcmp(end, "us") ? 1000u : !strcmp(end, "ms") ? 1000000u : !strcmp(end, "s") ? 1000000000u : 0;
	*ns = n * unit;
	return unit != 0;
}

/* The rule in TEXT (which is cut up), or what is wrong with it. */
static const char *parse_rule(char *text, struct rule *r)
{
	char *state = NULL;
	memset(r, 0, sizeof *r);
	char *word = strtok_r(text, " \t\r", &state);
	for (r->op = 0; r->op <= ANY_OP && strcmp(word, op_names[r->op]); r->op++)
		;
	if (r->op > ANY_OP)
		return "the first word must be state, tid, lock, checkpoint, restore, unlock or any";
	unsigned long n;
	word = strtok_r(NULL, " \t\r", &state);
	if (!word) {
		return "no action: delay, return, crash, hang, stick, lose or kill-controller";
	} else if (!strcmp(word, "delay")) {
		if (!parse_duration(strtok_r(NULL, " \t\r", &state), &r->plan.delay_ns))
			return "delay needs a duration such as 20us, 500ms or 2s";
	} else if (!strcmp(word, "return")) {
		if (!parse_number(strtok_r(NULL, " \t\r", &state), &n) || n > 9999)
			return "return needs a CUresult number";
		r->plan.result = (int32_t)n;
		r->plan.has_result = true;
	} else if (!strcmp(word, "crash")) {
		r->plan.crash = true;
	} else if (!strcmp(word, "hang")) {
		r->plan.hang = true;
	} else if (!strcmp(word, "stick")) {
		r->plan.stick = true;
	} else if (!strcmp(word, "lose")) {
		if (r->op != OP_RESTORE)
			return "lose belongs to restore";
		r->plan.lose = true;
	} else if (!strcmp(word, "kill-controller")) {
		r->plan.kill_controller = true;
	} else {
		return "unknown action; known are delay, return, crash, hang, stick, lose, kill-controller";
	}
	if (r->op == OP_TID && !r->plan.delay_ns && !r->plan.has_result)
		return "tid does not reach the target: only delay and return";
	while ((word = strtok_r(NULL, " \t\r", &state))) {
		if (!strcmp(word, "after") && r->plan.has_result) {
			r->plan.after = true;
			continue;
		}
		char *value = strtok_r(NULL, " \t\r", &state);
		if (!strcmp(word, "pid") && parse_number(value, &n)) {
			r->has_pid = true;
			r->pid = (long)n;
		} else if (!strcmp(word, "comm") && value) {
			snprintf(r->comm, sizeof r->comm, "%s", value);
		} else if (!strcmp(word, "times") && parse_number(value, &n) && n > 0) {
			r->times = n;
		} else if (!strcmp(word, "skip") && parse_number(value, &n)) {
			r->skip = n;
		} else {
			return "modifiers are pid N, comm NAME, times N, skip N, and after with return";
		}
	}
	return NULL;
}

/* Does the target's process name fit? Read from /proc, the asker may be the controller. */
static bool comm_fits(const char *comm, int pid)
{
	char path[64], text[32];
	snprintf(path, sizeof path, "/proc/%d/comm", pid);
	if (read_file(path, text, sizeof text) <= 0)
		return false;
	text[strcspn(text, "\n")] = 0;
	return !strcmp(text, comm);
}

static bool executes(const struct rule *r, enum fault_side side, enum sim_op op)
{
	bool controller = op == OP_TID || r->plan.kill_controller;
	return controller == (side == SIDE_CONTROLLER);
}

static void merge(struct fault_plan *to, const struct fault_plan *from)
{
	to->delay_ns += from->delay_ns;
	if (from->has_result && !to->has_result) {
		to->has_result = true;
		to->result = from->result;
		to->after = from->after;
	}
	to->crash |= from->crash;
	to->hang |= from->hang;
	to->stick |= from->stick;
	to->lose |= from->lose;
	to->kill_controller |= from->kill_controller;
}

struct query {
	enum fault_side side;
	bool every_side; /* the controller's environment is its own to execute or to send */
	enum sim_op op;
	int pid, alias; /* alias: the same process in another namespace, seen by the asker */
	const char *source;
	bool report;
};

/* Goes through TEXT rule by rule; USED holds how often each has fitted so far. */
static bool apply(struct fault_plan *plan, char *text, const char *separators, uint32_t *used, const struct query *q)
{
	bool changed = false;
	int number = 0, line = 0;
	for (char *next, *rest = text; rest; rest = next) {
		next = strpbrk(rest, separators);
		if (next)
			*next++ = 0;
		line++;
		rest[strcspn(rest, "#")] = 0;
		if (!rest[strspn(rest, " \t\r")])
			continue;
		struct rule r;
		char copy[256];
		snprintf(copy, sizeof copy, "%s", rest);
		const char *wrong = number < MAX_RULES ? parse_rule(rest, &r) : "more than 64 rules";
		if (wrong) {
			if (q->report)
				sim_log("%s: rule %d ignored: \"%s\": %s", q->source, line, copy, wrong);
			continue;
		}
		uint32_t *count = &used[number++];
		if (r.op != ANY_OP && r.op != (int)q->op)
			continue;
		if (!q->every_side && !executes(&r, q->side, q->op))
			continue;
		if (r.has_pid && r.pid != q->pid && r.pid != q->alias)
			continue;
		if (r.comm[0] && !comm_fits(r.comm, q->side == SIDE_TARGET ? getpid() : q->pid))
			continue;
		uint32_t turn = __atomic_fetch_add(count, 1, __ATOMIC_RELAXED); /* controllers have threads */
		changed = true;
		if (turn >= r.skip && (!r.times || turn < r.skip + r.times))
			merge(plan, &r.plan);
	}
	return changed;
}

void faults_init(void)
{
	const char *text = getenv("CUDASIM_FAULTS");
	if (!text)
		return;
	snprintf(env_text, sizeof env_text, "%s", text);
	char copy[MAX_TEXT];
	memcpy(copy, env_text, sizeof copy);
	uint32_t used[MAX_RULES] = {0};
	struct fault_plan nothing = {0};
	struct query q = {.op = OP_COUNT, .source = "CUDASIM_FAULTS", .report = true};
	apply(&nothing, copy, ";\n", used, &q);
}

void faults_from_env(struct fault_plan *plan, enum fault_side side, enum sim_op op, int pid, int alias)
{
	if (!env_text[0])
		return;
	char copy[MAX_TEXT];
	memcpy(copy, env_text, sizeof copy);
	/* The two sides are different processes, each with its own environment. */
	struct query q = {side, side == SIDE_CONTROLLER, op, pid, alias, "CUDASIM_FAULTS", false};
	apply(plan, copy, ";\n", env_used, &q);
}

/* How often the rules of one version of the file have fitted, on the whole host. */
struct counts {
	uint64_t inode, size, mtime_ns;
	uint32_t used[MAX_RULES];
};

void faults_from_file(struct fault_plan *plan, const struct sim_host *h, enum fault_side side,
		      enum sim_op op, int pid, int alias, bool report)
{
	char path[SIM_FULLPATH], text[MAX_TEXT];
	host_path(h, path, "faults");
	struct stat st;
	if (!h->root[0] || stat(path, &st) || !st.st_size || read_file(path, text, sizeof text) <= 0)
		return;
	struct query q = {.side = side, .op = op, .pid = pid, .alias = alias, .source = path, .report = report};
	if (st.st_size >= MAX_TEXT && report)
		sim_log("%s: only the first %d bytes are read", path, MAX_TEXT - 1);
	struct counts c = {0}, fresh = {.inode = st.st_ino, .size = (uint64_t)st.st_size,
		.mtime_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec};
	char book[SIM_FULLPATH];
	host_path(h, book, "faults.count");
	int fd = open(book, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		sim_log("%s: %s", book, strerror(errno));
	/* Bounded, because its holder may have been stopped in the middle. */
	int tries = 2000;
	while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0 && --tries)
		nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
	if (!tries)
		sim_log("%s: not locked, its holder does not let go", book);
	if (fd < 0 || pread(fd, &c, sizeof c, 0) != sizeof c || c.inode != fresh.inode ||
	    c.size != fresh.size || c.mtime_ns != fresh.mtime_ns)
		c = fresh;
	if (apply(plan, text, "\n;", c.used, &q) && fd >= 0 && pwrite(fd, &c, sizeof c, 0) < 0)
		sim_log("%s: %s", book, strerror(errno));
	if (fd >= 0)
		close(fd);
}

uint64_t faults_version(const struct sim_host *h)
{
	char path[SIM_FULLPATH];
	struct stat st;
	host_path(h, path, "faults");
	if (stat(path, &st))
		return 0;
	return (uint64_t)st.st_ino * 31 + (uint64_t)st.st_size * 7 +
	       (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
}
