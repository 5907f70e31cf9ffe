#!/usr/bin/env bash
# need.sh gcc go ...: checks that this machine has what the build, the demo and the tests use, and if not, says in one line how to install
# all of it. It installs nothing. "tests" stands for what the demo and the tests use beyond a compiler.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

missing=() packages=()

# lacks WHAT PACKAGE...: notes what is missing, and Debian's packages that have it.
lacks() {
	missing+=("$1")
	shift
	packages+=("$@")
}

need() {
	have "$1" || lacks "$1" "$2"
}

# check_go: the Go that is first in PATH must read go.mod. One older than 1.21 (Debian 12 has 1.19) can neither do so nor fetch a newer one.
check_go() {
	local wanted has
	wanted=$(sed -n 's/^go //p' "$repo/go.mod")
	if ! have go; then
		die "go is missing" "Install $wanted or newer from https://go.dev/dl, and put its bin directory in PATH."
	fi
	has=$(cd / && go env GOVERSION 2>/dev/null)
	has=${has#go}
	[[ $(printf '%s\n' 1.21 "$has" | sort -V | head -1) == 1.21 ]] ||
		die "$(command -v go) is Go $has, and this needs $wanted" "Install $wanted or newer from https://go.dev/dl, and put its bin directory first in PATH."
}

for tool in "$@"; do
	case $tool in
	go)
		check_go
		;;
	gcc)
		if ! have gcc || ! printf '#include <stdlib.h>\n#include <linux/types.h>\n' | gcc -E -o /dev/null - 2>/dev/null; then
			lacks "gcc, or the headers of the C library" gcc libc6-dev
		fi
		;;
	tests)
		need git git
		need python3 python3
		need jq jq
		need ip iproute2
		need setpriv util-linux
		need pgrep procps
		need xz xz-utils
		if ! have ar && ! have dpkg-deb; then
			lacks dpkg-deb dpkg
		fi
		[[ ${SSL_CERT_FILE:-} || -e /etc/pki/tls/certs || $(ls -A /etc/ssl/certs 2>/dev/null) ]] || lacks "CA certificates" ca-certificates
		[[ -s /sys/class/dmi/id/product_uuid || -s /etc/machine-id ]] || die "/etc/machine-id is empty" "Run: tr -d - </proc/sys/kernel/random/uuid >/etc/machine-id"
		[[ -s /etc/hosts ]] || die "/etc/hosts is missing" "Run: echo 127.0.0.1 localhost >/etc/hosts"
		((EUID == 0)) || die "only root can run criu" "Run it as root: sudo make …"
		;;
	*)
		need "$tool" "$tool"
		;;
	esac
done

if ((${#missing[@]} > 0)); then
	list=$(printf ', %s' "${missing[@]}")
	die "missing: ${list:2}" "Debian, Ubuntu: apt-get install ${packages[*]}"
fi
