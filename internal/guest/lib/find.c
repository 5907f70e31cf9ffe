/*
 * find.c: the symbols of what is loaded, without asking dlsym, whose place the guest
 * takes. glibc's other ways to the real dlsym (dlvsym, a symbol version) would tie the
 * library to the glibc that it was built with, and musl has neither.
 */
#define _GNU_SOURCE
#include "find.h"

#include <elf.h>
#include <link.h>

struct object {
	ElfW(Addr) base;
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

/* glibc has added the base to the pointers in the dynamic section, musl has not. */
static const void *pointer(ElfW(Addr) base, ElfW(Addr) value) { return (const void *)(value < base ? base + value : value); }

static struct object object_at(ElfW(Addr) base, const ElfW(Dyn) *d)
{
	struct object o = {.base = base};

	for (; d && d->d_tag != DT_NULL; d++) {
		switch (d->d_tag) {
		case DT_SYMTAB: o.symbols = pointer(base, d->d_un.d_ptr); break;
		case DT_STRTAB: o.strings = pointer(base, d->d_un.d_ptr); break;
		case DT_GNU_HASH: o.gnu_hash = pointer(base, d->d_un.d_ptr); break;
		case DT_HASH: o.hash = pointer(base, d->d_un.d_ptr); break;
		}
	}
	return o;
}

static int same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static int is(const struct object *o, const ElfW(Sym) *s, const char *name)
{
	return s->st_shndx != SHN_UNDEF && (s->st_info & 0xf) == STT_FUNC && same(o->strings + s->st_name, name);
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

static void *look_up(ElfW(Addr) base, const ElfW(Dyn) *dynamic, const char *name)
{
	const struct object o = object_at(base, dynamic);
	const ElfW(Sym) *s = NULL;

	if (!o.symbols || !o.strings)
		return NULL;
	if (o.gnu_hash)
		s = look_up_gnu(&o, name);
	for (ElfW(Word) i = 0; !o.gnu_hash && o.hash && i < o.hash[1] && !s; i++)
		if (is(&o, &o.symbols[i], name))
			s = &o.symbols[i];
	/* Symbols have no address of their own in an object: the dynamic loader adds where it lies. */
	return s ? (void *)(o.base + s->st_value) : NULL;
}

/*
 * The list that the dynamic loader keeps for debuggers. It takes no function that another library may have put its own
 * in place of, nor does it call one: sanitizers ask for dlsym before theirs work. No lock protects it, so it is for what is there from the start.
 */
extern struct r_debug _r_debug __attribute__((weak)); /* not in musl */
extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

void *find_from_the_start(const char *name)
{
	if (!&_r_debug)
		return find_elsewhere(name);
	for (const struct link_map *m = _r_debug.r_map; m; m = m->l_next) {
		void *address = m->l_ld == _DYNAMIC ? NULL : look_up(m->l_addr, m->l_ld, name);
		if (address)
			return address;
	}
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
	for (int i = 0; q->name && i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			q->address = look_up(info->dlpi_addr, (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr), q->name);
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
