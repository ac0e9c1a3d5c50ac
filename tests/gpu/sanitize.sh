#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The kernels under NVIDIA's compute-sanitizer, on a machine with a GPU:
#   sanitize.sh TOOL COMPUTE-SANITIZER BIN
# TOOL is memcheck, initcheck or synccheck; BIN has the programs of scripts/gpu-bundle. Each case
# that should find nothing comes after one that shows, where a fault can be made, that this tool
# finds it.
#
# Errors of CUDA calls are not reported: the programs make some on purpose and check all of them.
set -u
tool=$1
sanitizer=$2
bin=$3
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
found=99
failed=0
# The tool makes everything 10 to 100 times slower. The same cases, fewer random ones.
fewer=--rounds=16
options=()
# Between allocations, so that what is beyond one is not in the next.
[ "$tool" != memcheck ] || options=(--padding 512)

run() # PROGRAM ARGUMENT...
{
	"$sanitizer" --tool "$tool" --error-exitcode $found --report-api-errors no "${options[@]}" \
		"$@" 2>&1
}

# A case that is to end with this status, and to say these words.
check() # NAME STATUS WORDS PROGRAM ARGUMENT...
{
	local name=$1 wanted=$2 words=$3 text status

	shift 3
	echo "[ RUN      ] $name"
	text=$(run "$@")
	status=$?
	# The program's own cases are one here.
	tr '[]' '()' <<<"$text"
	if [ $status = "$wanted" ] && [[ $text == *"$words"* ]]; then
		echo "[       OK ] $name"
	else
		echo "ended with $status, not $wanted and \"$words\""
		echo "[  FAILED  ] $name"
		failed=1
	fi
}

case $tool in
memcheck) check "a source that is no memory" $found "Invalid __global__ read" "$bin/blocks" \
	--fault=beyond ;;
initcheck)
	check "a source that nobody has written" $found "Uninitialized __global__ memory read" \
		"$bin/blocks" \
		--fault=unset
	;;
synccheck) ;; # nothing that can be launched here has a barrier in the wrong place
*)
	echo "sanitize.sh: no $tool" >&2
	exit 64
	;;
esac
check blocks 0 "ERROR SUMMARY: 0 errors" "$bin/blocks" $fewer
# In pinned memory the kernel answers the CPU on any machine.
if [ "$tool" = memcheck ] && [ -e "$bin/wherry" ]; then
	check bounce 0 "ERROR SUMMARY: 0 errors" "$bin/wherry" window pingpong --rounds 5 \
		-b staged -m cuda:0
fi
# racecheck looks at shared memory alone.
if grep -l '\.shared' "$top"/kernels/*.ptx; then
	echo "[ RUN      ] racecheck"
	echo "there is shared memory now: run racecheck, too"
	echo "[  FAILED  ] racecheck"
	failed=1
fi
exit $failed
