package programs

// table lists the programs, those that take longest first.
func table() []program {
	python := func(words ...string) []string { return append([]string{"python3"}, words...) }
	torchrun := func(ranks string, program ...string) []string {
		return append([]string{"torchrun", "--standalone", "--nproc-per-node", ranks}, program...)
	}
	oneGPU := []string{"CUDA_VISIBLE_DEVICES=0"}
	noSharing := []string{"NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1"}
	noHostHandles := []string{"NCCL_CUMEM_HOST_ENABLE=0"} // as cucriu run --dir has it
	loader := func(method string, more ...string) []string {
		return python(append([]string{"train.py", "--workers", "2", "--start-method", method}, more...)...)
	}
	return []program{
		{name: "JAX on one GPU, default preallocation", command: python("jax_train.py"), env: oneGPU, gpus: 1, want: works, compares: true, greedy: true, image: true},
		{name: "torch.compile with CUDA graphs", command: python("compiled.py"), gpus: 1, want: works, compares: true},
		{name: "DataLoader, spawned workers", command: loader("spawn", "--epochs", "2", "--batches", "200"), gpus: 1, want: works},
		{name: "DataLoader, forkserver", command: loader("forkserver", "--epochs", "2", "--batches", "200"), gpus: 1, want: works},
		{
			name:    "torchrun, NCCL without P2P and SHM, under cucriu run",
			command: torchrun("2", "ranks.py"), env: noSharing,
			gpus: 2, want: works, underRun: true, alone: true,
		},
		{
			name: "the same with four ranks", command: torchrun("4", "ranks.py"), env: noSharing,
			gpus: 4, want: works, underRun: true, alone: true,
		},
		{name: "torchrun, NCCL without P2P and SHM", command: torchrun("2", "ranks.py"), env: noSharing, gpus: 2, want: refused, finding: "io-uring"},
		{name: "torchrun, NCCL over NVLink", command: torchrun("2", "ranks.py"), gpus: 2, want: refused, finding: "shared-gpu-memory"},
		{
			name:    "torchrun, NCCL over NVLink, with the guest, under cucriu run",
			command: torchrun("2", "ranks.py"), env: noHostHandles,
			gpus: 2, want: works, underRun: true, guest: true, alone: true, image: true,
		},
		{
			name: "the same with four GPUs", command: torchrun("4", "ranks.py"), env: noHostHandles,
			gpus: 4, want: works, underRun: true, guest: true, alone: true,
		},
		{name: "torchrun, NCCL by cuIpc, with the guest, under cucriu run", command: torchrun("2", "ranks.py"), env: append(noHostHandles, "NCCL_CUMEM_ENABLE=0"), gpus: 2, want: refused, finding: "shared-gpu-memory", underRun: true, guest: true},
		{
			name:    "FSDP and torch.compile, NCCL over NVLink, with the guest, under cucriu run",
			command: torchrun("2", "sharded.py"), env: noHostHandles,
			gpus: 2, want: works, underRun: true, guest: true, alone: true,
		},
		{
			name:    "PyTorch's symmetric memory, with the guest, under cucriu run",
			command: torchrun("2", "symmetric.py"), env: noHostHandles,
			gpus: 2, want: works, underRun: true, guest: true, alone: true,
		},
		{name: "GPT-2 behind HTTP, clients connected", command: python("gpt2_server.py"), client: python("gpt2_client.py"), gpus: 1, want: works},
		{name: "PyTorch Lightning", command: python("lightning_train.py"), gpus: 1, want: works},
		{name: "model parallel, expandable segments", command: python("model_parallel.py"), env: []string{"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"}, gpus: 2, want: works},
		{name: "model parallel, with the guest", command: python("model_parallel.py"), gpus: 2, want: works, guest: true},
		{
			name: "nn.DataParallel, with the guest", command: python("data_parallel.py"),
			gpus: 2, want: works, guest: true, alone: true,
		},
		{name: "model parallel", command: python("model_parallel.py"), gpus: 2, want: refused, finding: "peer-memory"},
		{name: "a device_map over two GPUs, with the guest", command: python("device_map.py"), gpus: 2, want: works, guest: true},
		{name: "a tensor that two processes share, with the guest", command: python("shared_tensor.py", "--pause", "0.2"), gpus: 1, want: works, guest: true},
		{name: "a tensor that two processes share", command: python("shared_tensor.py", "--pause", "0.2"), gpus: 1, want: refused, finding: "shared-gpu-memory"},
		{name: "DataLoader, forked workers", command: loader("fork"), gpus: 1, want: works, image: true},
		{name: "DataLoader, persistent workers, pinned memory", command: loader("fork", "--persistent", "--pin"), gpus: 1, want: works},
		{name: "a forked worker that forks", command: python("nested.py"), gpus: 1, want: works},
		{name: "PyTorch training", command: python("train.py"), gpus: 1, want: works},
		{name: "NVML in the process", command: python("nvml.py"), gpus: 1, want: works},
		{name: "NVML in a process beside it", command: python("nvml.py", "--beside"), gpus: 1, want: works},
		{name: "Triton", command: python("triton_kernel.py"), gpus: 1, want: works},
		{name: "CuPy, FFT and GEMM on streams", command: python("cupy_fft.py"), gpus: 1, want: works, image: true},
		{name: "a prefork server with a worker for each GPU", command: python("prefork.py"), gpus: 2, want: works, image: true},
		{name: "PyTorch and CuPy in one process", command: python("two_runtimes.py"), gpus: 1, want: works},
		{name: "a kernel over ZeroMQ", command: python("zmq_kernel.py"), gpus: 1, want: works},
		{name: "onnxruntime, CUDA provider", command: python("onnx_infer.py"), gpus: 1, want: works},
		{
			name: "JAX on two GPUs, with the guest", command: python("jax_train.py"),
			gpus: 2, want: works, compares: true, greedy: true, guest: true, alone: true,
		},
		{name: "JAX on two GPUs", command: python("jax_train.py"), gpus: 2, want: refused, finding: "peer-memory", compares: true, greedy: true},
	}
}
