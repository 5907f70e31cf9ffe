/* launches.h: what gives the GPUs work. LAUNCH(name, (parameters), (arguments)) */
LAUNCH(cuLaunchKernel,
       (void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **parameters, void **extra),
       (f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra))
LAUNCH(cuLaunchKernelEx, (const void *config, void *f, void **parameters, void **extra), (config, f, parameters, extra))
LAUNCH(cuGraphLaunch, (void *graph, void *stream), (graph, stream))
LAUNCH(cuLaunchHostFunc, (void *stream, void (*f)(void *), void *argument), (stream, f, argument))
#undef LAUNCH
