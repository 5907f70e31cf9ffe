/* A library that is another by its name alone: what /proc shows of a process that uses that one. */
int stub;
