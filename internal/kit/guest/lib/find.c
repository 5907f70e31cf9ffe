/*
 * find.c: the symbols of what is loaded, without asking dlsym, whose place the guest
 * takes. glibc's other ways to the real dlsym (dlvsym, a symbol version) would tie the
 * library to the glibc that it was built with, and musl has neither.
 */
#define _GNU_SOURCE
#include "find.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

struct object {
	ElfW(Addr) base;
	const ElfW(Sym) *symbols;
	const char *strings;
	const uint32_t *gnu_hash;
	const ElfW(Word) *hash;
	ElfW(Xword) name; /* in strings, or 0 */
};

struct question {
	const char *name;    /* of the wanted function; NULL: only the object is wanted */
	const void *in;	     /* an address in the wanted object; NULL: any but this library */
	unsigned flags;	     /* of the segment with that address */
	const void *behind;  /* only what comes behind the object with this address, */
	int up_to_here;	     /* and not behind this library */
	int is_driver;	     /* only what calls itself libcuda */
	const void *address; /* the answer */
	const void *base;
	const char *path;
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
		case DT_SONAME: o.name = d->d_un.d_val; break;
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
static const struct link_map *last_at_start;

__attribute__((constructor)) static void note_what_is_loaded(void)
{
	for (const struct link_map *m = &_r_debug ? _r_debug.r_map : NULL; m; m = m->l_next)
		last_at_start = m;
}

void *find_next(const char *name, const char *beside)
{
	int behind = 0;

	if (!&_r_debug)
		return find_elsewhere(name);
	for (const struct link_map *m = _r_debug.r_map; m; m = m->l_next) {
		void *address = behind ? look_up(m->l_addr, m->l_ld, name) : NULL;
		if (address && (!beside || look_up(m->l_addr, m->l_ld, beside)))
			return address;
		behind = behind || m->l_ld == _DYNAMIC;
		if (m == last_at_start)
			break;
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

static const ElfW(Dyn) *dynamic_of(const struct dl_phdr_info *info)
{
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			return (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	return NULL;
}

static int calls_itself_libcuda(const struct dl_phdr_info *info)
{
	static const char libcuda[] = "libcuda.so";
	const struct object o = object_at(info->dlpi_addr, dynamic_of(info));
	const char *name = o.strings && o.name ? o.strings + o.name : "";

	for (size_t i = 0; i < sizeof libcuda - 1; i++)
		if (name[i] != libcuda[i])
			return 0;
	return 1;
}

static int ask(struct dl_phdr_info *info, size_t size, void *data)
{
	struct question *q = data;
	const int here = holds(info, (const void *)&ask, 0);

	(void)size;
	if (q->behind) {
		if (holds(info, q->behind, 0))
			q->behind = NULL;
		return 0;
	}
	if (here && q->up_to_here)
		return 1;
	if (q->in ? !holds(info, q->in, q->flags) : here)
		return 0;
	if (q->is_driver && !calls_itself_libcuda(info))
		return q->in != NULL;
	q->path = info->dlpi_name;
	for (int i = 0; i < info->dlpi_phnum && q->in; i++)
		if (info->dlpi_phdr[i].p_type == PT_LOAD && !q->base)
			q->base = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	if (q->name)
		q->address = look_up(info->dlpi_addr, dynamic_of(info), q->name);
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

void *find_behind(const void *address, const char *name)
{
	struct question q = {.name = name, .behind = address, .up_to_here = 1};

	dl_iterate_phdr(ask, &q);
	return (void *)q.address;
}

void *find_driver(void)
{
	struct question q = {.name = "cuMemCreate", .is_driver = 1};

	dl_iterate_phdr(ask, &q);
	return (void *)q.address;
}

int find_is_driver(const void *base)
{
	struct question q = {.in = base, .is_driver = 1};

	dl_iterate_phdr(ask, &q);
	return q.base != NULL;
}

int find_keep(const void *address)
{
	struct question q = {.in = address};
	void *(*open)(const char *, int);

	*(void **)&open = find_next("dlopen", "dlinfo");
	dl_iterate_phdr(ask, &q);
	return open && q.path && open(q.path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

static const void *base_of(const void *address, unsigned flags)
{
	struct question q = {.in = address, .flags = flags};

	dl_iterate_phdr(ask, &q);
	return q.base;
}

const void *find_base(const void *address) { return base_of(address, 0); }
const void *find_code(const void *address) { return base_of(address, PF_X); }
