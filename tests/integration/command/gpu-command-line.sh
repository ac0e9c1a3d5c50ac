#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: gpu
# The wherry command with GPU memory: serve, copy, bench, explain. It uses the CUDA driver in
# $TEST_CUDA, or, if that is not set, the machine's own. The command's path is $1 or $TEST_COMMAND.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"
[ -z "${TEST_CUDA-}" ] || export WHERRY_CUDA=$TEST_CUDA

# wherry ARGUMENTS must exit with STATUS and print TEXT. The files out and err keep its output.
check() # NAME STATUS TEXT ARGUMENTS...
{
	local name=$1 want=$2 text=$3 status

	shift 3
	timeout 200 "$wherry" "$@" >out 2>err
	status=$?
	if [ "$status" != "$want" ] || ! cat out err | grep -q -F -e "$text"; then
		echo "wherry $*: status $status, not $want with '$text'"
		head -n 20 out err
		false
	fi
	verdict "$name" $?
}

has() # NAME PATTERN: a line of the file out matches
{
	grep -q -E -e "$2" out || { cat out && false; }
	verdict "$1" $?
}

# json NAME EXPRESSION: the Python expression is true; `j` is the file j.json, `rows` its results.
json()
{
	python3 -c '
import json, sys
j = json.load(open("j.json"))
rows = j.get("results", [])
good = eval("(" + sys.argv[1] + ")")
if not good:
	print(json.dumps(rows, indent=1)[:20000])
sys.exit(not good)' "$2"
	verdict "$1" $?
}

gpus=1
"$wherry" explain pinned cuda:1 >/dev/null 2>&1 && gpus=2
other=cuda:$((gpus - 1))

# ---- serve and copy ------------------------------------------------------------------------------

"$wherry" serve -m cuda:0:8MiB -m cuda:0:4MiB -m "vmm:$other:8MiB:vmm" -m pinned:8MiB \
	-m managed:cuda:0:8MiB >url &
server=$!
for ((i = 0; i < 1200; i++)); do
	grep -q wherry:// url 2>/dev/null && break
	sleep 0.1
done
url=$(cat url)
check "regions are named by their memory" 0 "cuda-0.1" explain "$url"
has "a region says that it is a GPU's" 'cuda-0 .* device +read write'
check "what it takes over a network is told" 0 " us, " explain "$url" --require tcp
! grep -E "^  (host|pageable|huge) .*tcp \(" out | grep -v " us, .* GB/s"
verdict "... of each way" $?

head -c 5000001 /dev/urandom >data
check "a file into a GPU, verified" 0 "written by cuda" copy data "$url/cuda-0" --verify
check "back again" 0 "read by cuda" copy "$url/cuda-0" back --length 5000001
cmp data back
verdict "the same bytes" $?
check "from one GPU to another" 0 "verified: read back" copy "$url/cuda-0" "$url/vmm" \
	--length 5000001 --verify
check "out of a GPU into a pipe" 0 "" copy "$url/vmm" - --length 5000001 --quiet
cmp data out
verdict "the pipe has the same bytes" $?
check "at odd offsets" 0 "verified" copy "$url/cuda-0+12345" "$url/vmm+54321" --length 1234567 \
	--verify
check "by tcp" 0 "written by tcp" copy data "$url/cuda-0" --require tcp --verify
check "managed memory of another process" 0 "not by cuda: managed memory, which cannot be mapped" \
	copy data "$url/managed-cuda-0" --verify
kill "$server"
wait "$server"
verdict "the server gives the memory back" $?

# With a stand-in for the NVIDIA kernel driver, beside the fake CUDA driver, the server has CPU
# windows.
windows() # NAME TEXT OPTIONS...: receive a file over TCP; the server's log must contain TEXT
{
	local name=$1 text=$2 i

	shift 2
	rm -f url
	ASAN_OPTIONS=${ASAN_OPTIONS-}:verify_asan_link_order=0 FAKE_NVIDIA_CUDA=$TEST_CUDA \
		env "${TEST_PRELOAD_BY:-LD_PRELOAD}=$(dirname "$TEST_CUDA")/libfake-nvidia.so" \
		"$wherry" serve -m cuda:0:8MiB --verbose "$@" >url 2>log &
	server=$!
	for ((i = 0; i < 1200; i++)); do
		grep -q wherry:// url 2>/dev/null && break
		sleep 0.1
	done
	check "$name: a file" 0 "verified" copy data "$(cat url)/cuda-0+77" --require tcp --verify
	kill "$server"
	wait "$server"
	verdict "$name: the server gives all back" $?
	server=
	grep -q -F -e "$text" log || { cat log && false; }
	verdict "$name: the log" $?
}
if [ -n "${TEST_CUDA-}" ]; then
	windows "received by window" "CPU window (rm): for received requests of "
	windows "windows switched off" "no CPU window: windows are switched off" -c window=off
