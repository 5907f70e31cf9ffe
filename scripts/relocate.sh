#!/usr/bin/env bash
# relocate.sh DIR BINARY [PREFIX]: makes DIR/NAME from the packages unpacked in DIR/root, where NAME is the last part of BINARY
# (DIR/criu for usr/sbin/criu). The loader and the libraries of the new binary are below DIR. A wrapper script around the loader would
# not do: criu and runc execute /proc/self/exe, and hooks recognize criu by its command line.
#
# PREFIX is the path at which DIR will lie on another machine. With it, the script copies the libraries that the binary needs from the
# packages in $UNPACKED to DIR/lib.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

dir=$(cd "${1:?usage: relocate.sh DIR BINARY [PREFIX]}" && pwd -P)
binary=${2:?usage: relocate.sh DIR BINARY [PREFIX]}
prefix=${3:-}
name=${binary##*/}
root=${UNPACKED:-$dir/root}

# The loader of the unpacked libc, for example root/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2.
loaders=("$root"/usr/lib/*-linux-gnu/ld-linux-*.so.*)
loader=${loaders[0]}
[[ -x $loader ]] || die "no dynamic loader below $root/usr/lib" "Remove it and provide it again: rm -rf $dir && make tools"
libdir=${loader%/*}

# patchelf comes from the same packages, so it runs with their libraries.
patchelf() {
	"$loader" --library-path "$libdir" "$root/usr/bin/patchelf" "$@"
}

# The search path is never $ORIGIN: runc executes a copy of itself in memory, which has no directory.
if [[ -z $prefix ]]; then
	interpreter=$loader
	rpath=$libdir
else
	interpreter=$prefix/lib/${loader##*/}
	rpath=$prefix/lib
	mkdir -p "$dir/lib"
	cp -L "$loader" "$dir/lib/"
	# pthread_cancel loads libgcc_s at run time, so it is not listed.
	"$loader" --library-path "$libdir" --list "$root/$binary" |
		awk '$2 == "=>" { print $3 }' |
		while read -r library; do
			case $library in
			"$libdir"/*) cp -L "$library" "$dir/lib/" ;;
			*) die "$name would load $library, which is not among the unpacked packages" ;;
			esac
		done
	cp -L "$libdir/libgcc_s.so.1" "$dir/lib/"
fi

cp "$root/$binary" "$dir/$name.new"
patchelf --set-interpreter "$interpreter" --set-rpath "$rpath" --force-rpath "$dir/$name.new"
mv "$dir/$name.new" "$dir/$name"
printf '%s\n' "$dir" >"$dir/at"
