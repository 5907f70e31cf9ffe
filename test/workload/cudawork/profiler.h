/* A profiler in the process: a subscriber of CUPTI, NVIDIA's library for such. */
#ifndef CUDAWORK_PROFILER_H
#define CUDAWORK_PROFILER_H

enum profiler {
	PROFILER_NONE,
	PROFILER_ON,
	PROFILER_ENDED, /* it was there, and has taken itself away with cuptiFinalize */
};

/* To be called after cuInit. */
void profiler_attach(enum profiler profiler);

#endif
