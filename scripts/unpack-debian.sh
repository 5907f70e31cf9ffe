#!/usr/bin/env bash
# unpack-debian.sh DIR RELEASES PACKAGE...: downloads packages with every library that they need from the first of these releases
# of Debian that has them (a list in one word), unpacks all below DIR/root and lists them in DIR/packages. Nothing outside DIR is
# written: apt works on a state directory of its own, with an empty list of installed packages, so that it resolves the whole set
# down to libc. What runs a binary from there is relocate.sh.
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

# Read after the system's own configuration (proxies, credentials), whose hooks and pins are not for this.
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

apt() {
	local subcommand=$1
	shift
	timeout 300 apt-get -q -y -c "$work/apt/apt.conf" "$subcommand" "$@" >>"$work/log" 2>&1
}

# read_archive MIRROR KEYRING: the signature is always checked; without the release's key this fails.
read_archive() {
	printf 'deb [arch=%s target=Packages signed-by=%s] %s %s main\n' "$arch" "$2" "$1" "$release" >"$work/apt/sources.list"
	printf '\n== %s %s, keys of %s\n' "$1" "$release" "$2" >>"$work/log"
	apt update
}

# newer_keyring prints a keyring taken from this system's own archive, which the system's apt has verified.
newer_keyring() {
	have apt-get || return 1
	mkdir -p "$work/keyring"
	(cd "$work/keyring" && timeout 120 apt-get -q download debian-archive-keyring >>"$work/log" 2>&1) || return 1
	dpkg -x "$work"/keyring/*.deb "$work/keyring" && printf '%s\n' "$work/keyring$keyring"
}

find_archive() {
	local mirror found
	mapfile -t mirrors < <("$scripts/debian-mirror.sh")
	if [[ -r $keyring ]]; then
		for mirror in "${mirrors[@]}"; do
			if read_archive "$mirror" "$keyring"; then return; fi
		done
	fi
	if found=$(newer_keyring) && [[ -r $found ]]; then
		for mirror in "${mirrors[@]}"; do
			if read_archive "$mirror" "$found"; then return; fi
		done
	fi
	return 1
}

download() {
	note "reading Debian $release's package lists"
	find_archive || return 1
	note "downloading ${packages[*]} and their libraries"
	rm -f "$work"/apt/cache/archives/*.deb
	apt install --no-install-recommends --download-only "${packages[@]}"
}

downloaded=no
for release in "${releases[@]}"; do
	if download; then
		downloaded=yes
		break
	fi
done
if [[ $downloaded == no ]]; then
	grep -E '^(==|E:|W:|Err:)' "$work/log" >&2 || true
	die "cannot download ${packages[*]} from Debian (${releases[*]}) at ${mirrors[*]} (apt's messages are above)" \
		"No network: install ${packages[0]} yourself and run this again." \
		"NO_PUBKEY or not signed: apt-get update && apt-get install debian-archive-keyring (Debian, Ubuntu), then again."
fi

for deb in "$work"/apt/cache/archives/*.deb; do
	# dpkg-deb rather than dpkg: it needs neither root nor dpkg's database.
	dpkg-deb -x "$deb" "$work/new/root"
	printf '%s\n' "${deb##*/}" >>"$work/new/packages"
done

rm -rf "$dir"
mv "$work/new" "$dir"
