/* A library that is NCCL's by its name alone: what /proc shows of a process that uses NCCL. */
int ncclStub;
