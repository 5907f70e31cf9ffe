/* host.c: reading a simulated host. */
#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

void sim_log(const char *fmt, ...)
{
	char line[SIM_FULLPATH + 512];
	int n = snprintf(line, sizeof line, "cudasim[%d]: ", getpid());
	va_list ap;
	va_start(ap, fmt);
	n += vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
	va_end(ap);
	if (n > (int)sizeof line - 2)
		n = sizeof line - 2;
	line[n++] = '\n';
	if (write(STDERR_FILENO, line, (size_t)n) < 0)
		return;
}

long read_file(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	size_t have = 0;
	while (have < size - 1) {
		ssize_t n = read(fd, buf + have, size - 1 - have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		have += (size_t)n;
	}
	close(fd);
	buf[have] = 0;
	return (long)have;
}

void host_path(const struct sim_host *h, char *out, const char *fmt, ...)
{
	size_t n = strnlen(h->root, SIM_PATH - 1);
	memcpy(out, h->root, n);
	out[n++] = '/';
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(out + n, SIM_FULLPATH - n, fmt, ap);
	va_end(ap);
}

void uuid_format(const CUuuid *u, char *out)
{
	static const char hex[] = "0123456789abcdef";
	memcpy(out, "GPU-", 4);
	out += 4;
	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*out++ = '-';
		*out++ = hex[u->bytes[i] >> 4];
		*out++ = hex[u->bytes[i] & 15];
	}
	*out = 0;
}

static int nibble(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

int uuid_parse(CUuuid *u, const char *text)
{
	if (!strncmp(text, "GPU-", 4))
		text += 4;
	for (int i = 0; i < 16; i++) {
		if (*text == '-')
			text++;
		int high = nibble(text[0]), low = high < 0 ? -1 : nibble(text[1]);
		if (low < 0)
			return -EINVAL;
		u->bytes[i] = (unsigned char)(high << 4 | low);
		text += 2;
	}
	return *text ? -EINVAL : 0;
}

/* One line of cudasim.host: "driver V", "model NAME", "peer-limit BYTES" or "gpu UUID PCI BYTES". */
static int host_line(struct sim_host *h, char *line)
{
	char *value = strchr(line, ' ');
	if (!value)
		return -EINVAL;
	*value++ = 0;
	if (!strcmp(line, "driver")) {
		snprintf(h->driver, sizeof h->driver, "%s", value);
	} else if (!strcmp(line, "model")) {
		snprintf(h->model, sizeof h->model, "%s", value);
	} else if (!strcmp(line, "peer-limit")) {
		h->peer_limit = strtoull(value, NULL, 10);
	} else if (!strcmp(line, "gpu") && h->ngpus < SIM_MAX_GPUS) {
		struct sim_gpu *g = &h->gpu[h->ngpus++];
		char *pci = strchr(value, ' ');
		char *bytes = pci ? strchr(pci + 1, ' ') : NULL;
		if (!bytes)
			return -EINVAL;
		*pci++ = 0;
		*bytes++ = 0;
		snprintf(g->pci, sizeof g->pci, "%s", pci);
		g->bytes = strtoull(bytes, NULL, 10);
		return uuid_parse(&g->uuid, value);
	} else {
		return -EINVAL;
	}
	return 0;
}

int host_load(struct sim_host *h, const char *root)
{
	char path[SIM_FULLPATH], text[4096];
	memset(h, 0, sizeof *h);
	h->peer_limit = SIM_PEER_LIMIT;
	if (!root || !*root || strlen(root) >= SIM_PATH)
		return -EINVAL;
	strcpy(h->root, root);
	host_path(h, path, SIM_HOST_FILE);
	long n = read_file(path, text, sizeof text);
	if (n < 0)
		return (int)n;
	char *line = text;
	for (int number = 0; line && *line; number++) {
		char *next = strchr(line, '\n');
		if (next)
			*next++ = 0;
		if (number == 0 ? strcmp(line, "cudasim-host 1") != 0 : host_line(h, line) != 0)
			return -EINVAL;
		line = next;
	}
	return h->ngpus ? 0 : -EINVAL;
}

uint32_t host_visible(const struct sim_host *h)
{
	char path[SIM_FULLPATH];
	uint32_t seen = 0;
	for (int i = 0; i < h->ngpus; i++) {
		struct stat st;
		host_path(h, path, "dev/nvidia%d", i);
		if (!stat(path, &st) && S_ISCHR(st.st_mode) &&
		    major(st.st_rdev) == SIM_NVIDIA_MAJOR && minor(st.st_rdev) == (unsigned)i)
			seen |= 1u << i;
	}
	return seen;
}

int host_find(const struct sim_host *h, const CUuuid *uuid)
{
	for (int i = 0; i < h->ngpus; i++)
		if (!memcmp(&h->gpu[i].uuid, uuid, sizeof *uuid))
			return i;
	return -1;
}
