#!/bin/bash
# counting.sh ATWORK STEPS MAYEND COMMAND...: runs cudawork, has it compare all of its memory at each step, and prints
# what it found. After ATWORK steps it waits for the file MAYEND.
set -eu
atwork=$1 steps=$2 mayend=$3
shift 3
"$@" --dir work &
# Until it is set up.
until [[ -e work/status ]]; do sleep 0.05; done
for ((step = 1; step <= steps; step++)); do
	rm -f work/checked
	: >work/check
	until [[ -e work/checked && ! -e work/check ]]; do sleep 0.02; done
	[[ $(<work/checked) =~ \"bad\":([0-9]+),\"words\":([0-9]+) ]]
	echo "step $step ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]} words are wrong"
	sleep 0.05
	((step != atwork)) || until [[ -e $mayend ]]; do sleep 0.05; done
done
: >work/stop
wait %1
echo "done"
