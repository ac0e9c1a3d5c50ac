#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: fakes fake-nvidia slow
# How wherry doctor and wherry topo use libcuda, libnvidia-ml and libibverbs: the command opens the
# fakes of tests/fake in their place.
set -u
wherry=$TEST_COMMAND
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
unset CUDA_VISIBLE_DEVICES "${!FAKE_@}"
export LD_LIBRARY_PATH=$TEST_FAKES:${LD_LIBRARY_PATH-}
export FAKE_NVML=$TEST_SOURCE/tests/fake/nvml/broken.txt

# FILE has exactly these lines, in this order.
holds() # FILE LINE...
{
	local file=$1

	shift
	printf '%s\n' "$@" | diff - "$file"
}

doctor() # ARGUMENTS...
{
	rm -rf record
	timeout 200 "$wherry" doctor --record record --color never "$@" >out 2>err
	status=$?
	[ $status -le 2 ] || cat err
	[ $status -le 2 ]
}

# Empty files in place of libraries stand for a machine that lacks them. The command itself is
# linked with OpenSSL, so doctor-checks tests a missing OpenSSL.
doctor --only lib.crypto && [ $status = 0 ] && grep -q '^PASS *lib.crypto' out &&
	holds record/crypto.txt HMAC-SHA-256
verdict "OpenSSL is there" $?
mkdir none && : >none/libibverbs.so.1
LD_LIBRARY_PATH=$PWD/none:$LD_LIBRARY_PATH doctor --only lib.verbs && [ $status = 0 ] &&
	grep -q '^INFO *lib.verbs' out && tr -s ' \n' ' ' <out |
	grep -q 'libibverbs.so.1: file too short' &&
	grep -q '^error 2 .*libibverbs.so.1' record/verbs.txt
verdict "no libibverbs" $?
FAKE_VERBS=one,two doctor --only lib.verbs && tr -s ' \n' ' ' <out |
	grep -q 'PASS lib.verbs .*2 NICs'
verdict "a libibverbs" $?
well="exported=0 registered=0 peermem=14 moved=0"
FAKE_VERBS=one,two doctor && holds record/verbs.txt \
	"nic one dma_buf=9 mtu=1024 mtu_most=4096" "gpu 0000:1b:00.0 $well" \
	"gpu 0000:2b:00.0 $well" \
	"nic two dma_buf=9 mtu=1024 mtu_most=4096" "gpu 0000:1b:00.0 $well" "gpu 0000:2b:00.0 $well"
verdict "two NICs write and read the memory of two GPUs" $?
# The recorded line of the first GPU is STEPS before the reason why nothing moved, and REASON occurs
# in the recording.
refuses() # STEPS REASON
{
	sed -n 's/^gpu 0000:1b:00.0 \(.* moved=[-0-9]*\) why=.*/\1/p' record/verbs.txt |
		grep -qxF -e "$1" &&
		grep -qF -e "$2" record/verbs.txt
}
FAKE_CUDA_DEVICES=1 FAKE_VERBS=one FAKE_VERBS_DMABUF=95 doctor &&
	refuses "exported=0 registered=95 peermem=14 moved=95" "peermem: Bad address"
verdict "a NIC that registers no dma-buf" $?
FAKE_CUDA_DEVICES=1 FAKE_VERBS=one FAKE_VERBS_DMABUF=95 FAKE_VERBS_PEERMEM=1 doctor &&
	holds record/verbs.txt "nic one dma_buf=95 mtu=1024 mtu_most=4096" \
		"gpu 0000:1b:00.0 exported=0 registered=95 peermem=0 moved=0"
verdict "a NIC that registers addresses, with nvidia-peermem" $?
FAKE_CUDA_DEVICES=1 FAKE_VERBS=one FAKE_CUDA_FAIL=cuMemGetHandleForAddressRange:0:801 doctor &&
	refuses "exported=95 registered=-1 peermem=14 moved=95" "dmabuf: CUDA_ERROR_NOT_SUPPORTED"
verdict "a GPU that exports no dma-buf" $?
FAKE_CUDA_DEVICES=1 FAKE_VERBS=one FAKE_VERBS_GIDS=2/:: doctor &&
	refuses "exported=0 registered=0 peermem=14 moved=-1" "has no address (GID)"
