/* find.c: the symbols of what is loaded, without asking dlsym. */
#pragma once
#include <stddef.h>

/* The function NAME of the loaded object whose first byte is at BASE, or NULL. */
void *find_in(const void *base, const char *name);
/* The function NAME of the first loaded object that has one, other than this library, or NULL. */
void *find_elsewhere(const char *name);
/* The same, for what is loaded with the program, before anything else of it may run. */
void *find_from_the_start(const char *name);
/* Where the object with the code at ADDRESS is loaded, or NULL. */
const void *find_base(const void *address);
/* The same, if ADDRESS is in its code. */
const void *find_code(const void *address);
