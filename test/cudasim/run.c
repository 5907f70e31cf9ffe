/* run.c: cudasim-run: makes or joins a simulated host and runs a command on it. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"
#include "mkhost.h"

static const struct { const char *series, *version; } drivers[] = {
#define DRIVER(series, module, cuda) {#series, module},
	SIM_DRIVERS(DRIVER)
#undef DRIVER
};

#define TEXT(word) #word
#define TEXT_OF(macro) TEXT(macro)
#define DEFAULT TEXT_OF(SIM_DEFAULT)
#define DRIVER(series, module, cuda) " " #series
#define KNOWN SIM_DRIVERS(DRIVER)

static void usage(FILE *to)
{
	fputs("usage: cudasim-run [--root DIR] [--gpus N] [--mib-per-gpu M] [--uuid-seed S]\n"
	      "                   [--model NAME] [--driver SERIES] [--] [COMMAND...]\n"
	      "\n"
	      "Makes a simulated NVIDIA host, or joins the one at DIR, sets the environment for it\n"
	      "and executes COMMAND. Without COMMAND prints that environment for a shell to eval.\n"
	      "\n"
	      "  --root DIR        the host; made if it does not exist or is empty\n"
	      "                    (default: a new directory below $TMPDIR or /tmp, which is kept)\n"
	      "  --gpus N          number of GPUs, 1 to 16 (default 1; when joining must agree)\n"
	      "  --mib-per-gpu M   memory of each GPU in MiB (default 4096; when joining must agree)\n"
	      "  --peer-limit-mib M  size from which on an allocation that another GPU accesses\n"
	      "                    does not come back from a checkpoint (default 512, as measured)\n"
	      "  --uuid-seed S     the same S gives the same UUIDs (default: random)\n"
	      "  --model NAME      default \"NVIDIA H200\"\n"
	      "  --driver SERIES   driver to simulate (default: $CUDASIM_DRIVER, else " DEFAULT "), one of" KNOWN "\n", to);
}

static void die(const char *message, const char *value)
{
	fprintf(stderr, "cudasim-run: %s%s%s\n", message, value ? ": " : "", value ? value : "");
	exit(2);
}

static unsigned long number(const char *text, const char *option, unsigned long most)
{
	char *end;
	errno = 0;
	unsigned long n = strtoul(text, &end, 10);
	if (errno || *text < '0' || *text > '9' || *end || !n || n > most) {
		fprintf(stderr, "cudasim-run: %s: %s is not a number from 1 to %lu\n", option, text, most);
		exit(2);
	}
	return n;
}

static const char *driver_version(const char *series)
{
	for (size_t i = 0; i < sizeof drivers / sizeof *drivers; i++)
		if (!strcmp(drivers[i].series, series))
			return drivers[i].version;
	die("unknown driver series (one of" KNOWN ")", series);
	return NULL;
}

/* An existing host is what it is: options may only confirm it. */
static void check_joined(const struct sim_host *h, const struct host_plan *asked)
{
	char text[128];
	if (asked->gpus && asked->gpus != h->ngpus) {
		snprintf(text, sizeof text, "%d, not %d", h->ngpus, asked->gpus);
		die("the host has another number of GPUs", text);
	}
	if (asked->mib_per_gpu && asked->mib_per_gpu << 20 != h->gpu[0].bytes)
		die("the host's GPUs have another size than --mib-per-gpu", NULL);
	if (asked->peer_limit_mib && asked->peer_limit_mib << 20 != h->peer_limit)
		die("the host has another --peer-limit-mib", NULL);
	if (asked->driver && strcmp(asked->driver, h->driver))
		die("the host has another driver", h->driver);
	if (asked->model && strcmp(asked->model, h->model))
		die("the host has another model", h->model);
}

static char *joined(const char *fmt, const char *a, const char *b)
{
	char *out;
	if (asprintf(&out, fmt, a, b) < 0)
		die("out of memory", NULL);
	return out;
}

/* The directory that has libcuda.so.1 for the host's driver. */
static char *library_dir(const char *driver)
{
	char self[PATH_MAX], series[4] = {0};
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	if (n < 0)
		die("cannot read /proc/self/exe", strerror(errno));
	self[n] = 0;
	*strrchr(self, '/') = 0;
	memcpy(series, driver, 3);
	char *dir = !strcmp(series, DEFAULT) ? joined("%s%s", self, "") : joined("%s/%s", self, series);
	char *library = joined("%s/%s", dir, "libcuda.so.1");
	if (access(library, R_OK))
		die("no simulated driver: run make -C test/cudasim", library);
	free(library);
	return dir;
}

