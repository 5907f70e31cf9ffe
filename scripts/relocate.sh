#!/usr/bin/env bash
# relocate.sh DIR BINARY [PREFIX]: makes DIR/criu (if BINARY is usr/sbin/criu) from the packages unpacked in DIR/root, a binary whose
# dynamic loader and libraries are looked up below DIR. A wrapper script around the loader would not do: criu and runc execute
# /proc/self/exe, and hooks recognise criu by its command line.
#
# With a PREFIX, the place where DIR will lie, the libraries that it needs are gathered in DIR/lib from the packages in $UNPACKED, to
# be carried there.
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

# patchelf comes from the same packages, and so runs with their libraries.
patchelf() {
	"$loader" --library-path "$libdir" "$root/usr/bin/patchelf" "$@"
}

if [[ -z $prefix ]]; then
	interpreter=$loader
	# Not from $ORIGIN: runc executes a copy of itself in memory, which has none.
	rpath=$libdir
else
	interpreter=$prefix/lib/${loader##*/}
	rpath=\$ORIGIN/lib
	mkdir -p "$dir/lib"
	cp -L "$loader" "$dir/lib/"
	# libgcc_s is loaded at run time by pthread_cancel and so not listed.
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