fi

check "a GPU that is not there" 69 "no CUDA device is 'cuda:63'" serve -m cuda:63:1MiB
check "a driver that is not there" 69 "nowhere.so" serve -m cuda:0:1MiB -c cuda=/nowhere.so
check "GPUs switched off" 69 "switched off" serve -m cuda:0:1MiB -c cuda=off

# ---- bench ---------------------------------------------------------------------------------------

fast=(--seconds 0.02 --working-set 2MiB --verify)
check "two GPUs, two processes and one" 0 "of 8 rows reached the limit, 8 verified" bench \
	"${fast[@]}" --limits -t cuda \
	--source cuda:0 --target "$other" -s 8,256KiB --json j.json
json "names, processes and limits" 'len(rows) == 8 and
	{r["processes"] for r in rows} == {1, 2} and
	all(r["source"] == "cuda:0" and r["transport"] == "cuda" and r["verified"] and
	    r["limit_name"] == "cuMemcpy" and r["ratio"] > 0 and r["limit_us"] > 0 for r in rows)'
json "which GPUs" 'j["environment"]["gpus"][0]["uuid"].startswith("GPU-") and
	j["environment"]["gpus"][0]["pci"].count(":") == 2'
check "blocks against the better limit" 0 "of 4 rows reached the limit, 4 verified" bench \
	"${fast[@]}" --limits -t cuda \
	--source "cuda:0,vmm:cuda:0" --target pinned -s 4KiB -b 256 --processes 2 --json j.json
json "the better of the bare kernel and the driver" 'all(r["form"] == "blocks" and
	r["limit_name"] == ("cuMemcpy, contiguous" if r["limit_copy_GBps"] > r["limit_kernel_GBps"]
		else "bare kernel") and r["limit_kernel_GBps"] > 0 and
	r["limit_GBps"] >= 0.99 * max(r["limit_copy_GBps"], r["limit_kernel_GBps"]) and
	r["limit_threads"] is None and r["ratio"] > 0
	and r["route_detail"].split(" of ")[0] in ("kernel", "copy engine")
	for r in rows)'
json "the first byte" 'all((r["first_byte_us"]["new"] > 0 and
	0 < r["first_byte_us"]["prepared"] < 10 * r["latency_us"]["p999"]) if r["op"] == "read" else
	r["first_byte_us"] is None for r in rows)'
check "over TCP" 0 "of 4 rows reached the limit, 4 verified" bench "${fast[@]}" --limits -t tcp \
	--source cuda:0 \
	--target "$other" -s 64KiB -n 1,2 --json j.json
json "the limit is that of host memory" 'all(r["limit_name"] == "send/recv" and r["ratio"] > 0 and
	r["connections"] in (1, 2) and r["transport"] == "tcp" for r in rows)'
check "blocks over TCP" 0 "2 rows, 2 verified" bench "${fast[@]}" -t tcp --source pinned \
	--target cuda:0 -s 4KiB -b 64
check "both ways, verified" 0 "of 4 rows reached the limit, 4 verified" bench "${fast[@]}" \
	--limits -t cuda --both-ways \
	--source cuda:0 --target "$other" -s 64KiB --json j.json
json "both ways" 'all(r["ways"] == 2 and r["ratio"] > 0 for r in rows)'
check "odd lengths" 0 "4 rows, 4 verified" bench "${fast[@]}" -t cuda --source cuda:0 \
	--target pinned -s 1001 -b 77
check "managed and pool memory, staged" 0 "verified" bench "${fast[@]}" -t cuda --processes 1 \
	--source managed:cuda:0 --target "pool:$other" -s 100KiB
check "what cannot be mapped is skipped with its reason" 69 "cannot be mapped by another process" \
	bench "${fast[@]}" -t cuda --processes 2 --source cuda:0 --target managed:cuda:0 -s 4KiB \
	-o write
check "host memory by a GPU's transport" 69 "neither side is a GPU's memory" bench "${fast[@]}" \
	-t cuda -m host -s 4KiB

check "a matrix" 0 "from \\ to" bench --matrix "${fast[@]}" -s 64KiB --json j.json
has "its columns" '^from . to +pageable +pinned +cuda:0'
has "its rows" '^cuda:0 +[-0-9]'
has "both ways" 'two processes, both ways at once'
json "every pair is there" '(lambda n: len(rows) + len(j["skipped"]) == 4 * n * n)(
	2 + len(j["environment"]["gpus"])) and all(r["verified"] for r in rows)'
