#!/usr/bin/env bash
# try-image.sh DIR [SERVER...]: starts a server once, and then jobs from its checkpoint: one alone, and two at the same time on two GPUs
# where there are two, and four on one GPU. It prints how long each takes to its first answer, and fails if an answer is not that of the
# first server. SERVER listens on 127.0.0.1, port 8000, and answers POST /generate; by default it is a GPT-2 of 6.4 billion parameters.
# DIR must not exist yet; what is in it is kept in memory, up to 90 GiB, and gone at the end. With CUCRIU_LOAD, clients ask those four for so
# many seconds (120 or more), and one is killed five times. With CUCRIU_ON_DISK=1, DIR stays on disk, and one job is started with nothing in the page cache.
# Needs root, a GPU, Python, curl, cucriu and criu (CUCRIU_CRIU) in PATH.
set -euo pipefail
# What is killed becomes an orphan: see try-names.sh.
if [[ -z ${REAPS-} ]]; then
	REAPS=1 exec python3 -c 'import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])' "$BASH" "$0" "$@"
fi
unset REAPS
dir=${1:?usage: try-image.sh DIR [SERVER...]}
shift
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
port=8000
(($# > 0)) || set -- python3 "$repo/test/workload/programs/gpt2_server.py" --port "$port" --width 4096 --layers 32
mkdir "$dir"
[[ ${CUCRIU_ON_DISK-} ]] || mount -t tmpfs -o mode=0700,size=80% tmpfs "$dir"
dir=$(cd "$dir" && pwd -P)
gpus=$({ nvidia-smi -L 2>/dev/null || true; } | wc -l)

fail() {
	echo "FAILED: $*" >&2
	tail -n 20 "$dir"/*.log "$dir"/*/output.log >&2
	exit 1
}

# generate PORT: prints the answer of a server.
generate() {
	curl --silent --fail --max-time 60 -H 'Content-Type: application/json' -d '{"prompt": [1, 2, 3], "seed": 7}' "http://127.0.0.1:$1/generate"
}

# ask PORT: waits until a server answers, for three minutes, and prints the answer.
ask() {
	local end=$((SECONDS + 180))
	until generate "$1"; do
		((SECONDS < end)) || fail "no answer at port $1"
		sleep 0.02
	done
}

now() { date +%s%N; }
since() { printf '%d.%03d s' $((($(now) - $1) / 1000000000)) $((($(now) - $1) / 1000000 % 1000)); }

# start NAME PORT GPU [OPTION...]: a job from the image, which answers at this port.
start() {
	CUDA_VISIBLE_DEVICES=$3 cucriu run --dir "$dir/$1" --image "$dir/first" --publish "127.0.0.1:$2:$port" --every 0 "${@:4}" >>"$dir/$1.log" 2>&1 &
	pids+=($!)
}

# answers NAME PORT BEGUN: waits for the first answer of a job, and compares it.
answers() {
	local answer
	answer=$(ask "$2")
	echo "$1: first answer after $(since "$3"), $(steps "${1%%,*}")"
	[[ $answer == "$expected" ]] || fail "$1 answers $answer, and the first server $expected"
}

# steps NAME: what took how long at the last start of a job, as its log has it.
steps() {
	python3 - "$dir/$1/events.jsonl" <<-'end'
		import json, sys
		last = [e for e in map(json.loads, open(sys.argv[1])) if e.get("phases")][-1]
		parts = ", ".join(f"{p['name']} {p['seconds']:.3f}" for p in last["phases"])
		print(f"running after {last['duration_ns'] / 1e9:.3f} s: {parts}")
	end
}

# memory NAME...: what a server has of the host's memory, and had at most, by the kernel's account.
memory() {
	local name pid
	for name in "$@"; do
		pid=$(server "$name")
		awk -v name="$name" '/^Vm(HWM|RSS)/ { printf "%s %d MiB, ", $1, $2 / 1024 } END { print "of " name }' "/proc/$pid/status" || true
	done
}

# server NAME: the pid on this host of the job's process with the most memory.
server() {
	local pid most=0 best= rss root
	root=$(grep -alP "sandbox-init\\x00$dir/$1(/|\\x00)" /proc/[0-9]*/cmdline 2>/dev/null | head -n 1 | cut -d/ -f3)
	for pid in $(descendants "${root:-0}"); do
		rss=$(awk '/^VmHWM/ { print $2 }' "/proc/$pid/status" 2>/dev/null) || continue
		((${rss:-0} <= most)) || { most=$rss best=$pid; }
	done
	echo "$best"
}

descendants() {
	local child
	for child in $(cat "/proc/$1"/task/*/children 2>/dev/null); do
		echo "$child"
		descendants "$child"
	done
}

# client NAME PORT: asks a server until the load is over, and notes how many milliseconds each answer takes, or what was wrong.
client() {
	local answer begun
	until [[ -e $dir/load-over ]]; do
		begun=$(now)
		if answer=$(generate "$2"); then
			[[ $answer == "$expected" ]] && echo $((($(now) - begun) / 1000000)) || echo "wrong: $answer"
		else
			echo none
			sleep 0.1
		fi
	done >>"$dir/$1.answers"
}

# under_load SECONDS: two clients ask each of the four servers, of which the first is killed five times.
under_load() {
	local n killed clients=()
	for n in 1 2 3 4 1 2 3 4; do
		client "one-of-four-$n" "801$n" &
		clients+=($!)
	done
	for n in 1 2 3 4 5; do
		sleep $(($1 / 6))
		killed=$(now)
		kill -KILL "$(server one-of-four-1)"
		sleep 0.5
		[[ $(ask 8011) == "$expected" ]] || fail "one-of-four-1 answers otherwise after it was killed"
		echo "killed for the ${n}. time, one of the four answers again after $(since "$killed")"
	done
	sleep $(($1 / 6))
	touch "$dir/load-over"
	wait "${clients[@]}"
	for n in 1 2 3 4; do
		sort -n "$dir/one-of-four-$n.answers" | awk -v name="one-of-four-$n" -v seconds="$1" '
			/^[0-9]/ { ms[++n] = $1 } /none/ { none++ } /wrong/ { wrong++ }
			END { printf "%s: %d answers in %d s, median %d ms, slowest %d ms; %d wrong, %d times none\n", name, n, seconds, ms[int((n + 1) / 2)], ms[n], wrong, none }'
		! grep -h wrong "$dir/one-of-four-$n.answers" || fail "a wrong answer"
		((n == 1)) || ! grep -q none "$dir/one-of-four-$n.answers" || fail "one-of-four-$n, which nobody killed, has not answered"
	done
}

# from_disk: has nothing of the image in the page cache, and prints how long reading it takes.
from_disk() {
	local begun
	sync
	for _ in 1 2; do
		echo 3 >/proc/sys/vm/drop_caches
		begun=$(now)
		find "$dir/first/checkpoints/000001" -type f -print0 | xargs -0 -P 4 -n 1 cat >/dev/null
		echo "reading the image, four files at a time: $(since "$begun")"
	done
	echo 3 >/proc/sys/vm/drop_caches
}

clear_up() {
	kill -KILL "${pids[@]}" 2>/dev/null || true
	for cmdline in $(grep -alP "sandbox-init\\x00$dir/" /proc/[0-9]*/cmdline 2>/dev/null); do # not every machine has pkill
		kill -KILL "$(cut -d/ -f3 <<<"$cmdline")" 2>/dev/null || true
	done
}

pids=()
trap clear_up EXIT
begun=$(now)
CUDA_VISIBLE_DEVICES=0 cucriu run --dir "$dir/first" --every 0 -- "$@" >"$dir/first.log" 2>&1 &
first=$!
expected=$(ask "$port")
echo "cold start: first answer after $(since "$begun")"
begun=$(now)
[[ $(ask "$port") == "$expected" ]] || fail "the first server does not answer twice alike"
echo "its second answer: $(since "$begun")"
begun=$(now)
cucriu jobs checkpoint "$dir/first"
echo "checkpoint: $(since "$begun"), $(du -sh "$dir/first/checkpoints/000001" | cut -f1)"
[[ $(ask "$port") == "$expected" ]] || fail "the first server answers otherwise after its checkpoint"
cucriu jobs stop "$dir/first" >/dev/null
wait "$first" || true

[[ ! ${CUCRIU_ON_DISK-} ]] || from_disk
begun=$(now)
start alone 8001 0
answers alone 8001 "$begun"
memory alone
[[ ! ${CUCRIU_ON_DISK-} ]] || exit 0
if ((gpus > 1)); then
	cucriu jobs stop "$dir/alone" >/dev/null
	wait "${pids[0]}" || true
	begun=$(now)
	start left 8002 0
	start right 8003 1
	answers left 8002 "$begun" &
	left=$!
	answers right 8003 "$begun"
	wait "$left"
	answers left 8002 "$(now)"
	memory left right
	clear_up
	wait "${pids[@]}" || true
	pids=()
fi
begun=$(now)
together=()
start one-of-four-1 8011 0 --restart always
for n in 2 3 4; do start "one-of-four-$n" "801$n" 0; done
for n in 1 2 3 4; do
	answers "one-of-four-$n" "801$n" "$begun" &
	together+=($!)
done
for n in "${together[@]}"; do wait "$n"; done
memory one-of-four-{1,2,3,4}
((${CUCRIU_LOAD:-0} == 0)) || under_load "$CUCRIU_LOAD"
begun=$(now)
cucriu jobs stop "$dir/alone" >/dev/null 2>&1 || true
if ((gpus < 2)); then wait "${pids[0]}" || true; fi
begun=$(now)
CUDA_VISIBLE_DEVICES=0 cucriu run --dir "$dir/alone" >>"$dir/alone.log" 2>&1 &
pids+=($!)
answers "alone, resumed from its own checkpoint" 8001 "$begun"
nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv,noheader 2>/dev/null || true
grep -h 'published\|files of its own\|warning' "$dir"/*.log | sort -u
echo "all answers are the same"
