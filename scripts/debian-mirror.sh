#!/usr/bin/env bash
# Prints the Debian archives to try, best first: the one that this system's apt already uses, then deb.debian.org.
# Usage: debian-mirror.sh [ETC_APT] [OS_RELEASE]
set -euo pipefail

etc_apt=${1:-/etc/apt}
os_release=${2:-/etc/os-release}
fallback=http://deb.debian.org/debian

# Another distribution's mirror (Ubuntu's, say) does not carry Debian's packages.
id=$(sed -n 's/^ID="\{0,1\}\([a-z]*\)"\{0,1\}$/\1/p' "$os_release" 2>/dev/null || true)
codename=$(sed -n 's/^VERSION_CODENAME="\{0,1\}\([a-z]*\)"\{0,1\}$/\1/p' "$os_release" 2>/dev/null || true)

# suite_re matches the suites of the main archive. Those of the security and updates archives are called codename-something.
suite_re="^(${codename:-stable}|oldstable|stable|testing|sid|unstable)$"

one_line_entries() { # deb [options] URI suite components...
	awk -v suite_re="$suite_re" '
		$1 == "deb" {
			sub(/\[[^]]*\]/, "")
			if ($2 ~ /^https?:/ && $3 ~ suite_re) { print $2; exit }
		}' "$1"
}

deb822_entries() { # stanzas of Types, URIs, Suites, perhaps Enabled
	awk -v suite_re="$suite_re" '
		function flush(    i, wanted) {
			for (i in suites) if (suites[i] ~ suite_re) wanted = 1
			if (wanted && !done && deb && enabled && uri ~ /^https?:/) { print uri; done = 1 }
			reset()
		}
		function reset() { deb = 0; enabled = 1; uri = ""; delete suites }
		BEGIN { reset() }
		/^#/ { next }
		/^[ \t]*$/ { flush(); next }
		tolower($1) == "types:" { for (i = 2; i <= NF; i++) if ($i == "deb") deb = 1 }
		tolower($1) == "uris:" { uri = $2 }
		tolower($1) == "suites:" { for (i = 2; i <= NF; i++) suites[i] = $i }
		tolower($1) == "enabled:" { enabled = (tolower($2) != "no") }
		END { flush() }' "$1"
}

{
	if [[ $id == debian ]]; then
		for list in "$etc_apt/sources.list" "$etc_apt"/sources.list.d/*.list; do
			if [[ -r $list ]]; then one_line_entries "$list"; fi
		done
		for sources in "$etc_apt"/sources.list.d/*.sources; do
			if [[ -r $sources ]]; then deb822_entries "$sources"; fi
		done
	fi
	printf '%s\n' "$fallback"
} | sed 's,/*$,,' | awk '!seen[$0]++'
