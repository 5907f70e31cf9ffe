#!/usr/bin/env bash
# try-slurm.sh: proves configs/slurm on this machine. It installs Slurm, munge and sudo from Debian if they are missing, starts a
# Slurm of one node in namespaces of its own, and submits job.sbatch as it is, with the CUDA workload on
# the simulated driver. The job is preempted, reaches its time limit, loses its node, and ends; other jobs fail. Each time the
# script checks what became of the job, and fails if that is not what it should be. Nothing is left running, and nothing in /etc is
# changed but by the packages. Needs root. Build first: make build sim workload tools
#
#   scripts/try-slurm.sh [--keep]     --keep keeps the directory with all logs
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$repo/scripts/try-common.sh"

daemons() {
	local cpus memory
	cpus=$(slurmd -C | sed -n 's/.*CPUs=\([0-9]*\).*/\1/p')
	memory=$(slurmd -C | sed -n 's/.*RealMemory=\([0-9]*\).*/\1/p')
	mkdir -p "$dir"/{munge,state,spool} && chmod 0755 "$dir/munge"
	head -c 64 /dev/urandom >"$dir/munge.key" && chmod 0400 "$dir/munge.key"
	cat >/etc/slurm/slurm.conf <<-EOF
		ClusterName=try
		SlurmctldHost=$(hostname)(127.0.0.1)
		SlurmctldPort=$((16000 + RANDOM % 1000))
		SlurmdPort=$((17000 + RANDOM % 1000))
		SlurmUser=root
		SlurmdUser=root
		AuthType=auth/munge
		AuthInfo=socket=$dir/munge/socket
		CredType=cred/munge
		StateSaveLocation=$dir/state
		SlurmdSpoolDir=$dir/spool
		SlurmctldPidFile=$dir/slurmctld.pid
		SlurmdPidFile=$dir/slurmd.pid
		SlurmctldLogFile=$dir/slurmctld.log
		SlurmdLogFile=$dir/slurmd.log
		ProctrackType=proctrack/linuxproc
		TaskPlugin=task/none
		JobAcctGatherType=jobacct_gather/none
		MpiDefault=none
		SwitchType=switch/none
		ReturnToService=2
		KillWait=10
		SchedulerParameters=sched_interval=5
		SelectType=select/cons_tres
		SelectTypeParameters=CR_CPU
		# What a site sets for preemption:
		PreemptType=preempt/partition_prio
		PreemptMode=REQUEUE
		JobRequeue=1
		SlurmctldParameters=preempt_send_user_signal
		NodeName=$(hostname) NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=$memory State=UNKNOWN
		PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=60 MaxTime=UNLIMITED State=UP
		PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=UNLIMITED State=UP
	EOF
	munged --key-file="$dir/munge.key" --socket="$dir/munge/socket" --pid-file="$dir/munged.pid" \
		--seed-file="$dir/munge.seed" --log-file="$dir/munged.log" --force
	slurmctld -c
	slurmd -c
	await 30 "the node is idle" node_is idle
}

state() { scontrol show jobs && sinfo; }

node_is() { [[ $(sinfo --noheader --format=%t --partition=low) == "$1"* ]]; }

# field JOB NAME prints a field of scontrol show job.
field() { scontrol --oneliner show job "$1" | grep -oE "(^| )$2=[^ ]*" | head -1 | cut -d= -f2; }

is() { [[ $(field "$1" "$2") == "$3" ]]; }

# submit USER OPTION... -- COMMAND...: submits job.sbatch as a user, and prints the number of the job.
submit() {
	local as=$1
	shift
	local options=()
	while [[ $1 != -- ]]; do
		options+=("$1")
		shift
	done
	shift
	(cd "$home" && runuser -u "$as" -- sbatch --parsable --output="$home/%j.log" "${options[@]}" "$repo/configs/slurm/job.sbatch" "$@")
}

# again N WHAT: job $job runs again, for the Nth time, from its newest checkpoint.
again() {
	await 60 "the job waits to be started again" is "$job" JobState PENDING
	scontrol update "jobid=$job" starttime=now # Slurm leaves two minutes between a requeue and the start
	await 60 "the job runs again after $2" is "$job" JobState RUNNING
	await 30 "Slurm counts $1 restarts" is "$job" Restarts "$1"
	await 30 "it goes on from a checkpoint" resumed "$1"
	goes_on "$2"
}

# last_checkpoint_made N: the job was preempted N times, each with a last checkpoint.
last_checkpoint_made() {
	(($(grep -c 'got SIGTERM' "$log") == $1 && $(grep -c 'no last checkpoint' "$log") == 0))
}

resumed() { [[ $(grep -c "$job resumes from checkpoint" "$log") == "$1" ]]; }

