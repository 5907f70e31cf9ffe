#!/usr/bin/env bash
# try-pause.sh DIR [MIB]: how long a job with MIB (16384) on a GPU stands still for a checkpoint of cucriu run, staged in memory and not
# staged, beside what the driver alone takes for checkpoint and restore. DIR must not exist yet; it holds the checkpoints. Needs root, a GPU,
# the test workload (make workload), and cucriu in PATH. CUCRIU_CRIU names the criu to use.
set -euo pipefail
dir=${1:?usage: try-pause.sh DIR [MIB]}
mib=${2:-16384}
workload=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)/build/workload/cudawork
args=(--gpus 0 --ballast "$mib")
mkdir "$dir"
trap 'pkill -KILL -f "^$workload --dir $dir/" || true' EXIT

# await SECONDS COMMAND...: until the command succeeds.
await() {
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		((SECONDS < end)) || { echo "FAILED: not seen in time: $*" >&2; exit 1; }
		sleep 0.1
	done
}
ticks() { grep -q '"tick":[1-9]' "$1/status" 2>/dev/null; }
checkpoints() { [[ $(grep -c '"event":"checkpoint"' "$1/events.jsonl" 2>/dev/null) -ge $2 ]]; }
# right DIR: what the workload holds is what it has computed.
right() { grep -q '"bad":0' "$1/status" || { echo "FAILED: the memory of the workload is damaged: $(cat "$1/status")" >&2; exit 1; }; }

setsid "$workload" --dir "$dir/alone" "${args[@]}" >"$dir/alone.log" 2>&1 </dev/null &
disown
await 60 ticks "$dir/alone"
pid=$(sed 's/.*"pid":\([0-9]*\).*/\1/' "$dir/alone/status")
for _ in 1 2; do
	begun=$EPOCHREALTIME
	cucriu suspend -p "$pid" >/dev/null
	cucriu resume -p "$pid" >/dev/null
	awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN { printf "driver alone: %.2f s\n", b - a }'
done
right "$dir/alone"
kill -KILL "$pid"

# job STAGE CHECKPOINTS
job() {
	echo "stage $1:"
	timeout -s KILL 240 cucriu run --dir "$dir/$1" --stage "$1" --every 2s --keep 9 -- "$workload" --dir "$dir/$1.work" "${args[@]}" \
		>"$dir/$1.log" 2>&1 &
	local run=$! status=0
	await 200 checkpoints "$dir/$1" "$2"
	pkill -TERM -f "^cucriu run --dir $dir/$1 "
	wait "$run" || status=$?
	((status == 75)) || { echo "FAILED: cucriu run ended with $status" >&2; tail "$dir/$1.log" >&2; exit 1; }
	right "$dir/$1.work"
	cucriu jobs list "$dir/$1"
	rm -r "${dir:?}/$1/checkpoints"
}
job memory 3
job disk 1
