#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: fake-nvidia
# wherry window on the fake CUDA driver and a preloaded stand-in for the kernel drivers' device
# nodes. The command's path is $1 or $TEST_COMMAND.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
fakes=${TEST_BUILD:?the build directory}/tests/fake
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
if ! heeds_madvise; then
	echo "this kernel ignores madvise(): children of a fork would inherit windows"
	exit 77
fi
unset CUDA_VISIBLE_DEVICES "${!WHERRY_@}" "${!FAKE_@}"
export WHERRY_CUDA=$fakes/libcuda.so.1 FAKE_NVIDIA_CUDA=$fakes/libcuda.so.1 FAKE_CUDA_REUSE=1
# A sanitizer's library must be the first preloaded one.
sanitizer=$(ldd "$wherry" | grep -o '/[^ ]*/lib[at]san[^ ]*' | head -n 1)
preload=${sanitizer:+$sanitizer:}$fakes/libfake-nvidia.so

# wherry window ARGUMENTS must exit with STATUS and print TEXT. The files out and err keep its
# output.
expect() # STATUS TEXT ARGUMENTS...
{
	local want=$1 text=$2 status

	shift 2
	preloaded "$preload" timeout 200 "$wherry" window "$@" >out 2>err
	status=$?
	if [ "$status" != "$want" ] || ! cat out err | grep -q -F -e "$text"; then
		echo "wherry window $*: status $status, not $want with '$text'"
		head -n 50 out err
		return 1
	fi
}

check() # NAME EXPECT-ARGUMENTS...
{
	local name=$1

	shift
	expect "$@"
	verdict "$name" $?
}

# For each memory exactly these tests have the outcome WORD (FAILED or waived); all others have
# passed.
outcomes() # NAME WORD TEST...
{
	local name=$1 word=$2

	shift 2
	grep -E '^  (FAILED|waived) ' out | sort -u -k 2,2 | awk '{ print $1, $2 }' >got
	printf '%s\n' "${@/#/$word }" | sort -k 2 | diff - got
	verdict "$name" $?
}

# json NAME EXPRESSION: the Python expression is true; `j` is the file j.json, `rows` its results.
json()
{
	python3 -c '
import json, sys
j = json.load(open("j.json"))
rows = j["results"]
good = eval("(" + sys.argv[1] + ")")
if not good:
	print(json.dumps(j, indent=1)[:3000])
sys.exit(not good)' "$2"
	verdict "$1" $?
}

# A wrong command line: two lines on stderr, the first with TEXT, and nothing on stdout.
misuse() # TEXT ARGUMENTS...
{
	expect 64 "$@" && [ ! -s out ] && [ "$(wc -l <err)" = 2 ] && head -n 1 err |
		grep -q -F -e "$1"
	verdict "misuse: ${*:2}" $?
}

# ---- what the engine does with it ----------------------------------------------------------------

preloaded "$preload" "$wherry" explain host cuda:0 --size 64 >out 2>err &&
	grep -q 'CPU window (rm)' out &&
	grep -q 'all of it .* us' out &&
	grep -q '^window   CPU window (rm): .* the CPU itself writes up to [0-9]* bytes and reads up to [0-9]' out
verdict "explain: a few bytes by the CPU, and how many" $?
preloaded "$preload" "$wherry" explain host cuda:0 --size 64 -c window=off --json >out 2>err &&
	grep -q '"window": "no CPU window: windows are switched off by the setting window"' out
verdict "explain: why there is no window, as JSON" $?

# ---- check ---------------------------------------------------------------------------------------

check "rm, both memories" 0 "32 tests: 30 passed, 0 failed, 2 waived" check --json j.json
outcomes "rm has no descriptor" waived fd-passing
json "the tests as JSON" \
	'j["schema"] == 1 and j["command"] == "window check" and len(rows) == 32 and
	{r["memory"] for r in rows} == {"cuda:0", "vmm:cuda:0"} and
	all(r["outcome"] == ("waived" if r["test"] == "fd-passing" else "passed") for r in rows) and
	all(r["by"].startswith("rm, write-combining") for r in rows) and
	all((r["reason"] is None) == (r["outcome"] == "passed") for r in rows)'
json "which GPUs" 'j["environment"]["gpus"][0]["uuid"].startswith("GPU-") and j["skipped"] == []'
FAKE_NVIDIA_GDRDRV=1 check "driver" 0 "32 tests: 32 passed, 0 failed, 0 waived" check \
	--backend driver
FAKE_NVIDIA_GDRDRV=2 check "a driver of before 2.4" 0 "16 tests: 16 passed, 0 failed, 0 waived" \
	check --backend driver --memory cuda:0