verdict "a NIC that moves nothing, of host memory either" $?
FAKE_CUDA_DEVICES=1 FAKE_VERBS=one FAKE_CUDA_ATTRIBUTES=118=0 \
	FAKE_CUDA_FAIL=cuFlushGPUDirectRDMAWrites:0:999 doctor &&
	refuses "exported=0 registered=0 peermem=14 moved=5" cuFlushGPUDirectRDMAWrites
verdict "a GPU that does not flush what a NIC has written" $?
FAKE_CUDA_DEVICES=0 FAKE_VERBS=one doctor &&
	holds record/verbs.txt "nic one dma_buf=9 mtu=1024 mtu_most=4096" &&
	grep -q '^error 19 ' record/cuda.txt
verdict "a NIC without a GPU" $?
doctor && [ ! -s record/verbs.txt ]
verdict "no NIC" $?

# ---- libraries that do not answer ----------------------------------------------------------------

# The whole run takes less than ten seconds, whatever hangs, and keeps the answers that it got.
in_time() # WHAT-HANGS ARGUMENTS...
{
	local hangs=$1 took

	shift
	took=$(quiet_seconds)
	FAKE_VERBS_HANG=$hangs FAKE_VERBS=one,two doctor "$@" && tr -s ' \n' ' ' <out >line &&
		took=$(($(quiet_seconds) - took)) && echo "$hangs: $took s" && [ "$took" -lt 10 ]
}
late="exported=-1 registered=-1 peermem=14 moved=-1 late=1"
in_time list && grep -q 'UNKNOWN lib.verbs libibverbs did not answer' line &&
	grep -q 'PASS driver.nvml' line
verdict "a libibverbs that hangs" $?
in_time open:two && holds record/verbs.txt \
	"nic one dma_buf=9 mtu=1024 mtu_most=4096" "gpu 0000:1b:00.0 $well" \
	"gpu 0000:2b:00.0 $well" \
	"nic two dma_buf=-1 mtu=-1 mtu_most=-1 late=1" && grep -q 'PASS lib.verbs .* 2 NICs' line
verdict "a NIC that hangs: the other is asked" $?
in_time register:two && holds record/verbs.txt \
	"nic one dma_buf=9 mtu=1024 mtu_most=4096" "gpu 0000:1b:00.0 $well" \
	"gpu 0000:2b:00.0 $well" \
	"nic two dma_buf=9 mtu=1024 mtu_most=4096" \
	"gpu 0000:1b:00.0 ${late/registered=-1 peermem=14/registered=-1 peermem=-1}" \
	"gpu 0000:2b:00.0 ${late/peermem=14/peermem=-1}"
verdict "a pair that hangs: the others are tried" $?
in_time move:two && grep -A 2 '^nic two' record/verbs.txt | tail -n 2 >pairs && cat pairs &&
	[ "$(grep -c '^gpu .* exported=0 registered=0 peermem=14 moved=-1 why=' pairs)" = 2 ] &&
	[ "$(grep -c " $well\$" record/verbs.txt)" = 2 ]
verdict "a NIC that moves nothing, and does not say so" $?
FAKE_CUDA_START=60 in_time none --skip nic.port && holds record/verbs.txt "cuda late=1" \
	"nic one dma_buf=9 mtu=1024 mtu_most=4096" "nic two dma_buf=9 mtu=1024 mtu_most=4096" &&
	grep -q 'gpu.direct the CUDA driver did not answer in time' line
verdict "CUDA hangs: the NICs answer" $?
# After a pair has failed, the next pair uses new engines.
FAKE_VERBS=one FAKE_CUDA_ATTRIBUTES=118=0 FAKE_CUDA_FAIL=cuFlushGPUDirectRDMAWrites:1:999 doctor &&
	grep -q '^gpu 0000:1b:00.0 .* moved=5 why=' record/verbs.txt &&
	grep -q "^gpu 0000:2b:00.0 $well\$" record/verbs.txt
verdict "a pair that fails says nothing of the next" $?

