#!/usr/bin/env bash
# clean-exec.sh COMMAND...: runs it with standard input, output and error alone. criu cannot dump a process that inherited a
# descriptor from outside its mount namespace ("Can't lookup mount=... for fd=..."), and make's jobserver, terminals and CI runners
# leave such descriptors to their children.
set -euo pipefail

for fd in /proc/self/fd/*; do
	fd=${fd##*/}
	# Bash keeps this script itself open at 255, close-on-exec.
	if ((fd > 2 && fd != 255)); then
		eval "exec $fd>&-"
	fi
done
exec "$@"
