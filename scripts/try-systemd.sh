#!/usr/bin/env bash
# try-systemd.sh: proves configs/systemd on this machine, also where systemd is not the first process. It starts a systemd of its own
# (systemd --user, as root) in namespaces, and in it cucriu-job@.service as it is but for the path of cucriu, with the CUDA workload
# on the simulated driver. The unit is stopped, started, killed and preempted, and the job ends and fails. The script fails if
# anything else happens than should. Nothing is left running. Needs root and systemd. Build first: make build sim workload tools
#
#   scripts/try-systemd.sh [--keep]     --keep keeps the directory with all logs
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$repo/scripts/try-common.sh"

sc() { systemctl --user "$@"; }

state() { sc status --no-pager --full 'cucriu-job@*' | grep -v '─'; }

# is UNIT PROPERTY VALUE
is() { [[ $(sc show --value --property="$2" "cucriu-job@$1") == "$3" ]]; }

own_systemd() {
	export XDG_RUNTIME_DIR=$dir/xdg XDG_CONFIG_HOME=$dir/config HOME=$dir/home
	unset DBUS_SESSION_BUS_ADDRESS
	mkdir -p "$XDG_RUNTIME_DIR" "$HOME" "$dir/config/systemd/user" && chmod 0700 "$XDG_RUNTIME_DIR"
	sed "s,/usr/bin/cucriu,$repo/build/test/cucriu," "$repo/configs/systemd/cucriu-job@.service" >"$dir/config/systemd/user/cucriu-job@.service"
	# Half a minute between starts is too long for a test. The unit's own output goes to a file, since there is no journal.
	mkdir "$dir/config/systemd/user/cucriu-job@.service.d"
	printf '[Service]\nRestartSec=1s\nStandardOutput=append:%s/%%i.log\nStandardError=append:%s/%%i.log\n' "$dir" "$dir" \
		>"$dir/config/systemd/user/cucriu-job@.service.d/try.conf"
	printf '[Unit]\nDescription=Nothing else\n' >"$dir/config/systemd/user/default.target"
	mount -t tmpfs tmpfs /run
	mkdir -p /run/systemd/system # else systemd believes that this host has none
	SYSTEMD_LOG_TARGET=console SYSTEMD_LOG_LEVEL=info /lib/systemd/systemd --user >"$dir/systemd.log" 2>&1 &
	await 30 "systemd is ready" test -S "$XDG_RUNTIME_DIR/systemd/private"
}

# job NAME COMMAND: writes the environment file of a job.
job() {
	mkdir -p /etc/cucriu/jobs
	{
		simulated_host | sed "s/^export //; s/'//g; s/;\$//"
		printf 'DIR=%s\nCOMMAND=%s\nOPTIONS=%s\n' "$dir/shared/$1" "$2" "--every 2s --keep 3 --grace 20s"
	} >"/etc/cucriu/jobs/$1.env"
}

inside() {
	make_host
	own_systemd
	say "$(systemctl --version | head -1); CRIU $(criu_version "$criu")"
	work=$dir/work log=$dir/train.log

	job train "$workload --dir $work --mib 64 --loaders 2"
	sc start cucriu-job@train
	await 30 "it has two checkpoints" grep -qs 'checkpoint 000002' "$log"
	say "cucriu-job@train runs, and has checkpoints"

	note_tick
	sc stop cucriu-job@train
	is train ActiveState inactive && is train Result success || fail "the stopped unit is $(sc is-active cucriu-job@train)"
	no_workload || fail "the unit is stopped, and the workload runs"
	grep -q 'no last checkpoint' "$log" && fail "there is no last checkpoint"
	sc start cucriu-job@train
	goes_on "systemctl stop and start"

	note_tick
	kill -TERM "$(sc show --value --property=MainPID cucriu-job@train)"
	await 30 "it is restarted" is train NRestarts 1
	goes_on "a SIGTERM from elsewhere"

	note_tick
	kill -KILL "$(sc show --value --property=MainPID cucriu-job@train)"
	await 30 "it is restarted" is train NRestarts 2
	goes_on "a kill -9 of cucriu"

	note_tick
	sc restart cucriu-job@train
	goes_on "systemctl restart"

	touch "$work/stop"
	await 30 "the unit has ended" is train ActiveState inactive
	sleep 3
	is train ActiveState inactive && is train Result success && is train ExecMainStatus 0 || fail "the unit was not left alone"
	right_result
	say "the job ended with 0, and is not restarted: $(cat "$work/status")"
	sc start cucriu-job@train
	await 10 "it says so" grep -q 'train has finished' "$log"
	say "started once more, the unit ends at once: $(grep 'train has finished' "$log")"

	job bad "sh -c 'sleep 0.2; exit 3'"
	log=$dir/bad.log
	sc start cucriu-job@bad
	await 60 "the unit has failed for good" is bad ActiveState failed
	starts=$(grep -c 'has ended with exit status 3' "$log")
	((starts == 10)) || fail "it was started $starts times"
	say "a job that always fails with 3 is given up after $starts starts: failed"

	job typo "/nonexistent/train.sh"
	sc start cucriu-job@typo 2>/dev/null || true
	await 20 "the unit has failed" is typo ActiveState failed
	is typo NRestarts 0 && is typo ExecMainStatus 127 || fail "a command that is not found was restarted"
	say "a command that does not exist is 127: failed, and not restarted"
	sc exit 2>/dev/null || true
}

run_in_namespaces "systemctl /lib/systemd/systemd" "systemd" "$@"
