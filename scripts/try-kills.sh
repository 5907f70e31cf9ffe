#!/usr/bin/env bash
# try-kills.sh DIR SECONDS PROGRAM [ARGUMENT...]: runs a program undisturbed, then under cucriu run with a checkpoint a second, and for so
# many seconds kills, at random moments, any of the programs of cucriu and criu that are at work. Who has lost its supervisor is started
# again. In the end every line "step N ..." must be as without all that. DIR must not exist yet. Needs root, cucriu in PATH, and CUCRIU_CRIU.
set -euo pipefail
# Where the first process reaps no orphans, this shell does (PR_SET_CHILD_SUBREAPER).
if [[ -z ${REAPS-} ]]; then
	REAPS=1 exec python3 -c 'import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])' "$BASH" "$0" "$@"
fi
unset REAPS
dir=${1:?usage: try-kills.sh DIR SECONDS PROGRAM [ARGUMENT...]}
length=$2
shift 2
mkdir "$dir"
log=$dir/cucriu.log output=$dir/job/output.log

fail() {
	echo "FAILED: $*" >&2
	tail -n 30 "$log" >&2
	tail -n 30 "$output" >&2
	exit 1
}
start() {
	cucriu run --dir "$dir/job" --every 1s -- "$@" >>"$log" 2>&1 </dev/null &
	run=$!
}
steps() { grep '^step ' "$1"; }

"$@" >"$dir/undisturbed.log" 2>&1 </dev/null || fail "the program fails undisturbed: see $dir/undisturbed.log"
echo "undisturbed: $(steps "$dir/undisturbed.log" | wc -l) steps, $SECONDS s"

start "$@"
status=unknown
declare -A kills=() programs=(
	[criu]='^[^ ]*criu: |criu swrk ' [hook]='^[^ ]*cucriu-hook ' [dump]=' job-inside' [supervisor]='^cucriu run ' [init]=' sandbox-init '
)
end=$((SECONDS + length))
while ((SECONDS < end)); do
	sleep "$((RANDOM % 3)).$((RANDOM % 10))"
	if ! kill -0 "$run" 2>/dev/null; then
		status=0
		wait "$run" 2>/dev/null || status=$?
		((status != 0)) || break # the job has finished
		echo "$(date +%T) cucriu run has ended with $status; started again" >>"$log"
		start "$@"
		continue
	fi
	victims=()
	for who in "${!programs[@]}"; do
		if pids=$(pgrep -f "${programs[$who]}"); then
			victims+=("$who:$(shuf -n 1 <<<"$pids")")
		fi
	done
	((${#victims[@]} > 0)) || continue
	victim=${victims[RANDOM % ${#victims[@]}]} who=${victim%:*}
	# The first process of the job's namespace takes the job along, like a power cut. That costs time, so it is rare.
	[[ $who != init ]] || ((RANDOM % 8 == 0)) || continue
	if kill -KILL "${victim#*:}" 2>/dev/null; then
		echo "$(date +%T) killed $victim" >>"$log"
		kills[$who]=$((${kills[$who]-0} + 1))
	fi
done
until [[ $status == 0 ]]; do
	status=0
	wait "$run" 2>/dev/null || status=$?
	((status == 0)) || start "$@"
	((SECONDS < end + 300)) || fail "the job has not finished"
done

lines() { grep -c "$1" "$log" || true; }
for who in "${!kills[@]}"; do echo "killed $who: ${kills[$who]}"; done
echo "checkpoints: $(lines 'paused for'); not made: $(lines 'no checkpoint'); found running: $(lines 'supervised again'); resumed: $(lines 'job resumes'); $SECONDS s"
echo "the job failed by itself: $(lines 'job has ended with exit status [1-9]')"
echo "steps: $(steps "$output" | wc -l) printed, $(steps "$output" | sort -u | wc -l) different"
diff <(steps "$dir/undisturbed.log" | sort -u) <(steps "$output" | sort -u) || fail "it has computed something else"
