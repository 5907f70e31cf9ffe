#!/usr/bin/env bash
# Prints the version to build in: git's description of this tree, or "dev" outside a usable repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A source archive that is unpacked inside another repository must not get that repository's version.
if [[ -e .git ]] && version=$(git describe --tags --always --dirty 2>/dev/null) && [[ -n $version ]]; then
	printf '%s\n' "$version"
else
	printf 'dev\n'
fi
