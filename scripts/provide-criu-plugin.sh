#!/usr/bin/env bash
# Prints the directory of criu's own CUDA plugin, and builds it first if there is none: Debian's criu comes without. It is built from the
# source of the same version, and only for the criu that is unpacked in .tools, because it reads criu's structures. Where it cannot be had,
# the script says why and prints nothing, and the tests that need it are skipped.
#   CUCRIU_TEST_CRIU_PLUGIN is used as it is
set -euo pipefail
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
. "$scripts/common.sh"

if [[ -n ${CUCRIU_TEST_CRIU_PLUGIN:-} ]]; then
	realpath -s "$CUCRIU_TEST_CRIU_PLUGIN"
	exit
fi
without() {
	note "without criu's CUDA plugin: $1"
	exit 0
}

criu=$("$scripts/provide-criu.sh" "$@")
of=${criu%/*}
[[ -r $of/packages ]] || without "$criu is not one that was unpacked in .tools"
package=$(sed -n 's/^\(criu\)_\([^_]*\)_.*/\1=\2/p' "$of/packages")
dir=$tools/criu-plugin${of##*/criu}
if [[ $(cat "$dir/of" 2>/dev/null) == "$package" ]]; then
	printf '%s\n' "$dir/lib"
	exit
fi

lock_tools
have gcc || without "gcc is missing"
SOURCE=yes "$scripts/unpack-debian.sh" "$dir" "${CRIU_RELEASE:-sid trixie}" "$package" >&2 || without "its source cannot be downloaded"
cd "$dir"/criu-*/

# What criu's own build would make of other files. The plugin needs none of the features that are configured there.
case $(uname -m) in
aarch64) arch=aarch64 ;;
*) arch=x86 ;;
esac
mkdir -p ../include/{common,sys} ../include/compel/plugins/std ../lib
: >../include/common/config.h
printf '#include <linux/capability.h>\n' >../include/sys/capability.h
printf '#include <sys/syscall.h>\n' >../include/compel/plugins/std/syscall-codes.h
ln -sfn "$PWD/compel/arch/$arch/src/lib/include/uapi/asm" ../include/compel/asm
ln -sfn "$PWD/compel/arch/$arch/plugins/include/asm" ../include/compel/plugins/std/asm
ln -sfn "$PWD/include/common/arch/$arch/asm" ../include/common/asm
gcc -O2 -shared -nostartfiles -fPIC -iquote criu/include -iquote "criu/arch/$arch/include" -iquote . -iquote include \
	-I ../include -I compel/include/uapi -I include plugins/cuda/cuda_plugin.c -o ../lib/cuda_plugin.so >&2 || without "it cannot be built"
printf '%s\n' "$package" >"$dir/of"
printf '%s\n' "$dir/lib"
