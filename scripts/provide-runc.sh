#!/usr/bin/env bash
# Prints the path of the runc for the tests with containers, and provides one first if there is none:
#   1. CUCRIU_TEST_RUNC, used as it is
#   2. runc in PATH
#   3. Debian's runc with its libraries, unpacked into .tools/runc: nothing is installed in the system
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ -n ${CUCRIU_TEST_RUNC:-} ]]; then
	runc=$(type -P "$CUCRIU_TEST_RUNC") || die "CUCRIU_TEST_RUNC=$CUCRIU_TEST_RUNC is no executable file"
	realpath -s "$runc"
	exit
fi

lock_tools
if ! runc=$(PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin type -P runc); then
	provide_unpacked runc usr/sbin/runc "trixie sid bookworm" \
		"Install runc (Fedora: dnf install runc; Arch: pacman -S runc), or set CUCRIU_TEST_RUNC=/path/to/runc." runc
	runc=$tools/runc/runc
fi
timeout 10 "$runc" --version >/dev/null ||
	die "$runc does not run" "Install another, or where it is in $tools: rm -rf $tools/runc && make tools"
printf '%s\n' "$runc"
