#!/usr/bin/env bash
# gpu-bundle.sh PACKAGES...: makes build/gpu-bundle and build/gpu-bundle.tar.xz, with everything that a machine with a GPU needs to
# run these packages' tests and the workloads. That machine needs no Go, gcc, network or installed CRIU.
#
# The bundle is laid out like the repository (go.mod at its top, each test binary and its testdata in its package's directory),
# so that a test finds bin/, build/ and its own data in the same places as here.
set -euo pipefail
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
. "$scripts/common.sh"
cd "$repo"

limit_mib=60
# criu's dynamic loader has a fixed path inside the binary. link-criu.sh makes that path a link to the bundle, wherever it lies.
prefix=/tmp/cucriu-gpu

bundle=$repo/build/gpu-bundle
new=$bundle.new
run=$scripts/gpu-run.sh
[[ -f $run ]] || die "$run, which becomes the bundle's run.sh, is missing"

have xz || die "xz is missing" "Install xz-utils."
criu=$("$scripts/provide-criu.sh" --unpacked)

rm -rf "$new"
mkdir -p "$new/bin" "$new/build" "$new/criu"
trap 'rm -rf "$new"' EXIT

cp go.mod "$new/"
cp bin/cucriu bin/cucriu-hook bin/cuda-checkpoint "$new/bin/"
cp -a build/cudasim build/workload build/test "$new/build/"
rm -rf "$new"/build/*/obj

for scripts_of in torch programs; do
	mkdir -p "$new/test/workload/$scripts_of"
	cp "test/workload/$scripts_of/"*.py "$new/test/workload/$scripts_of/"
done
mkdir -p "$new/internal/kit/guest/built"
cp internal/kit/guest/built/*.so "$new/internal/kit/guest/built/"
mkdir "$new/scripts"
for script in common demo clean-exec try-{common,engines,guest,image,kills,names,preemption,pause,overhead}; do
	cp "scripts/$script.sh" "$new/scripts/"
done
if [[ -d configs ]]; then
	cp -a configs "$new/"
fi

for package in "$@"; do
	source=$(go list -f '{{.Dir}}' "$package") || die "GPU_TEST_PACKAGES names $package, which is no package"
	target=$new${source#"$repo"}
	mkdir -p "$target"
	go test -c -trimpath -ldflags '-s -w' -o "$target/" "$package"
	compgen -G "$target/*.test" >/dev/null || die "GPU_TEST_PACKAGES names $package, which has no tests"
	if [[ -d $source/testdata ]]; then
		cp -a "$source/testdata" "$target/"
	fi
	printf '%s\n' ".${source#"$repo"}" >>"$new/packages"
done

UNPACKED=${criu%/*}/root "$scripts/relocate.sh" "$new/criu" usr/sbin/criu "$prefix/criu"
rm "$new/criu/at"
plugin=$("$scripts/provide-criu-plugin.sh" --unpacked)
if [[ $plugin ]]; then
	cp -r "$plugin" "$new/criu/plugin"
fi
sed "s,@PREFIX@,$prefix,g" "$scripts/gpu-link-criu.sh" >"$new/link-criu.sh"
runc=$("$scripts/provide-runc.sh")
mkdir -p "$new/runc"
if [[ -d ${runc%/*}/root ]]; then
	UNPACKED=${runc%/*}/root "$scripts/relocate.sh" "$new/runc" usr/sbin/runc "$prefix/runc"
	rm "$new/runc/at"
else
	cp "$runc" "$new/runc/runc"
fi
cp "$scripts/clean-exec.sh" "$scripts/private-exec.sh" "$new/"
cp "$run" "$new/run.sh"
chmod +x "$new/run.sh" "$new/link-criu.sh"

rm -rf "$bundle"
mv "$new" "$bundle"
# xz finds what the programs have in common, and almost every machine can unpack it.
XZ_OPT='-T0 -3' tar -C "$repo/build" --owner=0 --group=0 --numeric-owner -cJf "$bundle.tar.xz.new" gpu-bundle
mv "$bundle.tar.xz.new" "$bundle.tar.xz"

mib() { # of the bytes in $1, rounded up
	printf '%d' $((($1 + 1048575) / 1048576))
}
packed=$(stat -c %s "$bundle.tar.xz")
unpacked=$(du -s --apparent-size --block-size=1 "$bundle" | cut -f1)
note "build/gpu-bundle: $(mib "$unpacked") MiB; build/gpu-bundle.tar.xz: $(mib "$packed") MiB; test packages: $*"
if ((packed > limit_mib * 1048576)); then
	du -a --apparent-size -m "$bundle" | sort -rn | head -n 12 >&2
	die "the bundle is larger than $limit_mib MiB (its largest parts, in MiB, are above)"
fi
