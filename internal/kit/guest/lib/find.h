/* find.c: the symbols of what is loaded, without asking dlsym. */
#pragma once
#include <stddef.h>

/* The function NAME of the loaded object whose first byte is at BASE, or NULL. */
void *find_in(const void *base, const char *name);
/* The function NAME of the first loaded object that has one, other than this library, or NULL. */
void *find_elsewhere(const char *name);
/*
 * What this library stands in front of: the function NAME of the first object behind it, of those that are loaded
 * with the program. BESIDE, if it is not NULL, is a function that the object must have, too.
 */
void *find_next(const char *name, const char *beside);
/* The function NAME of the first object behind that with the code at ADDRESS, unless this library comes before. */
void *find_behind(const void *address, const char *name);
/* A function of the CUDA driver, if that is loaded, or NULL. */
void *find_driver(void);
/* Whether the object that is loaded at BASE calls itself libcuda, as the driver and what stands in for it do. */
int find_is_driver(const void *base);
/* Keeps the object with the code at ADDRESS loaded, whoever closes it. */
int find_keep(const void *address);
/* Where the object with the code at ADDRESS is loaded, or NULL. */
const void *find_base(const void *address);
/* The same, if ADDRESS is in its code. */
const void *find_code(const void *address);
