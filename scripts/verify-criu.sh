#!/usr/bin/env bash
# verify-criu.sh CRIU: dumps and restores a sleep(1) with it, in a pid and mount namespace of its own, where the pid is sure to be
# free again after the dump. Needs root.
set -euo pipefail
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
. "$scripts/common.sh"

# The first process of the namespace: it adopts and reaps what criu leaves behind.
inside() {
	local criu=$1 images=$2 pid

	cd /
	setsid sleep 1000 </dev/null >/dev/null 2>&1 &
	pid=$!
	# setsid first makes the session and then executes sleep. A dump before that would be of the wrong program.
	until [[ $(cat "/proc/$pid/comm") == sleep ]]; do sleep 0.01; done

	timeout 60 "$criu" dump --no-default-config -t "$pid" -D "$images" -o dump.log </dev/null >/dev/null 2>&1 || return 3
	wait "$pid" 2>/dev/null || true # reap it, so that its pid is free
	[[ ! -e /proc/$pid ]] || return 4
	timeout 60 "$criu" restore --no-default-config -d -D "$images" -o restore.log </dev/null >/dev/null 2>&1 || return 5
	[[ $(cat "/proc/$pid/comm" 2>/dev/null) == sleep ]] || return 6
	kill -KILL "$pid"
}

if [[ ${1:-} == --inside ]]; then
	inside "$2" "$3"
	exit
fi

criu=${1:?usage: verify-criu.sh CRIU}
images=$(mktemp -d "${TMPDIR:-/tmp}/cucriu-verify.XXXXXX")
trap 'rm -rf "$images"' EXIT

if ! timeout 20 unshare --pid --mount --fork --mount-proc true 2>"$images/unshare.log"; then
	cat "$images/unshare.log" >&2
	die "cannot make a pid and mount namespace to try CRIU in" \
		"Run as root with CAP_SYS_ADMIN (in a container: --privileged)."
fi

rc=0
timeout 150 "$scripts/clean-exec.sh" unshare --pid --mount --fork --kill-child --mount-proc \
	bash "${BASH_SOURCE[0]}" --inside "$criu" "$images" 2>"$images/inside.log" || rc=$?
if ((rc == 0)); then
	exit 0
fi

log=dump.log
case $rc in
3) what="cannot dump a process" ;;
4) what="left the dumped process behind" ;;
5) what="cannot restore a process" log=restore.log ;;
6) what="says that it restored a process, which is not there" log=restore.log ;;
*) what="could not be tried (exit status $rc)" log=inside.log ;;
esac
# Without CAP_SYS_RESOURCE, the first error of criu is always that it cannot raise RLIMIT_NOFILE. It is harmless.
if [[ -s $images/$log ]]; then
	grep -v 'RLIMIT_NOFILE' "$images/$log" | tail -n 15 >&2 || true
fi
die "$criu $what on kernel $(uname -r) (the end of its $log is above)" \
	"See what the kernel lacks: $criu check --all" "Use another CRIU >= 4.0: CUCRIU_TEST_CRIU=/path/to/criu"
