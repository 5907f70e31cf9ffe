#!/usr/bin/env bash
# Carried in the GPU bundle as link-criu.sh: makes @PREFIX@ a link to the bundle, where the carried criu looks for its dynamic
# loader, and prints the path of that criu once it runs.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
prefix=@PREFIX@

if [[ -e $prefix && ! -L $prefix ]]; then
	printf '%s: error: %s is in the way; it must be a link to this bundle. Move it aside.\n' "${0##*/}" "$prefix" >&2
	exit 1
fi
# Through a rename, so that a criu that starts meanwhile finds the old link or the new one.
ln -sfn "$here" "$prefix.$$"
mv -T "$prefix.$$" "$prefix"

criu=$prefix/criu/criu
"$criu" --no-default-config --version >/dev/null || {
	printf '%s: error: %s does not run on this machine (%s)\n' "${0##*/}" "$criu" "$(uname -srm)" >&2
	exit 1
}
printf '%s\n' "$criu"
