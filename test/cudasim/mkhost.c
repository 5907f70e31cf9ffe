/* mkhost.c: making a simulated host. */
#define _GNU_SOURCE
#include "mkhost.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "host.h"

#define FIRST_BUS 0x41

static int complain(const char *what, const char *path)
{
	fprintf(stderr, "cudasim-run: %s %s: %s\n", what, path, strerror(errno));
	return -1;
}

static int make_dir(const char *root, const char *fmt, ...)
{
	char path[SIM_FULLPATH];
	int n = snprintf(path, sizeof path, "%s/", root);
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(path + n, sizeof path - (size_t)n, fmt, ap);
	va_end(ap);
	for (char *p = path + n; *p; p++)
		if (*p == '/') {
			*p = 0;
			if (mkdir(path, 0755) && errno != EEXIST)
				return complain("cannot make directory", path);
			*p = '/';
		}
	return mkdir(path, 0755) && errno != EEXIST ? complain("cannot make directory", path) : 0;
}

static int make_file(const char *root, const char *name, const char *text)
{
	char path[SIM_FULLPATH];
	snprintf(path, sizeof path, "%s/%s", root, name);
	FILE *f = fopen(path, "we");
	if (!f || fputs(text, f) < 0 || fclose(f))
		return complain("cannot write", path);
	return 0;
}

static int make_node(const char *root, const char *name, unsigned major_number, unsigned minor_number)
{
	char path[SIM_FULLPATH];
	snprintf(path, sizeof path, "%s/dev/%s", root, name);
	if (mknod(path, S_IFCHR | 0666, makedev(major_number, minor_number)) == 0)
		return chmod(path, 0666);
	complain("cannot make device node", path);
	if (errno == EPERM)
		fputs("cudasim-run: device nodes need root with CAP_MKNOD\n", stderr);
	return -1;
}

/*
 * nvidiactl must be a character device that opens without its hardware and that
 * CRIU refuses to dump. CRIU knows memory devices, terminals and tun; any
 * other misc device is refused.
 */
static int make_control(const char *root)
{
	static const unsigned misc_minor[] = {229 /* fuse */, 235 /* autofs */, 259 /* cpu_dma_latency or dynamic */,
					      232 /* kvm */, 237 /* loop-control */, 234 /* btrfs-control */, 227 /* mcelog */};
	char path[SIM_FULLPATH];
	snprintf(path, sizeof path, "%s/dev/nvidiactl", root);
	for (size_t i = 0; i < sizeof misc_minor / sizeof *misc_minor; i++) {
		if (make_node(root, "nvidiactl", 10, misc_minor[i]))
			return -1;
		int fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd >= 0)
			return close(fd);
		unlink(path);
	}
	fprintf(stderr, "cudasim-run: no misc device opens at %s (%s): is its file system mounted nodev, or are devices "
			"denied by a cgroup? Choose another --root.\n", path, strerror(errno));
	return -1;
}

