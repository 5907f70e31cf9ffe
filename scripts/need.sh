#!/usr/bin/env bash
# need.sh gcc go ...: fails with a remedy when a build tool is missing. It installs nothing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

for tool in "$@"; do
	case $tool in
	gcc)
		have gcc || die "gcc is missing; the simulated driver and the workload are C" \
			"Debian, Ubuntu: apt-get install gcc libc6-dev" "Fedora, RHEL: dnf install gcc glibc-devel"
		printf '#include <stdlib.h>\n#include <linux/types.h>\n' | gcc -E -o /dev/null - 2>/dev/null ||
			die "gcc finds no C library headers" \
				"Debian, Ubuntu: apt-get install libc6-dev" "Fedora, RHEL: dnf install glibc-devel kernel-headers"
		;;
	go)
		have go || die "go is missing" \
			"Install the release that go.mod names, or newer, from https://go.dev/dl and put its bin directory in PATH"
		;;
	*)
		have "$tool" || die "$tool is missing; install it with the system's package manager"
		;;
	esac
done
