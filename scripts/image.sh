#!/usr/bin/env bash
# image.sh: makes build/image/cucriu.tar, an OCI image of cucriu, criu and its libraries, without a registry or a builder. Its entry point puts
# them into /opt/cucriu of the host and runs cucriu there: it needs --privileged and the host's process IDs. The same commit and packages give
# the same bytes.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$repo"

: "${VERSION:?run through make image}"
epoch=$(git log -1 --format=%ct 2>/dev/null) || epoch=0
out=$repo/build/image
root=$out/root prefix=/opt/cucriu
rm -rf "$out"
umask 022
mkdir -p "$root/bin" "$root$prefix/plugins" "$root"/{proc,sys,dev,tmp}
[[ -e build/busybox/packages ]] || scripts/unpack-debian.sh "$repo/build/busybox" "trixie sid bookworm" busybox-static >&2
cp build/busybox/root/usr/bin/busybox "$root/bin/"
for applet in sh cp mv rm mkdir cmp nsenter; do
	ln -s busybox "$root/bin/$applet"
done
cp bin/cucriu bin/cucriu-hook "$root$prefix/"
criu=$(scripts/provide-criu.sh --unpacked)
UNPACKED=${criu%/*}/root scripts/relocate.sh "$root$prefix" usr/sbin/criu "$prefix"
rm "$root$prefix/at"
(cd "$root$prefix" && find . -type f -exec sha256sum {} + | sort) >"$out/sums"
mv "$out/sums" "$root$prefix/"
cat >"$root/bin/cucriu" <<END
#!/bin/sh
# Puts cucriu and criu into the host's $prefix, and runs cucriu there, in no control group of this container, so that a job that it restores
# outlives the container.
set -e
host=/proc/1/root
if ! cmp -s $prefix/sums \$host$prefix/sums; then
	mkdir -p \$host/opt
	rm -rf \$host$prefix.new \$host$prefix.old
	cp -a $prefix \$host$prefix.new
	[ ! -e \$host$prefix ] || mv \$host$prefix \$host$prefix.old
	mv \$host$prefix.new \$host$prefix
	rm -rf \$host$prefix.old
fi
for group in \$host/sys/fs/cgroup/cgroup.procs \$host/sys/fs/cgroup/*/cgroup.procs; do
	[ ! -e \$group ] || echo \$\$ >\$group 2>/dev/null || true
done
export CUCRIU_CRIU=$prefix/criu PATH=$prefix:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec /bin/nsenter -t 1 -m -u -i -n $prefix/cucriu "\$@"
END
chmod 0755 "$root/bin/cucriu"

# blob FILE MEDIATYPE: adds a blob, and prints its descriptor.
blob() {
	local digest size
	digest=$(sha256sum "$1" | cut -d' ' -f1) size=$(stat -c %s "$1")
	mv "$1" "$out/oci/blobs/sha256/$digest"
	printf '{"mediaType": "application/vnd.oci.image.%s", "digest": "sha256:%s", "size": %s}' "$2" "$digest" "$size"
}

archive() { tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner -C "$1" -c .; }

mkdir -p "$out/oci/blobs/sha256"
archive "$root" >"$out/layer"
diff=$(sha256sum "$out/layer" | cut -d' ' -f1)
gzip -n "$out/layer"
layer=$(blob "$out/layer.gz" layer.v1.tar+gzip)
cat >"$out/config" <<END
{"created": "$(date -u -d "@$epoch" +%FT%TZ)", "architecture": "$(go env GOARCH)", "os": "linux",
 "config": {"Entrypoint": ["/bin/cucriu"], "Env": ["PATH=/bin"], "Labels": {"org.opencontainers.image.version": "$VERSION"}},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$diff"]}}
END
config=$(blob "$out/config" config.v1+json)
printf '{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": %s, "layers": [%s]}\n' "$config" "$layer" >"$out/manifest"
manifest=$(blob "$out/manifest" manifest.v1+json)
printf '{"schemaVersion": 2, "manifests": [%s, "annotations": {"org.opencontainers.image.ref.name": "localhost/cucriu:latest"}}]}\n' "${manifest%\}}" >"$out/oci/index.json"
printf '{"imageLayoutVersion": "1.0.0"}\n' >"$out/oci/oci-layout"
archive "$out/oci" >"$out/cucriu.tar"
rm -rf "$root" "$out/oci"
note "$out/cucriu.tar: $((($(stat -c %s "$out/cucriu.tar") + 1048575) / 1048576)) MiB"
