#!/usr/bin/env bash
# try-htcondor.sh: proves configs/htcondor. It makes a Debian 13 with HTCondor and sudo in build/htcondor-root (by debootstrap; Debian 12
# has no HTCondor), starts a pool of one machine there, in namespaces of its own, and submits job.sub as it is but for the memory that it requests,
# with the CUDA workload on the simulated driver. The job is vacated, held and released, gets a signal, loses its machine, and ends;
# other jobs fail. Each time the script checks what became of the job, and fails if that is not what it should be. Nothing is left running.
# Needs root. Build first: make build sim workload tools
#
#   scripts/try-htcondor.sh [--keep]     --keep keeps the directory with all logs
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$repo/scripts/try-common.sh"

debian=$repo/build/htcondor-root

# make_debian makes the root directory, once.
make_debian() {
	if [[ -e $debian/made ]]; then
		return
	fi
	have debootstrap || die "debootstrap is missing" "apt-get install debootstrap"
	note "making a Debian 13 with HTCondor in $debian"
	rm -rf "$debian"
	debootstrap --variant=minbase trixie "$debian" "$("$repo/scripts/debian-mirror.sh" | head -1)" >&2
	printf '#!/bin/sh\nexit 101\n' >"$debian/usr/sbin/policy-rc.d" # no daemon is started by its package
	chmod 0755 "$debian/usr/sbin/policy-rc.d"
	unshare --mount --pid --fork --mount-proc="$debian/proc" chroot "$debian" sh -c 'apt-get update -qq &&
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends condor sudo procps iproute2 util-linux' >&2
	touch "$debian/made"
}

# enter_debian makes it the root of this mount namespace. What is written there is gone afterwards.
enter_debian() {
	local path root=$dir/root
	mkdir -p "$root" "$dir/changes"
	mount -t tmpfs -o mode=0755 tmpfs "$dir/changes"
	mkdir "$dir/changes/upper" "$dir/changes/work"
	mount -t overlay -o "lowerdir=$debian,upperdir=$dir/changes/upper,workdir=$dir/changes/work" overlay "$root"
	mkdir -p "$root/.old" "$root$repo" "$root/srv/try"
	for path in /proc /sys /dev; do
		mount --rbind "$path" "$root$path"
	done
	mount --bind "$repo" "$root$repo"
	mount --bind "$dir" "$root/srv/try" # HTCondor gives each job a /tmp of its own
	cd "$root"
	pivot_root . .old
	cd /
	umount --lazy /.old
	hash -r
	dir=/srv/try
	echo "127.0.0.1 localhost $(hostname)" >/etc/hosts
}

daemons() {
	cat >/etc/condor/config.d/99-try.config <<-EOF
		DAEMON_LIST = MASTER, SHARED_PORT, COLLECTOR, NEGOTIATOR, SCHEDD, STARTD
		CONDOR_HOST = 127.0.0.1
		NETWORK_INTERFACE = 127.0.0.1
		SHARED_PORT_PORT = $((18000 + RANDOM % 1000))
		COLLECTOR_HOST = \$(CONDOR_HOST):\$(SHARED_PORT_PORT)
		FILESYSTEM_DOMAIN = try
		UID_DOMAIN = try
		SEC_DEFAULT_AUTHENTICATION_METHODS = FS
		ALLOW_READ = *
		ALLOW_WRITE = *
		ALLOW_DAEMON = *
		ALLOW_NEGOTIATOR = *
		ALLOW_ADMINISTRATOR = *
		BASE_CGROUP =
		START = True
		SUSPEND = False
		PREEMPT = False
		NUM_SLOTS = 1
		NUM_SLOTS_TYPE_1 = 1
		SLOT_TYPE_1 = 100%
		NEGOTIATOR_INTERVAL = 3
		NEGOTIATOR_CYCLE_DELAY = 1
		SCHEDD_INTERVAL = 3
		UPDATE_INTERVAL = 3
		RUNBENCHMARKS = False
		MachineMaxVacateTime = 60
		# In place of condor_gpu_discovery, which looks for real ones:
		MACHINE_RESOURCE_INVENTORY_GPUs = $dir/gpus
	EOF
	# It prints the beginning of the UUID, as that program does.
	printf '#!/bin/sh\necho "DetectedGPUs=\\"%s\\""\n' "$(sed -n 's/^GPU UUID:[[:space:]]*\(GPU-[0-9a-f]*\).*/\1/p' "$dir"/sim/proc/driver/nvidia/gpus/*/information | paste -sd,)" >"$dir/gpus"
	chmod 0755 "$dir/gpus"
	condor_master -f >"$dir/master.out" 2>&1 &
	await 60 "the pool has a machine" machine_is_there
}

machine_is_there() { [[ -n $(condor_status -af Name 2>/dev/null) ]]; }

state() {
	local file
	condor_q -allusers -nobatch || true
	condor_q -allusers -af:jl JobStatus HoldReason NumJobStarts || true
	cp /var/log/condor/*Log* "$dir/" || true
	for file in "$dir"/*Log*; do mv "$file" "$file.log"; done
}

# submit COMMAND: submits job.sub as the user, and prints the number of the job.
submit() {
	(cd "$home" && runuser -u "$user" -- condor_submit -terse "$home/job.sub" command="$1" | sed 's/ .*//')
}

# As HTCondor numbers them.
# shellcheck disable=SC2034 # idle
idle=1 running=2 held=5

