#!/usr/bin/env bash
# clean-exec.sh COMMAND...: runs a command with no other descriptors than standard input, output and error. criu cannot dump a
# process that inherited a descriptor from outside its mount namespace ("Can't lookup mount=... for fd=..."), and make's
# jobserver, terminals and CI runners leave such descriptors to their children.
set -euo pipefail

for fd in /proc/self/fd/*; do
	fd=${fd##*/}
	# Bash has this script open at descriptor 255, close-on-exec.
	if ((fd > 2 && fd != 255)); then
		eval "exec $fd>&-"
	fi
done
exec "$@"
