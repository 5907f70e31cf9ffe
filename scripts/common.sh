# shellcheck shell=bash
# Sourced by the other scripts: messages and paths. Standard output is for results; messages go to standard error.

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck disable=SC2034 # for those that source this
tools=$(readlink -m "$repo/.tools")

note() {
	printf '%s\n' "$*" >&2
}

# die MESSAGE... prints an error and ends the script. Further arguments are further lines (the remedy).
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

# criu_version CRIU prints the version, for example 4.1.1, or nothing if the binary does not run. It ignores this host's
# configuration, in which a mistake would keep criu from running.
criu_version() {
	timeout 10 "$1" --no-default-config --version 2>/dev/null | sed -n 's/^Version: *//p' || true
}

# criu_new_enough CRIU: 4.0 is the first release whose restorer copes with the vdso of current kernels.
criu_new_enough() {
	local version
	version=$(criu_version "$1")
	[[ $version =~ ^([0-9]+)\. ]] && ((BASH_REMATCH[1] >= 4))
}

# lock_tools makes sure that only one script at a time works in .tools, until the script ends: several makes and tests may start
# at once.
lock_tools() {
	mkdir -p "$tools"
	have flock || die "flock is missing" "Install util-linux."
	exec 9>"$tools/lock"
	flock -w 900 9 || die "another process has been providing tools for 15 minutes" "It holds $tools/lock (fuser $tools/lock names it)."
}

# provide_unpacked DIR BINARY RELEASES REMEDY PACKAGE...: makes .tools/DIR/NAME from Debian's packages, unless it is already there
# and made for this place. NAME is the last part of BINARY. The result runs from there on any distribution. patchelf is also
# downloaded, because relocate.sh needs it.
provide_unpacked() {
	local dir=$tools/$1 binary=$2 name=${2##*/} releases=$3 remedy=$4
	shift 4
	if [[ -x $dir/$name && $(cat "$dir/at" 2>/dev/null) == "$dir" ]]; then
		return
	fi
	if [[ ! -e $dir/root/$binary ]]; then
		if ! have apt-get || ! have dpkg-deb; then
			die "there is no fitting $name in PATH, and this system has no apt to fetch Debian's with" "$remedy"
		fi
		note "providing $name"
		"$repo/scripts/unpack-debian.sh" "$dir" "$releases" "$@" patchelf >&2
	fi
	# The binary is new, or its folder was moved or copied: the path of the loader is inside the binary.
	"$repo/scripts/relocate.sh" "$dir" "$binary" >&2
}
