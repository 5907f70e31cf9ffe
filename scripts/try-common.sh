# shellcheck shell=bash
# Sourced by the scripts that try cucriu under a scheduler (try-*.sh), after common.sh. Such a script defines state, which prints what the
# scheduler knows, and inside, which runs in pid and mount namespaces of its own: whatever it starts ends with it, and what it writes in /etc
# and /usr/local is seen by nobody else.

user=cucriu-try
# shellcheck disable=SC2034,SC2154 # for those that source this, and from those
workload=$repo/build/workload/cudawork

say() { printf '%s  %s\n' "$(date -u +%H:%M:%S)" "$*"; }

fail() {
	printf 'FAILED: %s\n' "$*"
	local log
	state || true
	for log in "$dir"/*.log "$dir"/home/*.log; do
		if [[ -s $log ]]; then
			printf -- '--- %s\n' "$log"
			tail -n 25 "$log"
		fi
	done
	exit 1
}

# await SECONDS WHAT COMMAND...: waits until the command succeeds.
await() {
	local end=$((SECONDS + $1)) what=$2
	shift 2
	until "$@"; do
		((SECONDS < end)) || fail "not seen in time: $what"
		sleep 0.2
	done
}

# run_in_namespaces PROGRAMS PACKAGES [ARG...]
run_in_namespaces() {
	local programs=$1 packages=$2 program missing=()
	shift 2
	if [[ ${1:-} == --inside ]]; then
		dir=$2
		criu=$3
		inside
		return
	fi
	((EUID == 0)) || die "this needs root"
	for program in build/test/cucriu build/workload/cudawork build/cudasim/cudasim-run; do
		[[ -x $repo/$program ]] || die "$program is missing" "make build sim workload tools"
	done
	for program in $programs; do
		have "$program" || missing+=("$program")
	done
	if ((${#missing[@]} > 0)); then
		have apt-get || die "${missing[*]}: missing, and there is no apt-get"
		note "installing $packages"
		# shellcheck disable=SC2086 # a list
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >&2
	fi
	local keep=no rc=0
	if [[ ${1:-} == --keep ]]; then keep=yes; fi
	dir=$(mktemp -d /tmp/cucriu-try.XXXXXX)
	chmod 0755 "$dir"
	criu=$("$repo/scripts/provide-criu.sh")
	"$repo/scripts/clean-exec.sh" unshare --pid --mount --mount-proc --ipc --uts --fork --kill-child -- \
		"$BASH" "${BASH_SOURCE[1]}" --inside "$dir" "$criu" || rc=$?
	if [[ $keep == yes ]]; then
		note "the logs are in $dir"
	else
		rm -rf "$dir"
	fi
	exit "$rc"
}

# make_host makes /etc, /usr/local and what is kept at run time private, and makes the user.
make_host() {
	mkdir "$dir/overlay"
	mount -t tmpfs -o mode=0755 tmpfs "$dir/overlay"
	local path
	for path in /etc /usr/local; do
		mkdir -p "$dir/overlay$path/upper" "$dir/overlay$path/work"
		mount -t overlay -o "lowerdir=$path,upperdir=$dir/overlay$path/upper,workdir=$dir/overlay$path/work" overlay "$path"
	done
	mkdir -p /etc/cucriu /etc/slurm "$dir/shared"
	groupadd cucriu
	useradd --create-home --home-dir "$dir/home" --groups cucriu "$user"
	# shellcheck disable=SC2034 # for those that source this
	home=$dir/home
}

# simulated_host makes a simulated host, and prints its environment for a shell, and the criu to use.
simulated_host() {
	"$repo/build/cudasim/cudasim-run" --root "$dir/sim" 2>/dev/null
	chown -R "$user" "$dir"/sim/{collective,gpu,procs} # what the simulated kernel module would write for everybody
	printf 'export CUCRIU_CRIU=%q\n' "$criu"
}

# who_can_be_dumped prints the user whose job can be dumped here. criu reads the limits of a process with prlimit(2), and for
# those of another user that needs CAP_SYS_RESOURCE, which root may lack in a container.
who_can_be_dumped() {
	local capabilities
	capabilities=$(awk '$1 == "CapEff:" { print $2 }' /proc/self/status)
	if (((16#$capabilities >> 24) & 1)); then
		printf '%s\n' "$user"
	else
		note "root has no CAP_SYS_RESOURCE here, so the job that is dumped is root's, and the others are $user's"
		printf 'root\n'
	fi
}

# shellcheck disable=SC2154 # the script sets work
tick() { sed -n 's/.*"tick":\([0-9]*\).*/\1/p' "$work/status"; }

note_tick() { before=$(tick); }

beyond() { (($(tick) > before + 50)); }

# goes_on WHAT: the workload is beyond where it was before that, and its content is right.
goes_on() {
	await 30 "the workload goes on after $1" beyond
	right_result
	say "after $1 it goes on: tick $before before, $(tick) now; $(grep -E 'resumes from checkpoint' "$log" | tail -1 | sed 's/^cucriu: //; s/.*"message":"\([^"]*\)".*/\1/')"
}

right_result() { grep -q '"bad":0' "$work/status" || fail "wrong content: $(cat "$work/status")"; }

# kill_all_of_it kills the job, cucriu and who started it at once, as the loss of the node does.
kill_all_of_it() {
	local pids
	mapfile -t pids < <(pgrep -x 'slurmstepd|condor_starter|sudo|cucriu|cudawork')
	kill -KILL "${pids[@]}"
}

no_workload() { ! pgrep -x 'cudawork|cucriu' >/dev/null; }

# owner_elsewhere D makes the record of the owner that of another host that has not given the directory back.
owner_elsewhere() {
	sed -i -E 's/"host": ?"[^"]*"/"host":"lost-node"/; s/"machine": ?"[^"]*"/"machine":"another"/; s/"boot_id": ?"[^"]*"/"boot_id":"00000000-0000-0000-0000-000000000000"/; s/"released": ?true/"released":false/; /"crc32c"/d' "$1/owner.json"
	grep -q lost-node "$1/owner.json" || fail "owner.json was not changed: $(cat "$1/owner.json")"
}
