#!/usr/bin/env bash
# The GPU bundle contains this as link-criu.sh. It makes @PREFIX@ a link to the bundle, because the criu in the bundle looks for
# its dynamic loader there. Then it checks that this criu runs, and prints its path.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
prefix=@PREFIX@

if [[ -e $prefix && ! -L $prefix ]]; then
	printf '%s: error: %s is in the way; it must be a link to this bundle. Move it aside.\n' "${0##*/}" "$prefix" >&2
	exit 1
fi
# By a rename, so that a criu that starts meanwhile finds either the old link or the new one.
ln -sfn "$here" "$prefix.$$"
mv -T "$prefix.$$" "$prefix"

criu=$prefix/criu/criu
"$criu" --no-default-config --version >/dev/null || {
	printf '%s: error: %s does not run on this machine (%s)\n' "${0##*/}" "$criu" "$(uname -srm)" >&2
	exit 1
}
printf '%s\n' "$criu"
