#!/usr/bin/env bash
# unpack-debian.sh DIR RELEASES PACKAGE...: downloads packages and all libraries that they need, unpacks them below DIR/root and
# lists them in DIR/packages. RELEASES is a list of Debian releases in one word; the first one from which everything can be
# downloaded is used. The script writes nothing outside DIR: apt gets a state directory of its own with an empty list of installed
# packages, so that it resolves all dependencies down to libc. relocate.sh makes a binary run from there. DEBIAN_MIRROR names an
# archive to use instead of those that debian-mirror.sh prints. With SOURCE=yes, it is the upstream source of one package instead, as
# DIR/NAME-VERSION.
set -euo pipefail
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
. "$scripts/common.sh"

dir=${1:?usage: unpack-debian.sh DIR RELEASES PACKAGE...}
read -ra releases <<<"${2:?usage: unpack-debian.sh DIR RELEASES PACKAGE...}"
shift 2
packages=("$@")
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

work=$dir.work
trap 'rm -rf "$work"' EXIT
rm -rf "$work"
mkdir -p "$work/apt/state/lists/partial" "$work/apt/cache/archives/partial" "$work/new"
: >"$work/apt/status"
: >"$work/log"

arch=$(dpkg --print-architecture)

# apt reads this after the system's own configuration (proxies, credentials). It turns off that configuration's hooks and pins.
cat >"$work/apt/apt.conf" <<EOF
Dir::State "$work/apt/state";
Dir::State::status "$work/apt/status";
Dir::Cache "$work/apt/cache";
Dir::Cache::archives "archives";
Dir::Etc::sourcelist "$work/apt/sources.list";
Dir::Etc::sourceparts "-";
Dir::Etc::preferences "-";
Dir::Etc::preferencesparts "-";
APT::Default-Release "";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::http::Timeout "30";
Debug::NoLocking "true";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Invoke;
#clear DPkg::Pre-Install-Pkgs;
#clear DPkg::Post-Invoke;
EOF

limit=300 # seconds, for one apt-get

# apt SUBCOMMAND ARGUMENT...: runs apt-get. Afterwards the log holds the output of this call only.
apt() {
	local subcommand=$1 rc=0
	shift
	LC_ALL=C timeout "$limit" apt-get -q -y -c "$work/apt/apt.conf" "$subcommand" "$@" >"$work/log" 2>&1 || rc=$?
	if ((rc == 124)); then
		printf 'E: apt-get was ended after %d seconds\n' "$limit" >>"$work/log"
	fi
	return "$rc"
}

# Why each attempt failed, one line each.
failures=()

# failed WHAT records that apt has just failed, and why: the indented lines below its Err:, its errors, and its warnings about
# keys.
failed() {
	local reasons
	reasons=$(awk '
		/^Err:/ { below = 1; next }
		below && /^  / { sub(/^ +/, ""); sub(/ \[IP: .*\]$/, ""); note($0); next }
		{ below = 0 }
		/^E: Failed to fetch / { sub(/^E: Failed to fetch [^ ]+ +/, ""); sub(/ \[IP: .*\]$/, ""); note($0); next }
		/^E: Some index files failed to download/ { next }
		/^E: / || /^W: GPG error/ { sub(/^[EW]: /, ""); note($0) }
		function note(reason) { if (!seen[reason]++) all = all (all == "" ? "" : "; ") reason }
		END { print all }' "$work/log")
	failures+=("$1: ${reasons:-apt-get failed, and its last words were: $(tail -n 3 "$work/log")}")
}

# read_archive MIRROR KEYRING reads an archive's package list. It always checks the signature, so it fails without the release's
# key.
read_archive() {
	if [[ ${SOURCE:-} ]]; then
		printf 'deb-src [target=Sources signed-by=%s] %s %s main\n' "$2" "$1" "$release" >"$work/apt/sources.list"
	else
		printf 'deb [arch=%s target=Packages signed-by=%s] %s %s main\n' "$arch" "$2" "$1" "$release" >"$work/apt/sources.list"
	fi
	if ! apt update; then
		failed "the list of Debian $release (main, $arch) at $1, signed by a key in $2"
		return 1
	fi
	archive=$1
}

# missing_key reports whether a newer keyring might help.
missing_key() {
	[[ ! -r $keyring ]] || grep -qE 'NO_PUBKEY|is not signed|EXPKEYSIG' "$work/log"
}

# newer_keyring sets found to a keyring from this system's own archive, which the system's apt has verified.
newer_keyring() {
	mkdir -p "$work/keyring"
	if ! (cd "$work/keyring" && LC_ALL=C timeout 120 apt-get -q download debian-archive-keyring >"$work/log" 2>&1); then
		failed "debian-archive-keyring, for the keys of Debian $release, from this system's own archive"
		return 1
	fi
	dpkg -x "$work"/keyring/*.deb "$work/keyring"
	found=$work/keyring$keyring
}

find_archive() {
	local mirror found key=no
	if [[ -r $keyring ]]; then
		for mirror in "${mirrors[@]}"; do
			if read_archive "$mirror" "$keyring"; then return; fi
			if missing_key; then key=missing; fi
		done
	else
		failures+=("$keyring, with the keys of Debian's releases: there is no such file here")
		key=missing
	fi
	if [[ $key == missing ]] && newer_keyring; then
		for mirror in "${mirrors[@]}"; do
			if read_archive "$mirror" "$found"; then return; fi
		done
	fi
	return 1
}

download() {
	note "reading Debian $release's package lists"
	find_archive || return 1
	if [[ ${SOURCE:-} ]]; then
		cd "$work/new"
		if ! apt source --download-only --tar-only "${packages[@]}"; then
			failed "the source of ${packages[*]} in Debian $release from $archive"
			return 1
		fi
		tar -xf ./*.orig.tar.*
		return
	fi
	note "downloading ${packages[*]} and their libraries"
	rm -f "$work"/apt/cache/archives/*.deb
	if ! apt install --no-install-recommends --download-only "${packages[@]}"; then
		failed "${packages[*]} of Debian $release from $archive"
		return 1
	fi
}

if [[ -n ${DEBIAN_MIRROR:-} ]]; then
	mirrors=("$DEBIAN_MIRROR")
else
	mapfile -t mirrors < <("$scripts/debian-mirror.sh")
fi
downloaded=no
for release in "${releases[@]}"; do
	if download; then
		downloaded=yes
		break
	fi
done
if [[ $downloaded == no ]]; then
	die "cannot download ${packages[*]} from Debian (${releases[*]})" "${failures[@]}" \
		"No network: install ${packages[0]} yourself, or name an archive that can be reached: DEBIAN_MIRROR=http://HOST/debian." \
		"NO_PUBKEY or not signed: apt-get update && apt-get install debian-archive-keyring (Debian, Ubuntu), then again."
fi
if ((${#failures[@]} > 0)); then
	note "these are of Debian $release from $archive, since others could not be had:" "${failures[@]/#/$'\n  '}"
fi

if [[ ${SOURCE:-} ]]; then
	rm -rf "$dir"
	mv "$work/new" "$dir"
	exit
fi
for deb in "$work"/apt/cache/archives/*.deb; do
	# dpkg-deb rather than dpkg, because it needs neither root nor a package database.
	dpkg-deb -x "$deb" "$work/new/root"
	printf '%s\n' "${deb##*/}" >>"$work/new/packages"
done

rm -rf "$dir"
mv "$work/new" "$dir"
