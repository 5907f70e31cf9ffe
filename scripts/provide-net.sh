#!/usr/bin/env bash
# Prints a directory with iperf3 and rsync, beside which make bench-migrate measures, and provides it first if there is none:
#   1. CUCRIU_BENCH_NET, used as it is
#   2. links to those in PATH, if both are there
#   3. Debian's with their libraries, unpacked into .tools/net: nothing is installed in the system
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

programs=(iperf3 rsync)

if [[ -n ${CUCRIU_BENCH_NET:-} ]]; then
	for program in "${programs[@]}"; do
		[[ -x $CUCRIU_BENCH_NET/$program ]] || die "CUCRIU_BENCH_NET=$CUCRIU_BENCH_NET has no $program"
	done
	realpath -s "$CUCRIU_BENCH_NET"
	exit
fi

link_system() {
	local program path
	for program in "${programs[@]}"; do
		path=$(type -P "$program") || return 1
		mkdir -p "$tools/net-system"
		ln -sfn "$path" "$tools/net-system/$program"
	done
}

lock_tools
if link_system; then
	dir=$tools/net-system
else
	dir=$tools/net
	provide_unpacked net usr/bin/iperf3 "trixie sid bookworm" \
		"Install iperf3 and rsync, or set CUCRIU_BENCH_NET=/path/to/a/directory." iperf3 rsync
	# Whatever is older than iperf3 was made for the place where this directory was before.
	if [[ ! $dir/rsync -nt $dir/iperf3 ]]; then
		"$repo/scripts/relocate.sh" "$dir" usr/bin/rsync >&2
	fi
fi
for program in "${programs[@]}"; do
	"$dir/$program" --version >/dev/null 2>&1 ||
		die "$dir/$program does not run" "Install another, or where it is in $tools: rm -rf $tools/net && make bench-migrate"
done
printf '%s\n' "$dir"