is() { [[ $(condor_q "$1" -af JobStatus) == "$2" ]]; }

sleeps() { pgrep -x sleep >/dev/null; }

# ended JOB: the job has left the queue.
ended() { [[ -z $(condor_q "$1" -af JobStatus) ]]; }

# was JOB FIELD prints a field of a job that has left the queue.
was() { condor_history "$1" -limit 1 -af "$2"; }

has_two() { grep -qs 'checkpoint 000002' "$home/$job.0.err"; }

# again N WHAT: job $job runs again, for the Nth time, from its newest checkpoint.
again() {
	await 90 "it goes on from a checkpoint after $2" resumed "$1"
	is "$job" "$running" || fail "the job does not run"
	goes_on "$2"
}

resumed() { [[ $(grep -c '"event":"resumed"' "$log") == "$1" ]]; }

# last_checkpoint_made N: the job was preempted N times, each with a last checkpoint.
last_checkpoint_made() {
	(($(grep -c 'got SIGTERM' "$log") == $1 && $(grep -c 'no last checkpoint' "$log") == 0))
}

inside() {
	enter_debian
	make_host
	install -m 0440 "$repo/configs/htcondor/sudoers" /etc/sudoers.d/cucriu-condor
	install -m 0755 "$repo/configs/htcondor/cucriu-condor" /usr/local/sbin/
	sed '/^request_memory/d' "$repo/configs/htcondor/job.sub" >"$home/job.sub"
	work=$home/work
	owner=$(who_can_be_dumped)
	{
		simulated_host
		echo "ROOT=$dir/shared"
		echo "CUCRIU=$repo/build/test/cucriu"
		echo "OPTIONS=(--every 2s --keep 3 --grace 20s)"
		if [[ $owner == root ]]; then
			# HTCondor takes no jobs of root's.
			echo "if [[ \$1 == $workload ]]; then as_user=(env); fi"
		fi
	} >/etc/cucriu/htcondor
	daemons
	say "HTCondor $(condor_version | sed -n 's/^\$CondorVersion: \([^ ]*\).*/\1/p') on one machine; $(sudo --version | head -1); CRIU $(criu_version "$criu")"

	job=$(submit "$workload --dir $work --mib 64 --loaders 2")
	await 60 "the job runs" is "$job" "$running"
	await 30 "it has two checkpoints" has_two
	log=$(ls "$dir/shared/$(id -u "$user")"/*/events.jsonl)
	[[ $(stat -c %U "$work/status") == "$owner" ]] || fail "the workload does not run as $owner"
	say "job $job runs, and has checkpoints"

	note_tick
	condor_vacate_job "$job" >&2
	again 1 "condor_vacate_job"
	last_checkpoint_made 1 || fail "there is no last checkpoint"

	note_tick
	condor_hold "$job" >&2
	await 60 "the job is held" is "$job" "$held"
	await 30 "nothing of it runs" no_workload
	last_checkpoint_made 2 || fail "there is no last checkpoint"
	condor_release "$job" >&2
	again 2 "condor_hold and condor_release"

	note_tick
	pkill -TERM -x -o cucriu
	await 60 "the job is started again" resumed 3
	last_checkpoint_made 3 || fail "there is no last checkpoint"
	again 3 "a SIGTERM from elsewhere, which makes it end with 85"

	note_tick
	kill_all_of_it
	await 60 "nothing of it runs" no_workload
	owner_elsewhere "${log%/*}"
	again 4 "the loss of its machine, which had not given the job back"
	grep -q 'taken over.*lost-node' "$home/$job".*.err || fail "it is not said from whom the job was taken over"

	touch "$work/stop"
	await 60 "the job has left the queue" ended "$job"
	[[ $(was "$job" JobStatus) == 4 && $(was "$job" ExitCode) == 0 ]] || fail "it ended with $(was "$job" ExitCode)"
	right_result
	say "job $job completed with 0 after $(was "$job" NumJobStarts) starts: $(cat "$work/status")"

	job=$(submit "sh -c 'sleep 1; exit 3'")
	await 60 "the job that fails has left the queue" ended "$job"
	[[ $(was "$job" ExitCode) == 3 && $(was "$job" NumJobStarts) == 1 ]] || fail "it ended with $(was "$job" ExitCode)"
	say "a job that fails with 3 completes with 3, and is not started again"

	mv "$dir/shared/$(id -u "$user")" "$dir/away" && : >"$dir/shared/$(id -u "$user")"
	job=$(submit "true")
	await 60 "the job is held" is "$job" "$held"
	say "a job for which cucriu itself fails (its directory cannot be made) is held: $(condor_q "$job" -af HoldReason)"
	rm "$dir/shared/$(id -u "$user")" && mv "$dir/away" "$dir/shared/$(id -u "$user")"
	condor_release "$job" >&2
	await 60 "the released job has left the queue" ended "$job"
	[[ $(was "$job" ExitCode) == 0 ]] || fail "it ended with $(was "$job" ExitCode)"
	say "released, it completes"

	job=$(submit "sleep 1000")
	await 60 "the job runs" is "$job" "$running"
	await 30 "cucriu has started it" sleeps
	condor_rm "$job" >&2
	await 60 "the job has left the queue" ended "$job"
	await 60 "nothing of it runs" no_workload
	say "a job that is removed is not started again"
}

if [[ ${1:-} != --inside ]]; then
	((EUID == 0)) || die "this needs root"
	make_debian
fi
run_in_namespaces "" "" "$@"
