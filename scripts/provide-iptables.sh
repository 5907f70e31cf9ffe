#!/usr/bin/env bash
# Prints a directory with an iptables that speaks nftables, as Debian's does, and provides it first if there is none:
#   1. CUCRIU_TEST_IPTABLES, used as it is
#   2. links to those in PATH, if they are such
#   3. Debian's with their libraries, unpacked into .tools/iptables: nothing is installed in the system. XTABLES_LIBDIR has to name
#      xtables in that directory
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

programs=(iptables iptables-restore iptables-save ip6tables ip6tables-restore ip6tables-save)

if [[ -n ${CUCRIU_TEST_IPTABLES:-} ]]; then
	realpath -s "$CUCRIU_TEST_IPTABLES"
	exit
fi

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
lock_tools
if [[ $(iptables -V 2>/dev/null) == *nf_tables* ]]; then
	dir=$tools/iptables-system
	mkdir -p "$dir"
	for program in "${programs[@]}"; do
		ln -sfn "$(type -P "$program")" "$dir/$program"
	done
else
	dir=$tools/iptables
	provide_unpacked iptables usr/sbin/xtables-nft-multi "trixie sid bookworm" \
		"Install iptables (Fedora: dnf install iptables-nft), or set CUCRIU_TEST_IPTABLES=/path/to/a/directory." iptables
	for program in "${programs[@]}"; do
		ln -sfn xtables-nft-multi "$dir/$program"
	done
	(cd "$dir" && ln -sfn root/usr/lib/*-linux-gnu/xtables xtables)
fi
"$dir/iptables" -V >/dev/null || die "$dir/iptables does not run" "Remove it and provide it again: rm -rf $dir && make tools"
printf '%s\n' "$dir"