check "a matrix of chosen memories" 0 "blocks of 4 KiB, one process" bench --matrix "${fast[@]}" \
	-m cuda:0,pinned -s 4KiB -b 64 --processes 1 --limits
check "a matrix without a GPU" 0 "no GPU" bench --matrix "${fast[@]}" -s 64KiB --processes 1 \
	-c cuda=off

# ---- beside other work ---------------------------------------------------------------------------

beside=(bench --seconds 0.2 -t cuda --source pinned --target cuda:0 -s 64KiB -o write --processes 2)
check "no cuBLAS" 69 "no cuBLAS" "${beside[@]}" --beside gemm=/nonexistent/libcublas.so
check "a library that is none" 69 "has no cublasCreate_v2" "${beside[@]}" \
	--beside gemm-apart=libc.so.6
check "gemm without a GPU" 64 "no row uses a GPU" bench -t shm --beside gemm
if [ -n "${TEST_CUDA-}" ]; then
	export FAKE_CUBLAS_US=2000
	check "beside products of matrices" 0 "beside gemm-apart: it has" "${beside[@]}" \
		--beside "gemm=${TEST_CUDA%/*}/libcublas.so.12" --json j.json
	# The fake's product takes 2 ms and moves no byte of the transfer's.
	json "both have their rates" 'len(rows) == 1 and
		[b["load"] for b in rows[0]["beside"]] == ["gemm", "gemm-apart"] and all(
		0 < b["beside"] and 0 < b["alone"] <= 2 * 8192 ** 3 / 2e9 * 1.01 and
		b["unit"] == "TFLOP/s" and b["threads"] is None and b["share"] > 0 and
		b["transfer_alone_GBps"] > 0 and b["transfer_beside_GBps"] > 0
		for b in rows[0]["beside"])'
fi

check "a size behind a memory" 64 "takes none here" bench --source cuda:0:1MiB
check "no such kind" 64 "no kind of memory" bench --target gpu
check "one or the other" 64 "either that or --source" bench -m host --source cuda:0
check "nothing left" 64 "exclude each other" bench -t self --processes 2

# ---- explain -------------------------------------------------------------------------------------

check "explain two memories" 0 "route    cuda (" explain cuda:0 "$other" --size 4KiB --blocks 1024
has "the kernel" '^  kernel +[0-9.]+ us +[0-9.]+ GB/s'
has "the copy engine" '^  copy engine +[0-9.]+ us +[0-9.]+ GB/s'
has "one of them is taken" '<- taken$'
check "explain as JSON" 0 '"expected_GBps"' explain pinned cuda:0 --json
cp out j.json
json "it is JSON" 'j["schema"] == 1 and j["transport"] == "cuda" and j["expected_us"] > 0 and
	j["target"]["gpu_uuid"].startswith("GPU-") and j["refused"] == []'
# The fake NVML lists no process by itself, and a real one would list those of this machine.
if [ -n "${TEST_NVML:-}" ]; then
	uuid=$(python3 -c 'import json; print(json.load(open("j.json"))["target"]["gpu_uuid"])')
	printf '%s\n' "nvmlDeviceGetCount : 0 1" "nvmlDeviceGetHandleByIndex 0 : 0" \
		"nvmlDeviceGetUUID 0 : 0 $uuid" \
		"nvmlDeviceGetComputeRunningProcesses 0 : 0 4711001 1 4711002 1 4711003 1" >nvml.txt
	shared()
	{
		FAKE_NVML=$PWD/nvml.txt LD_LIBRARY_PATH=${TEST_NVML%/*}:${LD_LIBRARY_PATH:-} \
			check "$@"
	}
	shared "who else computes on the GPU" 0 \
		"warning: cuda:0: shared by time slices (no MPS): 2 other processes compute on it" \
		explain pinned cuda:0
	shared "... as JSON" 0 '"cuda:0: shared by time slices' explain pinned cuda:0 --json
fi
check "what is staged" 0 "staged: managed memory" explain managed:cuda:0 pinned
has "what it takes has been measured" 'expected from what was measured'
has "... by the slower side" 'all of it +[0-9.]+ us +[0-9.]+ GB/s$'
check "explain without a GPU" 0 "all of it" explain host pageable -c cuda=off
check "one memory is not enough" 64 "name a second one, the target" explain cuda:0
check "blocks of a peer" 64 "two memories" explain wherry://127.0.0.1:7000 --blocks 4
check "too much" 64 "8GiB" explain cuda:0 pinned --size 1GiB --blocks 100

exit $failed