# 64 pairs, as on a machine with eight GPUs and eight NICs. The doctor asks them for a limited time:
# on a machine that is too busy for that, once more.
eight=a,b,c,d,e,f,g,h
eight_in_time() # WHAT-HANGS PAIRS-BY-RECORD...
{
	local hangs=$1 start took count pattern try

	shift
	for try in 1 2 3 4; do
		start=$(quiet_seconds)
		FAKE_CUDA_DEVICES=8 FAKE_VERBS=$eight FAKE_VERBS_HANG=$hangs doctor || continue
		took=$(($(quiet_seconds) - start))
		echo "64 pairs, hangs: '$hangs', try $try: $took s"
		for pattern in "$@"; do
			count=$(grep -c "^gpu .* ${pattern#*:}" record/verbs.txt)
			[ "$count" = "${pattern%%:*}" ] || continue 2
		done
		[ "$took" -ge 10 ] || return 0
	done
	return 1
}
eight_in_time "" "64:$well\$"
verdict "eight GPUs and eight NICs: 64 pairs" $?
eight_in_time register:c "56:$well\$" '8:late=1$'
verdict "eight GPUs and eight NICs, of which one hangs" $?
# The worst case: each pair fails as late as possible.
eight_in_time move "64:moved=-1 why="
verdict "eight GPUs and eight NICs that move nothing" $?

# ---- only what is needed -------------------------------------------------------------------------

# doctor ARGUMENTS opens exactly these libraries.
opens() # NAMES ARGUMENTS...
{
	local names=$1

	shift
	rm -f opened.*
	LD_DEBUG=files LD_DEBUG_OUTPUT=opened FAKE_VERBS=one doctor "$@" || return
	[ "$(cat opened.* | grep \
		-o -E 'file=lib(cuda|nvidia-ml|ibverbs)\.so[.1]* \[0\];  dynamically loaded' |
		grep -o -E 'cuda|nvidia-ml|ibverbs' | sort -u | tr '\n' ' ')" = "$names" ]
}
opens "" --only mem.huge,cgroup,lib.crypto
verdict "--only mem.huge asks neither GPUs nor NICs" $?
opens "ibverbs " --only lib.verbs,nic.dmabuf,nic.mtu
verdict "--only lib.verbs wakes no GPU" $?
opens "nvidia-ml " --only gpu.health
verdict "--only gpu.health does not start CUDA" $?
opens "cuda ibverbs nvidia-ml "
verdict "all checks ask all" $?
opens "nvidia-ml " --skip gpu.direct,gpu.fabric,gpu.imex,pci.link,window,nic,lib.verbs
verdict "--skip leaves out what only those need" $?

FAKE_CUDA_DEVICES=1 FAKE_CUDA_ATTRIBUTES=124=0,38=1048576 doctor --only gpu.direct
holds record/cuda.txt "version 13000" \
	"gpu 0000:1b:00.0 rdma=1 dma_buf=0 rdma_vmm=1 fabric=1 l2=1048576" &&
	grep -q '^WARN *gpu.direct' out
verdict "a GPU without dma-buf" $?
FAKE_CUDA_FAIL=cuInit:0:802 doctor --only gpu.fabric
[ $status = 2 ] && grep -q nvidia-fabricmanager out
verdict "cuInit says 802" $?
doctor --only driver.nvml,gpu.health
[ $status = 2 ] && grep -q '^PASS *driver.nvml' out && tr -s ' \n' ' ' <out | grep -q 'GPU is lost'
verdict "a GPU that is lost" $?

# If a GPU's link seems slow, doctor reads its speed again while the GPU copies.
link() # GENERATION-UNDER-LOAD VERDICT TEXT
{
	cat >link.txt <<-NVML
	nvmlDeviceGetCount : 0 1
	nvmlDeviceGetHandleByIndex 0 : 0
	nvmlDeviceGetPciInfo 0 : 0 0x0 0x1b 0x0 0x233510de
	nvmlDeviceGetCurrPcieLinkGeneration 0 : 0 1
	busy nvmlDeviceGetCurrPcieLinkGeneration 0 : 0 $1
	nvmlDeviceGetMaxPcieLinkGeneration 0 : 0 5
	nvmlDeviceGetCurrPcieLinkWidth 0 : 0 16
	nvmlDeviceGetMaxPcieLinkWidth 0 : 0 16
	NVML
	FAKE_NVML=$PWD/link.txt doctor --only pci.link && tr -s ' \n' ' ' <out |
		grep -q "^$2 pci.link $3"
}
link 5 PASS "GPU0: PCIe 5 x16 while the GPU copies" && [ $status = 0 ] &&
	grep -qx 'gpu 0000:1b:00.0 error=0 generation=5 width=16 why=' record/links.txt
