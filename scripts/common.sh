# shellcheck shell=bash
# Sourced by the other scripts: messages, and where things lie. Standard output belongs to results; messages go to standard error.

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck disable=SC2034 # for those that source this
tools=$repo/.tools

note() {
	printf '%s\n' "$*" >&2
}

# die MESSAGE... ends the script; further arguments are further lines (the remedy).
die() {
	printf '%s: error: %s\n' "${0##*/}" "$1" >&2
	shift
	if (($# > 0)); then
		printf '  %s\n' "$@" >&2
	fi
	exit 1
}

have() {
	command -v "$1" >/dev/null 2>&1
}

# criu_version CRIU prints for example 4.1.1, and nothing when the binary does not run.
criu_version() {
	timeout 10 "$1" --version 2>/dev/null | sed -n 's/^Version: *//p' || true
}

# criu_new_enough CRIU: 4.0 is the first release whose restorer copes with current kernels' vdso.
criu_new_enough() {
	local version
	version=$(criu_version "$1")
	[[ $version =~ ^([0-9]+)\. ]] && ((BASH_REMATCH[1] >= 4))
}
