#!/usr/bin/env bash
# relocate-criu.sh DIR [PREFIX]: makes DIR/criu from the packages unpacked in DIR/root, a binary whose dynamic loader is looked up
# below PREFIX (default: DIR) and its libraries beside itself. A wrapper script around the loader would not do: criu executes
# /proc/self/exe, and hooks recognise criu by its command line.
#
# With a PREFIX the libraries that criu needs are gathered in DIR/lib from the packages in $CRIU_ROOT, to be carried elsewhere.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

dir=$(cd "${1:?usage: relocate-criu.sh DIR [PREFIX]}" && pwd -P)
prefix=${2:-}
root=${CRIU_ROOT:-$dir/root}

# The loader of the unpacked libc, for example root/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2.
loaders=("$root"/usr/lib/*-linux-gnu/ld-linux-*.so.*)
loader=${loaders[0]}
[[ -x $loader ]] || die "no dynamic loader below $root/usr/lib" "Remove it and provide it again: rm -rf $dir && make tools"
libdir=${loader%/*}

# patchelf comes from the same packages, and so runs with their libraries.
patchelf() {
	"$loader" --library-path "$libdir" "$root/usr/bin/patchelf" "$@"
}

if [[ -z $prefix ]]; then
	interpreter=$loader
	rpath=\$ORIGIN${libdir#"$dir"}
else
	interpreter=$prefix/lib/${loader##*/}
	rpath=\$ORIGIN/lib
	mkdir -p "$dir/lib"
	cp -L "$loader" "$dir/lib/"
	# libgcc_s is loaded at run time by pthread_cancel and so not listed.
	"$loader" --library-path "$libdir" --list "$root/usr/sbin/criu" |
		awk '$2 == "=>" { print $3 }' |
		while read -r library; do
			case $library in
			"$libdir"/*) cp -L "$library" "$dir/lib/" ;;
			*) die "criu would load $library, which is not among the unpacked packages" ;;
			esac
		done
	cp -L "$libdir/libgcc_s.so.1" "$dir/lib/"
fi

cp "$root/usr/sbin/criu" "$dir/criu.new"
patchelf --set-interpreter "$interpreter" --set-rpath "$rpath" --force-rpath "$dir/criu.new"
mv "$dir/criu.new" "$dir/criu"
printf '%s\n' "$dir" >"$dir/at"