FAKE_CUDA_DRIVER=13030 check "dmabuf" 0 "32 tests: 30 passed, 0 failed, 2 waived" check -b dmabuf
check "staged" 0 "48 tests: 39 passed, 0 failed, 9 waived" check -b staged -m cuda:0 -m vmm:cuda:0 \
	-m pool:cuda:0
outcomes "staged has no pointer" waived system-call after-close fd-passing
check "one test" 0 "2 tests: 2 passed" check --test data
check "nothing but waived" 69 "no test could be run" check --test fd-passing
check "JSON on stdout" 0 "" check --test basic --json -
cp out j.json
json "and nothing else there" 'len(rows) == 2'
# Drivers older than CUDA 10.2 have no such memory.
FAKE_CUDA_FAIL=cuMemAddressReserve:0:801 check "one kind is not to be had" 0 \
	"waived  basic           cuMemAddressReserve" check --test basic
FAKE_CUDA_FAIL=cuMemAddressReserve:0:801 check "it was asked for" 69 "cuMemAddressReserve" \
	check --test basic -m vmm:cuda:0

# The tests detect each defect of a driver (fake_nvidia_fail() in nvidia-control.h): 3 it maps other
# memory, 4 children inherit the mapping, 5 munmap() does nothing, 6 any process can use any pin.
FAKE_NVIDIA_FAIL=3:0:1 check "a mapping of something else" 2 "11 failed" check -m cuda:0 \
	--json j.json
json "which say why" 'all(r["reason"] for r in rows if r["outcome"] == "failed")'
FAKE_NVIDIA_FAIL=4:0:1 check "inherited mappings" 2 "2 failed" check -m cuda:0
grep -v waived out >but.out && mv but.out out
outcomes "the tests that say so" FAILED fork-after fork-free
FAKE_NVIDIA_FAIL=5:0:1 check "mappings that stay" 2 "2 failed" check -m cuda:0
grep -v waived out >but.out && mv but.out out
outcomes "the tests that say so" FAILED after-close leakage
FAKE_NVIDIA_GDRDRV=1 FAKE_NVIDIA_FAIL=6:0:1 check "pins of everybody" 2 "gets the owner's pins" \
	check -m cuda:0 -b driver --test fd-passing
FAKE_NVIDIA_GDRDRV=1 FAKE_NVIDIA_FAIL=2:0:-12 check "a backend that fails" 69 \
	"Cannot allocate memory" \
	check -b driver
FAKE_NVIDIA_VERSION=999.1 FAKE_NVIDIA_FAIL=3:0:1 check "a backend that refuses itself" 69 \
	"failed a trial" check -b rm
check "no such backend here" 69 "/dev/gdrdrv" check --backend driver
check "no such GPU" 69 "no CUDA device is 'cuda:63'" check --memory cuda:63
check "no GPUs" 69 "switched off" check -c cuda=off
check "no driver" 69 "nowhere.so" check -c cuda=/nowhere.so
check "a file that cannot be written" 2 "cannot write /nowhere/j.json" check --json /nowhere/j.json

# ---- measuring: that it works, not how fast ------------------------------------------------------

fast=(--size 1MiB --rounds 2 --json j.json)
check "bandwidth" 0 "all of the window's length" bandwidth "${fast[@]}" --threads 2
json "every row of it" 'j["command"] == "window bandwidth" and
	[g["number"] for g in j["environment"]["gpus"]] == [0, 1] and
	len([r for r in rows if r["what"] == "copy"]) == 2 * 2 * 5 and
	len([r for r in rows if r["what"] == "threads"]) == 2 * 2 * 2 and
	len([r for r in rows if r["what"] == "recv"]) == 2 * 4 and
	all(r["bandwidth_GBps"] > 0 and r["backend"] == "rm" and r["mapping"] == "write-combining"
	    for r in rows) and
	all(r["ratio"] > 0 and r["limit_GBps"] > 0 for r in rows if r["what"] != "threads")'
json "memcpy beside it" 'all((r["libc_GBps"] or 0) > 0 for r in rows if r["what"] == "copy" and
	(r["op"] == "write" or r["size_bytes"] <= 65536))'
FAKE_NVIDIA_GDRDRV=1 check "by the kernel module" 0 "cuda:0: driver" bandwidth "${fast[@]}" \
	-m cuda:0 -b driver -n 1
check "staged bandwidth" 0 "staged, by copy engine" bandwidth "${fast[@]}" -b staged -m cuda:0
json "has no pointer" 'len(rows) == 10 and all(r["libc_GBps"] is None and r["bandwidth_GBps"] > 0
	for r in rows)'
check "each way of copying" 0 "GB/s" bandwidth "${fast[@]}" -m cuda:0 -n 1 --ways
json "all that the CPU has" '{r["op"] for r in rows if r["what"] == "way"} == {"read", "write"} and
	len([r for r in rows if r["what"] == "way"]) >= 2 * 5 and
	all(r["bandwidth_GBps"] > 0 for r in rows if r["what"] == "way")'
