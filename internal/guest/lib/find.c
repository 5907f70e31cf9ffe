/*
 * find.c: the symbols of what is loaded, without asking dlsym, whose place the guest
 * takes. glibc's other ways to the real dlsym (dlvsym, a symbol version) would tie the
 * library to the glibc that it was built with, and musl has neither.
 */
#define _GNU_SOURCE
#include "find.h"

#include <elf.h>
#include <link.h>
#include <string.h>

struct object {
	const ElfW(Sym) *symbols;
	const char *strings;
	const uint32_t *gnu_hash;
	const ElfW(Word) *hash;
};

struct question {
	const char *name;    /* of the wanted function; NULL: only the object is wanted */
	const void *in;	     /* an address in the wanted object; NULL: any but this library */
	unsigned flags;	     /* of the segment with that address */
	const void *address; /* the answer */
	const void *base;
};

/* Symbols have no address of their own in an object: the dynamic loader adds where it lies. */
static void *address_of(const struct dl_phdr_info *info, const ElfW(Sym) *s)
{
	return (void *)(info->dlpi_addr + s->st_value);
}

/* glibc has added the base to the pointers in the dynamic section, musl has not. */
static const void *pointer(const struct dl_phdr_info *info, ElfW(Addr) value)
{
	return (const void *)(value < info->dlpi_addr ? info->dlpi_addr + value : value);
}

static struct object object_of(const struct dl_phdr_info *info)
{
	struct object o = {0};

	for (int i = 0; i < info->dlpi_phnum; i++) {
		if (info->dlpi_phdr[i].p_type != PT_DYNAMIC)
			continue;
		for (const ElfW(Dyn) *d = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr); d->d_tag != DT_NULL; d++) {
			switch (d->d_tag) {
			case DT_SYMTAB: o.symbols = pointer(info, d->d_un.d_ptr); break;
			case DT_STRTAB: o.strings = pointer(info, d->d_un.d_ptr); break;
			case DT_GNU_HASH: o.gnu_hash = pointer(info, d->d_un.d_ptr); break;
			case DT_HASH: o.hash = pointer(info, d->d_un.d_ptr); break;
			}
		}
	}
	return o;
}

static int is(const struct object *o, const ElfW(Sym) *s, const char *name)
{
	return s->st_shndx != SHN_UNDEF && (s->st_info & 0xf) == STT_FUNC && !strcmp(o->strings + s->st_name, name);
}

static const ElfW(Sym) *look_up_gnu(const struct object *o, const char *name)
{
	const uint32_t *h = o->gnu_hash, buckets = h[0], first = h[1], bloom = h[2];
	const uint32_t *bucket = (const void *)((const ElfW(Addr) *)(h + 4) + bloom), *chain = bucket + buckets;
	uint32_t hash = 5381;

	for (const unsigned char *p = (const void *)name; *p; p++)
		hash = hash * 33 + *p;
	if (!buckets || !bucket[hash % buckets])
		return NULL;
	for (uint32_t i = bucket[hash % buckets];; i++) {
		uint32_t its = chain[i - first];
		if ((its | 1) == (hash | 1) && is(o, &o->symbols[i], name))
			return &o->symbols[i];
		if (its & 1)
			return NULL;
	}
}

static const ElfW(Sym) *look_up(const struct object *o, const char *name)
{
	if (!o->symbols || !o->strings)
		return NULL;
	if (o->gnu_hash)
		return look_up_gnu(o, name);
	for (ElfW(Word) i = 0; o->hash && i < o->hash[1]; i++)
		if (is(o, &o->symbols[i], name))
			return &o->symbols[i];
	return NULL;
}

static int holds(const struct dl_phdr_info *info, const void *address, unsigned flags)
{
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		if (p->p_type == PT_LOAD && (ElfW(Addr))address - (info->dlpi_addr + p->p_vaddr) < p->p_memsz && (p->p_flags & flags) == flags)
			return 1;
	}
	return 0;
}

static int ask(struct dl_phdr_info *info, size_t size, void *data)
{
	struct question *q = data;
	const void *here = (const void *)&ask;

	(void)size;
	if (q->in ? !holds(info, q->in, q->flags) : holds(info, here, 0))
		return 0;
	if (q->in)
		for (int i = 0; i < info->dlpi_phnum; i++)
			if (info->dlpi_phdr[i].p_type == PT_LOAD && !q->base)
				q->base = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	if (q->name) {
		struct object o = object_of(info);
		const ElfW(Sym) *s = look_up(&o, q->name);
		if (s)
			q->address = address_of(info, s);
	}
	return q->in || q->address;
}

void *find_in(const void *base, const char *name)
{
	struct question q = {.name = name, .in = base};

	dl_iterate_phdr(ask, &q);
	return (void *)q.address;
}

void *find_elsewhere(const char *name)
{
	struct question q = {.name = name};

	dl_iterate_phdr(ask, &q);
	return (void *)q.address;
}

static const void *base_of(const void *address, unsigned flags)
{
	struct question q = {.in = address, .flags = flags};

	dl_iterate_phdr(ask, &q);
	return q.base;
}

const void *find_base(const void *address) { return base_of(address, 0); }
const void *find_code(const void *address) { return base_of(address, PF_X); }