/* Sets a variable, and prints it when there is no command to run. */
static void export(const char *name, const char *value, bool print)
{
	setenv(name, value, 1);
	if (!print)
		return;
	printf("export %s='", name);
	for (; *value; value++)
		if (*value == '\'')
			fputs("'\\''", stdout);
		else
			putchar(*value);
	puts("'");
}

static void set_environment(const struct sim_host *h, bool print)
{
	char series[4] = {0};
	char *dir = library_dir(h->driver);
	const char *before = getenv("LD_LIBRARY_PATH");
	memcpy(series, h->driver, 3);
	export("CUDASIM_ROOT", h->root, print);
	export("CUDASIM_DRIVER", series, print);
	export("CUCRIU_DRIVER_ROOT", h->root, print);
	export("CUCRIU_LIBCUDA", joined("%s/%s", dir, "libcuda.so.1"), print);
	export("CUCRIU_RUN_DIR", joined("%s/%s", h->root, "run"), print);
	export("LD_LIBRARY_PATH", before && *before ? joined("%s:%s", dir, before) : dir, print);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"root", required_argument, NULL, 'r'},	 {"gpus", required_argument, NULL, 'g'},
		{"mib-per-gpu", required_argument, NULL, 'm'}, {"uuid-seed", required_argument, NULL, 's'},
		{"model", required_argument, NULL, 'n'}, {"driver", required_argument, NULL, 'd'},
		{"peer-limit-mib", required_argument, NULL, 'p'}, {"help", no_argument, NULL, 'h'},	 {NULL, 0, NULL, 0},
	};
	struct host_plan asked = {0};
	const char *root = NULL, *driver = getenv("CUDASIM_DRIVER");
	for (int c; (c = getopt_long(argc, argv, "+h", options, NULL)) != -1;) {
		switch (c) {
		case 'r': root = optarg; break;
		case 'g': asked.gpus = (int)number(optarg, "--gpus", SIM_MAX_GPUS); break;
		case 'm': asked.mib_per_gpu = number(optarg, "--mib-per-gpu", 1u << 30); break;
		case 'p': asked.peer_limit_mib = number(optarg, "--peer-limit-mib", 1u << 30); break;
		case 's': asked.seed = optarg; break;
		case 'n': asked.model = optarg; break;
		case 'd': driver = optarg; break;
		case 'h': usage(stdout); return 0;
		default: usage(stderr); return 2;
		}
	}
	if (asked.model && (!*asked.model || strlen(asked.model) > 60 || strchr(asked.model, '\n')))
		die("--model must be one line of 1 to 60 bytes", NULL);
	if (driver && *driver)
		asked.driver = driver_version(driver);

	bool chosen = !root;
	char template[PATH_MAX], real[PATH_MAX];
	if (chosen) {
		const char *tmp = getenv("TMPDIR");
		snprintf(template, sizeof template, "%s/cudasim-XXXXXX", tmp && *tmp ? tmp : "/tmp");
		if (!(root = mkdtemp(template)))
			die("cannot make a root directory", template);
		chmod(root, 0755);
	}
	struct host_plan plan = asked;
	if (!plan.gpus)
		plan.gpus = 1;
	if (!plan.mib_per_gpu)
		plan.mib_per_gpu = 4096;
	if (!plan.model)
		plan.model = "NVIDIA H200";
	if (!plan.driver)
		plan.driver = driver_version(DEFAULT);
	bool made;
	if (host_make(root, &plan, &made))
		return 2;
	if (!realpath(root, real))
		die("root", strerror(errno));
	struct sim_host h;
	int err = host_load(&h, real);
	if (err)
		die("not a simulated host (damaged " SIM_HOST_FILE ", or a path longer than 1023 bytes)", real);
	if (!made)
		check_joined(&h, &asked);

	fprintf(stderr, "cudasim root: %s\n", h.root);
	if (chosen)
		fprintf(stderr, "cudasim: the root is kept; join it with: %s --root %s -- COMMAND\n", argv[0], h.root);
	bool print = optind == argc;
	set_environment(&h, print);
	if (print)
		return 0;
	execvp(argv[optind], argv + optind);
	fprintf(stderr, "cudasim-run: %s: %s\n", argv[optind], strerror(errno));
	return errno == ENOENT ? 127 : 126;
}
