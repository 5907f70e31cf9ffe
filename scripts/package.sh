#!/usr/bin/env bash
# package.sh FILES: makes build/package/cucriu_VERSION_ARCH.deb and .rpm with nfpm (NFPM), from what make install would install below /usr.
# The same commit gives the same bytes.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$repo"

: "${NFPM:?run through make package}" "${VERSION:?run through make package}"
epoch=$(git log -1 --format=%ct 2>/dev/null) || epoch=0
export SOURCE_DATE_EPOCH=$epoch
GOARCH=$(go env GOARCH)
# A version begins with a digit. Without a tag it is 0~git.COUNT.COMMIT: older than every release, newer than earlier commits.
[[ $VERSION == v[0-9]* ]] || VERSION=0~git.$(git rev-list --count HEAD 2>/dev/null || echo 0).$VERSION
VERSION=${VERSION#v}
export GOARCH VERSION=${VERSION//-/+}

out=build/package root=build/package/root
rm -rf "$out"
umask 022
scripts/install.sh "$1" "$root" /usr
gzip -9 --no-name "$root"/usr/share/man/man8/*
find "$root" -exec touch --no-dereference --date="@$epoch" {} +
for format in deb rpm; do
	go run "$NFPM" package --config configs/package/nfpm.yaml --packager "$format" --target "$out" >&2
done
ls "$out"/*.deb "$out"/*.rpm