static uint64_t mix(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

/* Reproducible from a seed, else random; in the form of a version 4 UUID. */
static int make_uuid(CUuuid *u, const char *seed, int gpu)
{
	if (seed) {
		uint64_t state = 1469598103934665603ull + (uint64_t)gpu;
		for (; *seed; seed++)
			state = (state ^ (unsigned char)*seed) * 1099511628211ull;
		uint64_t half[2] = {mix(&state), mix(&state)};
		memcpy(u->bytes, half, sizeof half);
	} else if (getrandom(u->bytes, sizeof u->bytes, 0) != sizeof u->bytes) {
		return complain("no random numbers for", "UUIDs");
	}
	u->bytes[6] = (unsigned char)((u->bytes[6] & 0x0f) | 0x40);
	u->bytes[8] = (unsigned char)((u->bytes[8] & 0x3f) | 0x80);
	return 0;
}

static int make_gpu(const char *root, const struct host_plan *plan, int gpu, char *config, size_t size)
{
	char name[64], pci[16], uuid[SIM_UUID_TEXT], text[1024];
	CUuuid u;
	if (make_uuid(&u, plan->seed, gpu))
		return -1;
	uuid_format(&u, uuid);
	snprintf(pci, sizeof pci, "0000:%02x:00.0", (unsigned)(FIRST_BUS + gpu) & 0xff);
	snprintf(text, sizeof text,
		 "Model: \t\t %s\nIRQ:   \t\t %d\nGPU UUID: \t %s\nVideo BIOS: \t 96.00.d9.00.01\nBus Type: \t PCIe\n"
		 "DMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t %s\nDevice Minor: \t %d\n"
		 "GPU Firmware: \t %s\nGPU Excluded:\t No\n",
		 plan->model, 64 + gpu, uuid, pci, gpu, plan->driver);
	if (make_dir(root, "proc/driver/nvidia/gpus/%s", pci) || make_dir(root, "gpu/%d", gpu))
		return -1;
	snprintf(name, sizeof name, "proc/driver/nvidia/gpus/%s/information", pci);
	if (make_file(root, name, text))
		return -1;
	snprintf(name, sizeof name, "nvidia%d", gpu);
	if (make_node(root, name, SIM_NVIDIA_MAJOR, (unsigned)gpu))
		return -1;
	size_t n = strlen(config);
	snprintf(config + n, size - n, "gpu %s %s %llu\n", uuid, pci, (unsigned long long)plan->mib_per_gpu << 20);
	return 0;
}

/* cudasim.host comes last: a directory that has it is a whole host. */
static int make_all(const char *root, const struct host_plan *plan)
{
	char config[4096], text[512], from[SIM_FULLPATH], to[SIM_FULLPATH];
	struct utsname u;
	snprintf(config, sizeof config, "cudasim-host 1\ndriver %s\nmodel %s\n", plan->driver, plan->model);
	if (plan->peer_limit_mib) {
		size_t n = strlen(config);
		snprintf(config + n, sizeof config - n, "peer-limit %llu\n", (unsigned long long)plan->peer_limit_mib << 20);
	}
	static const char *const dirs[] = {"dev", "gpu", "procs", "imports", "collective", "run"};
	for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
		if (make_dir(root, "%s", dirs[i]))
			return -1;
	for (int i = 0; i < plan->gpus; i++)
		if (make_gpu(root, plan, i, config, sizeof config))
			return -1;
	uname(&u);
	snprintf(text, sizeof text,
		 "NVRM version: NVIDIA UNIX Open Kernel Module for %s  %s  Release Build  (cudasim@localhost)\n"
		 "GCC version:  gcc version %s\n", u.machine, plan->driver, __VERSION__);
	if (make_file(root, "proc/driver/nvidia/version", text) || make_control(root) ||
	    make_node(root, "nvidia-uvm", 511, 0) || make_node(root, "nvidia-memory", 1, 5 /* zero: it can be mapped */) || make_file(root, SIM_HOST_FILE ".new", config))
		return -1;
	snprintf(from, sizeof from, "%s/" SIM_HOST_FILE ".new", root);
	snprintf(to, sizeof to, "%s/" SIM_HOST_FILE, root);
	return rename(from, to) ? complain("cannot make", to) : 0;
}

static bool empty(const char *root)
{
	DIR *d = opendir(root);
	bool nothing = true;
	for (struct dirent *e; d && (e = readdir(d));)
		nothing &= !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");
	if (d)
		closedir(d);
	return nothing;
}

int host_make(const char *root, const struct host_plan *plan, bool *made)
{
	char path[SIM_FULLPATH];
	if (mkdir(root, 0755) && errno != EEXIST)
		return complain("cannot make root", root);
	int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || flock(fd, LOCK_EX)) /* two may start on the same new root at once */
		return complain("cannot open root", root);
	snprintf(path, sizeof path, "%s/" SIM_HOST_FILE, root);
	int r = 0;
	*made = access(path, F_OK) != 0;
	if (*made && !empty(root)) {
		fprintf(stderr, "cudasim-run: %s is neither empty nor a simulated host\n", root);
		r = -1;
	} else if (*made) {
		r = make_all(root, plan);
	}
	close(fd);
	return r;
}
