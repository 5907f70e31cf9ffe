#!/usr/bin/env bash
# run.sh: runs the bundle's tests on this machine's GPUs. Needs root and NVIDIA's driver, and PyTorch for some tests.
#   run.sh                       everything
#   run.sh conformance           only the conformance table
#   run.sh demo                  only the demo
#   run.sh dump [TEST REGEX]     one of the suites on real criu: dump, restore, check, suspend, guest
#   run.sh programs [alone|together|image [REGEX]]
#                                programs as people write them, one or all: those whose GPUs wait for each other one
#                                by one, the rest side by side; tables: programs-alone.md and programs-together.md;
#                                and some of them started from an image twice
#                                (CUCRIU_PROGRAMS_GUEST=1: all with the library of cucriu run --dir; what is refused for peer-memory works then)
# not in everything:
#   run.sh bench [FLAGS]         the benchmark (--help)
#   run.sh long                  long jobs: what a checkpoint costs, and preemptions (try-*.sh); needs 40 GiB on the disk
#   run.sh engines               containers checkpointed and restored by runc, swapped between two GPUs where there are two (try-engines.sh)
#   run.sh cuda-checkpoint       cucriu's cuda-checkpoint: its command line, and criu's own CUDA plugin with it
#   run.sh guest-cost            what the library of cucriu run --dir costs a program that nobody dumps (try-guest.sh)
#   run.sh image [SERVER...]     a server with 6.4 billion parameters, and jobs that are started from its checkpoint (try-image.sh); needs 90 GiB of memory
#   run.sh names                 two long jobs side by side, and torchrun restored at once (try-names.sh)
#   run.sh kills                 a training of two ranks under cucriu run, while whoever works on it is killed (try-kills.sh); needs two GPUs
#   run.sh migrate [TEST REGEX]  migration between two of the GPUs; CUCRIU_TEST_SIZES="1024 16384": pauses for so many MiB
# CUCRIU_TEST_DRIVER=sim runs the tests on simulated GPUs.
# CUCRIU_OUT names the folder for tables and logs.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
cd "$here" || exit 1

criu=$(./link-criu.sh) || exit 1
export CUCRIU_TEST_ROOT=$here CUCRIU_TEST_CRIU=$criu CUCRIU_TEST_CRIU_PLUGIN='' CUCRIU_TEST_DRIVER=${CUCRIU_TEST_DRIVER:-real}
[[ ! -d $here/criu/plugin ]] || CUCRIU_TEST_CRIU_PLUGIN=$here/criu/plugin
out=${CUCRIU_OUT:-$here/out}
mkdir -p "$out"

echo "machine: $(uname -srm), $(nproc) cores; criu $("$criu" --no-default-config --version | sed -n 's/^Version: //p'); $(date -u +%FT%TZ)"
if [[ $CUCRIU_TEST_DRIVER == real ]]; then
	export CUCRIU_TEST_NAMESPACES=off
	nvidia-smi --query-gpu=name,uuid,pci.bus_id,driver_version,memory.free --format=csv,noheader || exit 1
fi
echo "THP: $(cat /sys/kernel/mm/transparent_hugepage/enabled)"