verdict "a link that is slow while the GPU is idle" $?
link 3 WARN "GPU0: NVML says PCIe 3 of 5 while the GPU copies" && [ $status = 1 ]
verdict "a link that is slow while the GPU copies" $?
FAKE_CUDA_FAIL=cuMemAlloc_v2:0:2 link 5 UNKNOWN \
	"GPU0: NVML says PCIe 1 of 5; the GPU may be idle, and nothing could be copied: .*OUT_OF_MEMORY" &&
	[ $status = 0 ]
verdict "a link that is slow, and nothing can be copied" $?
took=$(quiet_seconds)
FAKE_CUDA_START=60 link 5 UNKNOWN \
	"GPU0: NVML says PCIe 1 of 5; .*: the CUDA driver did not answer in time" &&
	[ $(($(quiet_seconds) - took)) -lt 5 ]
verdict "a link that is slow, and CUDA hangs" $?
opens "cuda nvidia-ml " --only pci.link
verdict "--only pci.link starts CUDA for a link that is slow" $?

# Doctor opens a window, and reports the reason of a failure.
sanitizer=$(ldd "$wherry" | grep -o '/[^ ]*/lib[at]san[^ ]*' | head -n 1)
windows=${sanitizer:+$sanitizer:}$TEST_BUILD/tests/fake/libfake-nvidia.so
FAKE_NVML=$TEST_SOURCE/tests/fake/nvml/broken.txt FAKE_NVIDIA_CUDA=$TEST_CUDA preloaded "$windows" \
	doctor --only window.ways && tr -s ' \n' ' ' <out |
	grep -q '^PASS window.ways driver: .*/dev/gdrdrv.* dmabuf: .*; rm: opens' &&
	grep -q '^window rm error=0 why=$' record/windows.txt
verdict "a window opens" $?
FAKE_NVIDIA_VERSION=999.1 FAKE_NVIDIA_FAIL=3:0:1 FAKE_NVIDIA_CUDA=$TEST_CUDA preloaded "$windows" \
	doctor --only window.ways
[ $status = 1 ] && tr -s ' \n' ' ' <out |
	grep -q 'WARN window.ways .*rm: .*999.1, not seen working before, failed a trial'
verdict "no window opens, and why" $?

FAKE_CUDA_DEVICES=1 "$wherry" topo --color never >out && grep -q 'L2 -' out &&
	grep -A 9 '^Missing' out | grep \
	-q 'CUDA: not asked for the sizes of L2 caches; --cuda starts it' &&
	! "$wherry" topo --cuda | grep -q 'L2 caches'
verdict "L2 is missing, and why" $?
"$wherry" topo --cuda --record record --json >live && mkdir -p record/lib &&
	ln -s "$TEST_NVML" record/lib/libnvidia-ml.so.1 &&
	FAKE_NVML=record/nvml.txt "$wherry" topo --root record --json >replayed &&
	diff live replayed && grep -q '"name": "NVIDIA H200"' live
verdict "a recording shows the same machine" $?
! FAKE_NVML=/nonexistent "$wherry" topo --json | grep -q '"name": "NVIDIA' &&
	FAKE_NVML=/nonexistent "$wherry" topo | tr -s ' \n' ' ' | grep -q 'NVML: .*modprobe nvidia'
verdict "no driver" $?
FAKE_NVML=$TEST_SOURCE/tests/fake/nvml/mismatch.txt doctor --only driver.nvml
[ $status = 2 ] && grep -q 'do not match' out
verdict "libraries and modules of different versions" $?
exit $failed
