#!/usr/bin/env bash
# demo.sh: shows the main use from end to end. Stock criu, with cucriu-hook as its action script, dumps a process that uses CUDA and
# restores it onto another GPU. It uses NVIDIA's driver if there is one, else the simulated driver. CUCRIU_TEST_CRIU names criu.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
here=$PWD
criu=${CUCRIU_TEST_CRIU:?names the criu to use: run make demo}

die() {
	printf 'demo: error: %s\n' "$1" >&2
	exit 1
}

dir=$(mktemp -d)
pid=
trap '[[ -z $pid ]] || { kill -KILL -- "-$pid" 2>/dev/null; sleep 0.2; }; rm -rf "$dir"' EXIT
mkdir -m 0700 "$dir/job" "$dir/images"
export CUCRIU_RUN_DIR=$dir/run

if bin/cucriu gpus >/dev/null 2>&1; then
	driver=NVIDIA
	pause=()
else
	driver='simulated (no NVIDIA driver on this machine)'
	pause=(--tick-ms 0) # its GPUs compute on a CPU, and the job would rest four times as long
	eval "$(build/cudasim/cudasim-run --gpus 2 --root "$dir/host" 2>/dev/null)"
fi
gpus=$(bin/cucriu gpus --json | grep -o '"GPU-[0-9a-f-]*"' | sort -u | wc -l)
echo "driver   $driver, GPUs: $gpus"
echo "criu     $("$criu" --version | sed -n 's/^Version: //p') ($criu)"
echo

# field NAME prints what the job last reported.
field() { sed -nE "s/.*\"$1\": ?\"?([^\",}]*).*/\1/p" "$dir/job/status" 2>/dev/null || true; }

# await N waits until the job's counter is at N, and fails if the job has found its GPU memory changed.
await() {
	local i
	for ((i = 0; i < 1200; i++)); do
		tick=$(field tick)
		if [[ -n $tick ]] && ((tick >= $1)); then
			[[ $(field bad) == 0 ]] || die "the job finds its GPU memory changed"
			return
		fi
		sleep 0.05
	done
	die "the job's counter does not reach $1"
}

# run_criu VERB ARGS... runs criu with the hook and shows the command.
run_criu() {
	local began=${EPOCHREALTIME/./}
	echo "\$ criu $* -D images --action-script cucriu-hook"
	"$criu" "$@" -D "$dir/images" -o "$1.log" -v4 --action-script "$here/bin/cucriu-hook" >"$dir/said" 2>&1 || {
		cat "$dir/said" "$dir/images/$1.log"
		die "criu $1 failed"
	}
	printf '         done in %d.%03d s\n' $(((${EPOCHREALTIME/./} - began) / 1000000)) $(((${EPOCHREALTIME/./} - began) / 1000 % 1000))
}

(cd / && exec setsid "$here/build/workload/cudawork" --dir "$dir/job" --mib 256 --spin stream-sync "${pause[@]}") </dev/null >/dev/null 2>"$dir/stderr" &
pid=$!
disown "$pid" # bash is not to report its end
await 20
echo "job      pid $pid counts on $(field uuid), 256 MiB, one thread that only synchronizes"
echo "         counter $tick"
echo

run_criu dump -t "$pid"
while kill -0 "$pid" 2>/dev/null; do sleep 0.01; done # a restore needs its pid
last=$(field tick)
echo "         the process is gone; its last counter is $last"
if ((gpus > 1)); then
	printf 'version: 1\ngpus:\n  map:\n  - {from: {index: 0}, to: {index: 1}}\n' >"$dir/config.yaml"
	export CUCRIU_CONFIG=$dir/config.yaml
	echo "map      from GPU 0 to GPU 1; the rest is filled in"
else
	echo "map      this machine has one GPU: the job comes back on the same"
fi
run_criu restore -d
await "$((last + 20))"
touch "$dir/job/check"
for ((i = 0; i < 6000; i++)); do
	[[ -e $dir/job/check ]] || break
	sleep 0.01
done
grep -q '"bad": \?0' "$dir/job/checked" || die "GPU memory is not what it must be: $(cat "$dir/job/checked")"
echo "job      pid $pid counts on $(field uuid)"
echo "         counter $last before the dump, $tick after the restore; every word of its GPU memory is right"
