#!/usr/bin/env bash
# private-exec.sh [--in-memory] COMMAND...: runs a command apart from this host's configuration of criu and cucriu, and apart from other such
# commands. The command has
#   - a temporary directory of its own ($TMPDIR), which is removed when the command has ended, even if it was killed; with --in-memory, it is
#     kept in memory where there is enough, so that nobody waits for a disk
#   - a mount namespace of its own, in which criu's and cucriu's configuration, cucriu's sessions and shared memory are empty, and /run is in memory
#   - no descriptors but standard input, output and error (clean-exec.sh)
# The script executes the command instead of waiting for it, so signals and the exit status are the command's own. Needs root.
set -euo pipefail
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)

# Not from common.sh: the GPU bundle contains this script without it.
die() {
	printf '%s: error: %s\n' "${0##*/}" "$1" >&2
	shift
	printf '  %s\n' "$@" >&2
	exit 1
}

no_namespace() { # WHAT WHY
	die "$1: $2" \
		"The tests, the demo and the benchmark run in a mount namespace of their own, apart from this host's configuration." \
		"Run this as root with CAP_SYS_ADMIN (in a container: --privileged)."
}

# What the tests have in files at once is far below this, and a machine that is short of memory keeps them on its disk.
enough_kib=$((12 << 20))

if [[ ${1:-} == --inside ]]; then
	dir=$2
	in_memory=$3
	shift 3
	hidden=0
	for place in /etc/criu /etc/cucriu /run/cucriu "${HOME:-/root}/.criu"; do
		if [[ -d $place ]]; then
			empty=$dir/hidden-$((++hidden))
			mkdir -m 0755 "$empty"
			why=$(mount --bind "$empty" "$place" 2>&1) || no_namespace "cannot hide $place" "$why"
		fi
	done
	# Of what is in /run, criu keeps what it has found out about the kernel, if that is in memory, as on most machines. On the others
	# every criu would try it all again.
	if [[ $(stat -f -c %T /run) != tmpfs ]]; then
		# Below another file system nobody can unmount it any more, and criu dumps no mount namespace with the network namespaces of
		# ip netns and Docker.
		below=()
		while read -r _ _ _ _ point _; do [[ $point != /run/* ]] || below=("$point" "${below[@]}"); done </proc/self/mountinfo
		((${#below[@]} == 0)) || umount --lazy "${below[@]}"
		mkdir "$dir/run-of-host"
		why=$({ mount --bind /run "$dir/run-of-host" && mount -t tmpfs -o mode=0755,nosuid,nodev tmpfs /run && mkdir -m 1777 /run/lock; } 2>&1) ||
			no_namespace "cannot mount a /run in memory" "$why"
		if [[ -d $dir/run-of-host/nvidia-persistenced ]]; then
			mkdir /run/nvidia-persistenced
			mount --bind "$dir/run-of-host/nvidia-persistenced" /run/nvidia-persistenced
		fi
		umount "$dir/run-of-host"
	fi
	if [[ -d /dev/shm ]]; then
		why=$(mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /dev/shm 2>&1) || no_namespace "cannot mount an own /dev/shm" "$why"
	fi
	available=$(sed -nE 's/^MemAvailable: +([0-9]+) kB/\1/p' /proc/meminfo)
	if [[ $in_memory == yes ]] && ((${available:-0} >= enough_kib)); then
		why=$(mount -t tmpfs -o mode=1777,size=60%,nr_inodes=0 tmpfs "$dir/tmp" 2>&1) || no_namespace "cannot keep temporary files in memory" "$why"
	fi
	unset CRIU_CONFIG_FILE CRIU_LIBS_DIR CUCRIU_CONFIG
	export TMPDIR=$dir/tmp CUCRIU_RUN_DIR=$dir/run
	exec "$scripts/clean-exec.sh" "$@"
fi

in_memory=no
if [[ ${1:-} == --in-memory ]]; then
	in_memory=yes
	shift
fi
(($# > 0)) || die "there is no command" "usage: private-exec.sh [--in-memory] COMMAND..."
type -P unshare >/dev/null || die "unshare is missing" "Install util-linux."
why=$(unshare --mount true 2>&1) || no_namespace "cannot make a mount namespace" "$why"

dir=$(mktemp -d "${TMPDIR:-/tmp}/private.XXXXXX")
# Everybody may enter this directory and use the temporary directory in it, as with /tmp.
chmod 0755 "$dir"
mkdir -m 1777 "$dir/tmp"
# This process cleans up when the present one, which becomes the command, has ended. It has a session of its own, so that no
# Ctrl-C or hangup ends it before that.
"$scripts/clean-exec.sh" setsid --fork \
	bash -c 'cd /; tail --pid="$1" --follow /dev/null; rm -rf -- "$2"' private-exec.sh "$$" "$dir" \
	</dev/null >/dev/null 2>&1
exec unshare --mount -- bash "${BASH_SOURCE[0]}" --inside "$dir" "$in_memory" "$@"