inside() {
	make_host
	install -m 0440 "$repo/configs/slurm/sudoers" /etc/sudoers.d/cucriu
	install -m 0755 "$repo/configs/slurm/cucriu-slurm" /usr/local/sbin/
	{
		simulated_host
		echo "ROOT=$dir/shared"
		echo "CUCRIU=$repo/build/test/cucriu"
		echo "OPTIONS=(--every 2s --keep 3 --grace 20s)"
	} >/etc/cucriu/slurm
	daemons
	say "$(slurmctld -V) on one node; $(sudo --version | head -1); CRIU $(criu_version "$criu")"

	work=$home/work
	owner=$(who_can_be_dumped)
	job=$(submit "$owner" --time=10 -- "$workload" --dir "$work" --mib 64 --loaders 2)
	log=$home/$job.log
	await 30 "the job runs" is "$job" JobState RUNNING
	await 30 "it has two checkpoints" grep -qs 'checkpoint 000002' "$log"
	[[ $(stat -c %U "$work/status") == "$owner" ]] || fail "the workload does not run as $owner"
	say "job $job of $owner runs, and has checkpoints"

	note_tick
	high=$(sbatch --parsable --partition=high --exclusive --output="$dir/high.log" --wrap 'sleep 5')
	await 90 "the other job has run" is "$high" JobState COMPLETED
	await 5 "a last checkpoint" last_checkpoint_made 1
	again 1 "a preemption"

	note_tick
	scontrol update "jobid=$job" timelimit=1
	await 120 "the time limit has come" is "$job" Restarts 2
	scontrol update "jobid=$job" timelimit=UNLIMITED 2>/dev/null || true
	await 5 "a last checkpoint" last_checkpoint_made 2
	again 2 "its time limit"

	note_tick
	kill_all_of_it
	scontrol update "nodename=$(hostname)" state=down reason=try
	await 60 "the job waits for a node" is "$job" JobState PENDING
	await 60 "nothing of it runs" no_workload
	owner_elsewhere "$dir/shared/$(id -u "$owner")/$job"
	# Slurm takes the node back by itself (ReturnToService=2), unless it has not seen it again yet.
	scontrol update "nodename=$(hostname)" state=resume 2>/dev/null || true
	again 3 "the loss of its node, which had not given the job back"
	grep -q 'taken over.*lost-node' "$log" || fail "it is not said from whom the job was taken over"

	note_tick
	scontrol requeue "$job" # SIGTERM, and SIGKILL after KillWait
	again 4 "a requeue without notice"

	touch "$work/stop"
	await 30 "the job has completed" is "$job" JobState COMPLETED
	is "$job" ExitCode 0:0 || fail "the exit code is $(field "$job" ExitCode)"
	sleep 5
	is "$job" JobState COMPLETED || fail "the job was requeued although it had ended with 0"
	right_result
	say "job $job ended with 0 after $(field "$job" Restarts) restarts, and is not requeued: $(cat "$work/status")"

	job=$(submit "$user" -- sh -c 'sleep 1; exit 3')
	await 30 "the job that fails has failed" is "$job" JobState FAILED
	sleep 5
	is "$job" JobState FAILED && is "$job" ExitCode 3:0 && is "$job" Restarts 0 || fail "$(scontrol show job "$job")"
	say "a job of $user that fails with 3 is FAILED, 3:0, and not requeued"

	job=$(submit "$user" -- bash -c 'trap "exit 0" TERM; sleep 1000 & wait')
	await 30 "the job runs" is "$job" JobState RUNNING
	sleep 2
	scontrol requeue "$job"
	await 60 "the job waits to be started again" is "$job" JobState PENDING
	scontrol update "jobid=$job" starttime=now
	await 60 "the job runs again" is "$job" JobState RUNNING
	sleep 2
	is "$job" JobState RUNNING || fail "a job that ends with 0 at SIGTERM is taken for finished"
	say "a job that ends with 0 at SIGTERM is started again after a requeue"
	restarts=$(field "$job" Restarts)
	scancel "$job"
	await 60 "the job has ended" is "$job" JobState CANCELLED
	sleep 5
	is "$job" JobState CANCELLED && is "$job" Restarts "$restarts" || fail "a job that was cancelled is back"
	say "a job that is cancelled is not requeued"

	mv "$dir/shared/$(id -u "$user")" "$dir/away" && : >"$dir/shared/$(id -u "$user")"
	job=$(submit "$user" -- true)
	await 30 "the job is held" is "$job" Reason job_requeued_in_held_state
	say "a job for which cucriu itself fails (its directory cannot be made) is requeued and held"
	rm "$dir/shared/$(id -u "$user")" && mv "$dir/away" "$dir/shared/$(id -u "$user")"
	scontrol release "$job"
	scontrol update "jobid=$job" starttime=now
	await 150 "the held job completes after its release" is "$job" JobState COMPLETED
	say "released, it completes"
}

run_in_namespaces "slurmctld slurmd munged sbatch sudo" "slurmctld slurmd slurm-client munge sudo" "$@"
