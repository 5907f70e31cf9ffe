#!/usr/bin/env bash
# try-guest.sh DIR [SECONDS [ROUNDS]]: what the library of cucriu run --dir costs a program that nobody dumps. A training, and a loop that
# generates tokens with small kernels, run for SECONDS (10) with the library and without; on two GPUs at the same time, which they swap from
# round to round (2 of them). Then how long it takes until a program has its first tensor, and how much of the GPU two sizes of tensors take.
# DIR must not exist yet. Needs a GPU and PyTorch.
set -euo pipefail
dir=${1:?usage: try-guest.sh DIR [SECONDS [ROUNDS]]}
seconds=${2:-10}
rounds=${3:-2}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
library=$here/internal/kit/guest/built/guest-amd64.so
mkdir "$dir"
gpus=$(nvidia-smi -L | wc -l)

speed() { # LOG: steps a second, without the first ten
	awk '$1 == "step" { if (++n == 10) first = $3; last = $3 } END { printf "%.4f\n", (n - 10) / (last - first) }' "$1"
}

for program in transformer decode; do
	for ((round = 0; round < rounds; round++)); do
		CUDA_VISIBLE_DEVICES=$((round % gpus)) timeout 120 python3 "$here/test/workload/programs/$program.py" --seconds "$seconds" >"$dir/without.log" 2>&1 &
		((gpus > 1)) || wait $!
		CUDA_VISIBLE_DEVICES=$(((round + 1) % gpus)) LD_PRELOAD=$library timeout 120 python3 "$here/test/workload/programs/$program.py" --seconds "$seconds" >"$dir/with.log" 2>&1
		wait
		without=$(speed "$dir/without.log") with=$(speed "$dir/with.log")
		echo "$program: $without steps a second without, $with with the library: $(awk "BEGIN { printf \"%.4f\", $with / $without }")"
	done
done

first='import time; b = time.time(); import torch; i = time.time(); torch.zeros(1, device="cuda"); torch.cuda.synchronize(); print(f"{time.time() - i:.3f} {time.time() - b:.3f}")'
waste='import torch, gc
def used(): torch.cuda.synchronize(); free, total = torch.cuda.mem_get_info(); return (total - free) / 2**20
torch.zeros(1, device="cuda"); before = used(); a = [torch.empty(20 << 20, dtype=torch.uint8, device="cuda") for _ in range(100)]; many = used() - before
b = torch.empty(4 << 30, dtype=torch.uint8, device="cuda"); print(f"{many:.0f} {used() - before - many:.0f}")'
for ((round = 0; round < 3; round++)); do
	echo "first tensor after (without its import, with it): $(python3 -c "$first") s without, $(LD_PRELOAD=$library python3 -c "$first") s with"
done
echo "100 tensors of 20 MiB, and one of 4096, take (MiB): $(python3 -c "$waste") without, $(LD_PRELOAD=$library python3 -c "$waste") with"
