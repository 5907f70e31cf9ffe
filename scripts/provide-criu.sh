#!/usr/bin/env bash
# Prints the path of the CRIU to use, and provides one first if there is none:
#   1. CUCRIU_TEST_CRIU, used as it is (it may be a wrapper that a test made)
#   2. criu in PATH, if it is 4.0 or newer
#   3. Debian's criu with its libraries, unpacked into .tools/criu: nothing is installed in the system
# CRIU_RELEASE=trixie uses the criu of that Debian release, unpacked into .tools/criu-trixie beside the other: trixie has 4.1.1.
# The chosen criu is tested once with a real dump and restore, and again when the binary or the kernel changes.
# --unpacked goes straight to 3: a criu for another machine cannot use this system's libraries.
set -euo pipefail
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
. "$scripts/common.sh"

unpacked=$tools/criu${CRIU_RELEASE:+-$CRIU_RELEASE}

choose_system() {
	local criu
	criu=$(PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin type -P criu) || return 1
	criu_new_enough "$criu" && printf '%s\n' "$criu"
}

# CRIU 4.2 is the first that dumps TCP sockets on kernel 6.16 and newer; trixie has 4.1.
provide_criu() {
	provide_unpacked "${unpacked##*/}" usr/sbin/criu "${CRIU_RELEASE:-sid trixie}" \
		"Install CRIU >= 4.0 (Fedora: dnf install criu; Arch: pacman -S criu; or from https://criu.org), or set CUCRIU_TEST_CRIU=/path/to/criu." criu
	criu_new_enough "$unpacked/criu" ||
		die "$unpacked/criu does not run, or is older than 4.0" "Provide it again: rm -rf $unpacked && make tools${CRIU_RELEASE:+ CRIU_RELEASE=$CRIU_RELEASE}"
}

# verify CRIU tests a criu, unless the stamp says that this same binary has already passed on this kernel.
verify() {
	local criu=$1 identity stamp=$tools/criu-verified
	identity="$criu $(stat -L -c '%s %Y' "$criu") $(uname -r)"
	if [[ -r $stamp ]] && grep -qxF "$identity" "$stamp"; then
		return
	fi
	if ((EUID != 0)); then
		note "CRIU at $criu is not verified: dumping and restoring a process needs root"
		return
	fi
	"$scripts/verify-criu.sh" "$criu" >&2
	printf '%s\n' "$identity" >>"$stamp"
	note "CRIU $(criu_version "$criu") at $criu dumps and restores a process on kernel $(uname -r)"
}

only_unpacked=${CRIU_RELEASE:+yes}
case ${1:-} in
--unpacked) only_unpacked=yes ;;
'') ;;
*) die "unknown argument $1" "usage: provide-criu.sh [--unpacked]" ;;
esac

if [[ -n ${CRIU_RELEASE:-} && -n ${CUCRIU_TEST_CRIU:-} ]]; then
	die "CUCRIU_TEST_CRIU names a criu, and CRIU_RELEASE=$CRIU_RELEASE asks for another" "Unset one of them."
fi
if [[ -n ${CRIU_RELEASE:-} && ! $CRIU_RELEASE =~ ^[a-z]+$ ]]; then
	die "CRIU_RELEASE=$CRIU_RELEASE is no name of a release of Debian" "For example: CRIU_RELEASE=trixie"
fi
if [[ $only_unpacked != yes && -n ${CUCRIU_TEST_CRIU:-} ]]; then
	criu=$(type -P "$CUCRIU_TEST_CRIU") || die "CUCRIU_TEST_CRIU=$CUCRIU_TEST_CRIU is no executable file"
	realpath -s "$criu"
	exit
fi

lock_tools
if [[ $only_unpacked == yes ]] || ! criu=$(choose_system); then
	provide_criu
	criu=$unpacked/criu
fi
verify "$criu"
printf '%s\n' "$criu"