check "a window too short for all rows" 0 "64 bytes" bandwidth -s 1001 -r 1 -m cuda:0
check "latency" 0 "write+flush" latency "${fast[@]}"
json "every row of it" 'len(rows) == 2 * 3 * 2 * 5 and
	{(r["op"], r["cache"]) for r in rows} == {(o, c) for o in ("write", "write+flush", "read")
	    for c in ("warm", "cold")} and
	all(0 <= r["p50_us"] <= r["p99_us"] and r["limit_p50_us"] > 0 for r in rows)'
check "latency of 8 bytes" 0 "8 bytes" latency -s 8 -r 10 -m cuda:0 -b staged
check "api" 0 "unmap and unpin" api --size 16MiB --rounds 20 --json j.json
json "every row of it" 'len(rows) == 2 * 3 * 4 and
	{r["call"] for r in rows} == {"open", "open again", "info", "close"} and
	all(r["least_us"] <= r["p50_us"] <= r["p99_us"] <= r["most_us"] and r["samples"] == 20 and
	    sum(b["count"] for b in r["histogram"]) == 20 for r in rows)'
check "pingpong" 0 "pinned, pinned" pingpong --rounds 100 --json j.json
json "every row of it" 'len(rows) == 2 * 4 and all(r["limit_us"] > 0 and (
	r["ratio"] is None if r["algorithm"] == "pinned, pinned" else r["ratio"] > 0) for r in rows)'
check "one bounce" 0 "us of a round trip" pingpong --rounds 1 -m cuda:0
check "staged pingpong" 0 "skipped: staged" pingpong --rounds 10 -b staged -m cuda:0 --json j.json
json "one row is left" 'len(rows) == 1 and len(j["skipped"]) == 3'
FAKE_CUDA_FAIL=cuMemAddressReserve:0:801 check "one kind is skipped" 0 "vmm:cuda:0: skipped" api \
	-s 64KiB -r 2
FAKE_CUDA_FAIL=cuLaunchKernel:0:719 check "a kernel that cannot be launched" 2 "cuLaunchKernel" \
	pingpong \
	-m cuda:0
FAKE_CUDA_FAIL=cuMemcpy:0:700 check "a copy that fails" 2 "cuMemcpy" bandwidth "${fast[@]}" \
	-m cuda:0
FAKE_CUDA_MEMORY=4194304 check "a GPU that is full" 69 "cuMemAlloc" api -m cuda:0
FAKE_NVIDIA_GDRDRV=1 FAKE_NVIDIA_FAIL=2:0:-12 check "no window to measure" 69 \
	"Cannot allocate memory" \
	latency -b driver

# ---- wrong command lines -------------------------------------------------------------------------

while IFS='|' read -r text words; do
	# shellcheck disable=SC2086 # words
	misuse "$text" $words
done <<'TABLE'
operands are missing: write WHAT (none is given)|
'twice' is one operand too many|check twice
did you mean 'check'?|chekc
no 'nonsense'|nonsense
no option --momory; did you mean --memory?|check --momory cuda:0
--memory: 'host' is not GPU memory|check -m host
--memory: 'managed:cuda:0': the CPU reaches|check -m managed:cuda:0
--memory: 'gpu' starts with no kind|check -m gpu
--memory: 'cuda:0:1MiB': ':1MiB' after the GPU|check -m cuda:0:1MiB
--memory: cuda:0 is given twice|check -m cuda:0 -m device:cuda:0
--backend: no 'dma-buf'; did you mean 'dmabuf'?|check --backend dma-buf
--backend: no 'nothing'; write one of|check --backend nothing
--test: no test 'nonsense'|check --test nonsense
--size is not for wherry window check|check --size 1MiB
--size is not for wherry window pingpong|pingpong --size 1MiB
--size: 'x' is not a size|bandwidth --size x
--size: 3 is not between 4 bytes and 16 GiB|latency -s 3
--size: 0 is not between 64 bytes and|bandwidth -s 0
--size: 4KiB is not between 64 KiB and|api -s 4KiB
--size: 1TiB is not between|api -s 1TiB
--rounds: 0 is not between 1 and|latency -r 0
--rounds: 'x' is not a number|latency -r x
--threads: 65 is not between 1 and 64|bandwidth -n 65
--threads is for wherry window bandwidth|latency -n 2
--ways is for wherry window bandwidth|check --ways
--test is for wherry window check|latency --test data
--rounds is not for wherry window check|check --rounds 3
--threads is for wherry window bandwidth|check --threads 3
--config: no setting|check --config nonsense=1
TABLE

exit $failed
