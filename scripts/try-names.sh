#!/usr/bin/env bash
# try-names.sh DIR: restores what needs names that others may have. Two long jobs: A is preempted, B is started, A is resumed beside it and
# gets a name of its own for CUDA's socket. torchrun with two ranks that talk over TCP is dumped as soon as it trains, and restored at once,
# three times. DIR must not exist yet. Needs root, a GPU, Python, cucriu and criu (CUCRIU_CRIU) in PATH; for torchrun two GPUs and PyTorch.
set -euo pipefail
# Dumped processes become orphans. Where the first process reaps none, they stay zombies and keep their pids. So they become children of
# this shell (PR_SET_CHILD_SUBREAPER), which reaps them. The driver wants no pid namespace.
if [[ -z ${REAPS-} ]]; then
	REAPS=1 exec python3 -c 'import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])' "$BASH" "$0" "$@"
fi
unset REAPS
dir=${1:?usage: try-names.sh DIR}
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
mkdir "$dir"
cd "$dir"

fail() {
	echo "FAILED: $*" >&2
	tail -n 20 "$dir"/*.log >&2
	exit 1
}

# await WHAT COMMAND...: waits until the command succeeds, for three minutes.
await() {
	local what=$1 end=$((SECONDS + 180))
	shift
	until "$@"; do
		((SECONDS < end)) || fail "not seen within three minutes: $what"
		sleep 0.2
	done
}

tick() { grep -o '"tick": *[0-9]*' "$1/status" 2>/dev/null | grep -o '[0-9]*$' || echo 0; }
ticks_on() { (($(tick "$1") > $2 + 5)); }
sockets() { grep -o '@cuda-uvmfd-[^@]*' /proc/net/unix | sort; }
start() { # JOB: starts it, or resumes it
	mkdir -p "$1.work"
	cucriu run --dir "$dir/$1" --every 0 -- "$repo/build/workload/cudawork" --dir "$dir/$1.work" --mib 512 >>"$1.log" 2>&1 &
	await "job $1 works" ticks_on "$1.work" "$(tick "$1.work")"
}

echo "=== two long jobs on one host"
start A
a=$!
echo "A runs: $(sockets)"
kill -TERM "$a"
status=0
wait "$a" || status=$?
((status == 75)) || fail "A was preempted, and its status is $status"
start B
b=$!
echo "B runs: $(sockets)"
start A
a=$!
echo "A is resumed beside B:"
sockets
[[ $(sockets | uniq -d) == "" && $(sockets | wc -l) -ge 2 ]] || fail "these are not two sockets"
await "B works on" ticks_on B.work "$(tick B.work)"
for job in A B; do
	touch "$job.work/check"
	await "$job has checked its memory" test ! -e "$job.work/check"
	grep '"bad": *0' "$job.work/checked" || fail "the memory of $job is not what it was"
	echo 0 >"$job.work/stop"
done
wait "$a" "$b" || fail "a job has ended with $?"

if (($(nvidia-smi -L | wc -l) < 2)) || ! python3 -c 'import torch' 2>/dev/null; then
	echo "torchrun: not tried, for want of two GPUs or PyTorch"
	exit 0
fi
echo "=== torchrun without P2P and SHM, dumped as soon as it trains and restored at once"
export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NVLS_ENABLE=0
steps() { grep -c '^step ' torchrun.log || true; }
trains_on() { (($(steps) > $1)); }
setsid cucriu run --no-checkpoints --pidfile "$dir/pid" -- python3 -m torch.distributed.run --standalone --nproc-per-node 2 \
	"$repo/test/workload/programs/ranks.py" --steps 4000 >torchrun.log 2>&1 </dev/null &
await "torchrun trains" trains_on 0
for i in 1 2 3; do
	cucriu dump -t "$(cat pid)" -D "images$i" 2>"dump$i.log" || fail "dump $i"
	echo "connections in TIME_WAIT: $(grep -cE '^ *[0-9]+: [^ ]+ [^ ]+ 06 ' /proc/net/tcp /proc/net/tcp6 | tr '\n' ' ')"
	cucriu restore -D "images$i" 2>"restore$i.log" || fail "restore $i"
	before=$(steps)
	await "torchrun trains on" trains_on "$before"
	mv "images$i/cucriu-timeline.json" "timeline$i.json"
	rm -rf "images$i"
done
grep -h 'ports of the image' restore?.log || true
pkill -KILL -f "$repo/test/workload/programs/ranks.py" || true
echo "three times restored at once, $(steps) steps"
for i in 1 2 3; do
	python3 - "timeline$i.json" <<-'END'
		import json, sys
		for event in json.load(open(sys.argv[1]))["traceEvents"]:
		    if event["ph"] == "X" and event["name"] in ("inspect", "trace"):
		        print(f"{sys.argv[1]}: {event['name']} {event.get('dur', 0) / 1000:.0f} ms")
	END
done
