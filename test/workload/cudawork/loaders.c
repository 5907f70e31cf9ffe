#include "loaders.h"

#include <errno.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "report.h"

/* How a loader waits for its work, and does it. */
enum kind {
	POLLS,  /* in poll, and then in read */
	SLEEPS, /* in a futex, for shared memory */
	FLOODS, /* in write: its pipe is always full */
	DEEP,   /* in read; a child of its own has the answers */
	FORKS,  /* in read; makes a child for each answer */
	KINDS,
};

struct shared {
	sem_t asked, answered;
	uint64_t tick, answer;
};

struct loader {
	enum kind kind;
	int number;
	pid_t pid;
	int request, answer; /* our ends */
	uint64_t flooded;
	struct shared *shared;
};

static struct loader loaders[MAX_LOADERS];
static int count;

#define OWN_WORDS 16384

static uint64_t answer_to(int number, uint64_t tick)
{
	return tick * 2654435761u + 31u * number;
}

/* A loader's own memory, which nobody else changes. */
static uint32_t *own_memory(int number)
{
	uint32_t *own = malloc(OWN_WORDS * sizeof(*own));

	if (!own)
		_exit(EXIT_USAGE);
	for (int i = 0; i < OWN_WORDS; i++)
		own[i] = number + i;
	return own;
}

static int memory_good(const volatile uint32_t *own, int number)
{
	for (int i = 0; i < OWN_WORDS; i++)
		if (own[i] != (uint32_t)(number + i))
			return 0;
	return 1;
}

static int get(int fd, uint64_t *value)
{
	for (size_t done = 0; done < sizeof(*value);) {
		ssize_t n = read(fd, (char *)value + done, sizeof(*value) - done);

		if (n <= 0 && !(n < 0 && errno == EINTR))
			return -1;
		if (n > 0)
			done += n;
	}
	return 0;
}

static int put(int fd, uint64_t value)
{
	for (size_t done = 0; done < sizeof(value);) {
		ssize_t n = write(fd, (char *)&value + done, sizeof(value) - done);

		if (n <= 0 && !(n < 0 && errno == EINTR))
			return -1;
		if (n > 0)
			done += n;
	}
	return 0;
}

/* Answers until the other side is gone. */
static void serve(enum kind kind, int number, int request, int answer)
{
	uint32_t *own = own_memory(number);
	uint64_t tick;

	for (;;) {
		struct pollfd asked = {.fd = request, .events = POLLIN};
		uint64_t value;

		if (kind == POLLS && poll(&asked, 1, -1) < 0 && errno != EINTR)
			_exit(EXIT_USAGE);
		if (get(request, &tick))
			_exit(EXIT_GOOD);
		value = memory_good(own, number) ? answer_to(number, tick) : 0;
		if (kind == FORKS) {
			pid_t pid = fork();
			int status;

			if (!pid)
				_exit(put(answer, value) ? EXIT_USAGE : EXIT_GOOD);
			if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
				_exit(EXIT_USAGE);
		} else if (put(answer, value)) {
			_exit(EXIT_GOOD);
		}
	}
}

static void flood(int number, int answer)
{
	uint32_t *own = own_memory(number);

	for (uint64_t i = 0;; i++)
		if (put(answer, memory_good(own, number) ? answer_to(number, i) : 0))
			_exit(EXIT_GOOD);
}

static void sleep_for(int number, struct shared *s)
{
	uint32_t *own = own_memory(number);

	for (;;) {
		while (sem_wait(&s->asked))
			;
		s->answer = memory_good(own, number) ? answer_to(number, s->tick) : 0;
		sem_post(&s->answered);
	}
}

static void end_with(pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(EXIT_USAGE);
}

/* Passes on what a child of its own answers. */
static void relay(int number, int request, int answer)
{
	pid_t self = getpid();
	uint64_t tick, value;
	int down[2], up[2];

	if (pipe(down) || pipe(up))
		_exit(EXIT_USAGE);
	switch (fork()) {
	case -1:
		_exit(EXIT_USAGE);
	case 0:
		end_with(self);
		close(down[1]);
		close(up[0]);
		serve(DEEP, number, down[0], up[1]);
	}
	close(down[0]);
	close(up[1]);
	while (!get(request, &tick) && !put(down[1], tick) && !get(up[0], &value) && !put(answer, value))
		;
	_exit(EXIT_GOOD);
}

static void run(const struct loader *l, int request, int answer)
{
	prctl(PR_SET_NAME, "loader");
	switch (l->kind) {
	case SLEEPS:
		sleep_for(l->number, l->shared);
		break;
	case FLOODS:
		flood(l->number, answer);
		break;
	case DEEP:
		relay(l->number, request, answer);
		break;
	default:
		serve(l->kind, l->number, request, answer);
	}
	_exit(EXIT_USAGE);
}

static void start(struct loader *l, pid_t parent)
{
	int down[2], up[2];

	l->shared = mmap(NULL, sizeof(*l->shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (l->shared == MAP_FAILED || sem_init(&l->shared->asked, 1, 0) || sem_init(&l->shared->answered, 1, 0) || pipe(down) || pipe(up))
		die(EXIT_USAGE, "--loaders: %s", strerror(errno));
	l->pid = fork();
	if (l->pid < 0)
		die(EXIT_USAGE, "--loaders: cannot fork");
	if (!l->pid) {
		end_with(parent);
		/* Not those of its siblings either: each notices when we are gone. */
		for (int i = 0; i < count; i++) {
			close(loaders[i].request);
			close(loaders[i].answer);
		}
		close(down[1]);
		close(up[0]);
		run(l, down[0], up[1]);
	}
	close(down[0]);
	close(up[1]);
	l->request = down[1];
	l->answer = up[0];
}

void loaders_start(long n, int first)
{
	for (long i = 0; i < n; i++) {
		struct loader *l = &loaders[i];

		l->kind = (first + i) % KINDS;
		l->number = i + 1;
		start(l, getpid());
		count++;
	}
}

static void expect(const struct loader *l, uint64_t tick, uint64_t got)
{
	if (got != answer_to(l->number, tick))
		bad("loader %d (pid %d) answered %llu at tick %llu and should answer %llu", l->number, (int)l->pid,
		    (unsigned long long)got, (unsigned long long)tick, (unsigned long long)answer_to(l->number, tick));
}

/* All are asked before the first is waited for: they work at the same time. */
void loaders_ask(uint64_t tick)
{
	for (int i = 0; i < count; i++) {
		struct loader *l = &loaders[i];

		if (l->kind == SLEEPS) {
			l->shared->tick = tick;
			sem_post(&l->shared->asked);
		} else if (l->kind != FLOODS && put(l->request, tick)) {
			die(EXIT_USAGE, "loader %d is gone", l->number);
		}
	}
	for (int i = 0; i < count; i++) {
		struct loader *l = &loaders[i];
		uint64_t got;

		if (l->kind == SLEEPS) {
			while (sem_wait(&l->shared->answered))
				;
			expect(l, tick, l->shared->answer);
			continue;
		}
		for (int k = l->kind == FLOODS ? 16 : 1; k; k--) {
			if (get(l->answer, &got))
				die(EXIT_USAGE, "loader %d is gone", l->number);
			expect(l, l->kind == FLOODS ? l->flooded++ : tick, got);
		}
	}
}

void loaders_end(void)
{
	for (int i = 0; i < count; i++) {
		kill(loaders[i].pid, SIGKILL);
		waitpid(loaders[i].pid, NULL, 0);
	}
}
