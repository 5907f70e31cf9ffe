#!/usr/bin/env bash
# try-preemption.sh DIR: runs a PyTorch training with four forked DataLoader workers under cucriu run, preempts it three times, on this
# machine's GPUs in turns, and compares every loss with those of the same training that nobody disturbs. DIR must not exist yet. Needs
# root, a GPU, PyTorch, and cucriu in PATH. CUCRIU_CRIU names the criu to use.
set -euo pipefail
dir=${1:?usage: try-preemption.sh DIR}
program=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)/test/workload/programs/train.py
args=(--workers 4 --epochs 2 --batches 260 --pause 0.05)
mkdir "$dir"
cd "$dir"
gpus=$(nvidia-smi -L | wc -l)

CUDA_VISIBLE_DEVICES=$((gpus - 1)) timeout 300 python3 "$program" "${args[@]}" >undisturbed.log 2>&1 &
undisturbed=$!
for i in 0 1 2 3; do
	echo "run $i on GPU $((i % gpus))"
	CUDA_VISIBLE_DEVICES=$((i % gpus)) timeout -s KILL 300 cucriu run --dir "$dir/job" --every 2s --keep 3 -- \
		python3 "$program" "${args[@]}" >"run$i.log" 2>&1 &
	run=$!
	want=0
	if ((i < 3)); then
		sleep 14
		pkill -TERM -f "^cucriu run --dir $dir/job" || true
		want=75
	fi
	status=0
	wait "$run" || status=$?
	grep '^cucriu' "run$i.log" || true
	if ((status != want)); then
		echo "FAILED: run $i ended with $status, want $want" >&2
		exit 1
	fi
done
wait "$undisturbed"
steps() { grep -E '^(step|done) ' "$1" | sort -u -k1,1 -k2,2n; }
if [[ $(steps undisturbed.log | wc -l) != 521 ]] || ! diff <(steps undisturbed.log) <(steps job/output.log); then
	echo "FAILED: the training computed something else" >&2
	exit 1
fi
cucriu jobs list "$dir/job"
echo "520 steps, the same bit for bit: $(tail -n 1 undisturbed.log)"