failed=0
# The tests of one binary run in their own folder, as go test would run them.
tests() { # NAME TIMEOUT PACKAGE [ARGUMENT...]
	local name=$1 timeout=$2 package=$3
	shift 3
	echo "=== $name"
	(cd "$package" && timeout --kill-after=10 "$timeout" ../../private-exec.sh ./*.test -test.v "$@" 2>&1) | tee "$out/$name.log"
	if ((PIPESTATUS[0] != 0)); then
		echo "=== $name FAILED"
		failed=1
	fi
}

what=${1:-all}
if [[ $what == all || $what == demo ]]; then
	echo "=== demo"
	./private-exec.sh scripts/demo.sh 2>&1 | tee "$out/demo.log"
	((PIPESTATUS[0] == 0)) || failed=1
fi
if [[ $what == all || $what == conformance ]]; then
	CUCRIU_CONFORMANCE_OUT=$out/conformance.md tests conformance "${CUCRIU_LIMIT:-400}" test/conformance
fi
for suite in dump restore check suspend guest; do
	if [[ $what == all || $what == "$suite" ]]; then
		tests "$suite" "${CUCRIU_LIMIT:-550}" "test/$suite" -test.parallel=1 -test.run "${2:-.}"
	fi
done
if [[ $what == all || $what == programs ]]; then
	for group in alone together image; do
		[[ ${2:-$group} == "$group" ]] || continue
		selected="^TestPrograms$/$group/${3:-.}"
		[[ $group != image ]] || selected="^TestProgramsFromAnImage$/${3:-.}"
		CUCRIU_PROGRAMS_OUT=$out/programs-$group.md tests "programs-$group" "${CUCRIU_LIMIT:-550}" test/programs \
			-test.timeout=9m -test.run "$selected"
	done
fi
if [[ $what == bench ]]; then
	echo "=== bench"
	./private-exec.sh build/test/bench --out "$out/bench" "${@:2}" 2>&1 | tee "$out/bench.log"
	((PIPESTATUS[0] == 0)) || failed=1
fi
if [[ $what == long ]]; then
	for try in preemption pause overhead; do
		echo "=== $try"
		PATH=$here/bin:$PATH CUCRIU_CRIU=$criu scripts/try-$try.sh "$out/$try" 2>&1 | tee "$out/$try.log"
		((PIPESTATUS[0] == 0)) || failed=1
		rm -rf "$out/$try/job"
	done
fi
if [[ $what == engines ]]; then
	echo "=== engines"
	PATH=$here/bin:${criu%/*}:$(dirname "${criu%/*}")/runc:$PATH scripts/try-engines.sh runc here 2>&1 | tee "$out/engines.log"
	((PIPESTATUS[0] == 0)) || failed=1
fi
if [[ $what == cuda-checkpoint ]]; then
	tests cuda-checkpoint "${CUCRIU_LIMIT:-550}" test/suspend -test.parallel=1 -test.run 'CudaCheckpoint|CriusPlugin'
fi
if [[ $what == guest-cost ]]; then
	echo "=== guest-cost"
	rm -rf "$out/guest-cost"
	scripts/try-guest.sh "$out/guest-cost" 2>&1 | tee "$out/guest-cost.log"
	((PIPESTATUS[0] == 0)) || failed=1
fi
if [[ $what == names ]]; then
	echo "=== names"
	rm -rf "$out/names"
	PATH=$here/bin:$PATH CUCRIU_CRIU=$criu scripts/try-names.sh "$out/names" 2>&1 | tee "$out/names.log"
	((PIPESTATUS[0] == 0)) || failed=1
fi
if [[ $what == image ]]; then
	echo "=== image"
	rm -rf /tmp/cucriu-image
	PATH=$here/bin:$PATH CUCRIU_CRIU=$criu timeout --kill-after=10 "${CUCRIU_LIMIT:-300}" ./private-exec.sh \
		scripts/try-image.sh /tmp/cucriu-image "${@:2}" 2>&1 | tee "$out/image.log"
	((PIPESTATUS[0] == 0)) || failed=1
fi
if [[ $what == kills ]]; then
	echo "=== kills"
	rm -rf "$out/kills"
	PATH=$here/bin:$PATH CUCRIU_CRIU=$criu ./private-exec.sh scripts/try-kills.sh "$out/kills" 120 \
		python3 -m torch.distributed.run --standalone --nproc-per-node 2 "$here/test/workload/programs/ranks.py" --hidden 8192 --steps 500 2>&1 | tee "$out/kills.log"
	((PIPESTATUS[0] == 0)) || failed=1
fi
if [[ $what == migrate ]]; then
	CUCRIU_TEST_FIGURES=$out/migrate.txt tests migrate "${CUCRIU_LIMIT:-550}" test/migrate -test.parallel=1 -test.run "${2:-TestOnGPUs}"
fi
exit "$failed"
