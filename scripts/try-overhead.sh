#!/usr/bin/env bash
# try-overhead.sh DIR [SECONDS [INTERVAL]]: trains a PyTorch transformer (22 GiB on the GPU) for SECONDS (190), first as it is, then under
# cucriu run with a checkpoint every INTERVAL (60s), and compares how many steps each made. With two GPUs both train at the same time, so
# that they share the host as well. DIR must not exist yet. Needs root, a GPU, PyTorch, and cucriu in PATH. CUCRIU_CRIU names the criu to use.
set -euo pipefail
dir=${1:?usage: try-overhead.sh DIR [SECONDS [INTERVAL]]}
seconds=${2:-190}
interval=${3:-60s}
program=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)/test/workload/programs/transformer.py
mkdir "$dir"
gpus=$(nvidia-smi -L | wc -l)
limit=$((${seconds%.*} + 120))

CUDA_VISIBLE_DEVICES=0 timeout "$limit" python3 "$program" --seconds "$seconds" >"$dir/without.log" 2>&1 &
without=$!
((gpus > 1)) || wait "$without"
CUDA_VISIBLE_DEVICES=$((gpus - 1)) timeout -s KILL "$limit" cucriu run --dir "$dir/job" --every "$interval" --keep 2 -- \
	python3 "$program" --seconds "$seconds" >"$dir/with.log" 2>&1
((gpus == 1)) || wait "$without"

grep '^cucriu' "$dir/with.log"
for run in without with; do
	awk -v run="$run" '
		$1 == "step" { if (n++) print $3 - last; else first = $3; last = $3 }
		END { printf "%s: %d steps, %.3f a second\n", run, n, (n - 1) / (last - first) >"/dev/stderr" }' "$dir/$run.log" |
		sort -n | awk '{ t[NR] = $1 } END { printf "    step: median %.3f s, longest %.2f, %.2f, %.2f s\n", t[int((NR + 1) / 2)], t[NR - 2], t[NR - 1], t[NR] }'
done
