#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: fakes fake-nvidia
# Every check of wherry doctor on small machines made of files: a healthy machine, and for each
# check a machine with a problem and one with too little information to decide.
set -u
wherry=$TEST_COMMAND
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1

# ---- a machine of files -----------------------------------------------------------------------

put() # PATH TEXT: write a file in the case's tree
{
	mkdir -p "tree/${1%/*}" && printf '%s\n' "$2" >"tree/$1"
}

remove() # PATH...
{
	local path

	for path in "$@"; do
		rm -rf "tree/${path:?}"
	done
}

# Make a path unreadable, for root too: a link to itself.
spoil() # PATH
{
	remove "$1"
	mkdir -p "tree/${1%/*}"
	ln -s "${1##*/}" "tree/$1"
}

# The configuration space of a PCI device.
config() # PATH DEVICE-CONTROL ACS-CONTROL BYTES (the numbers as \x..)
{
	local file="tree/$1/config"

	head -c 4096 /dev/zero >"$file"
	poke() # OFFSET BYTES
	{
		# shellcheck disable=SC2059 # the bytes are escapes
		printf "$2" | dd of="$file" bs=1 seek="$1" conv=notrunc status=none
	}
	poke 6 '\x10'
	poke 52 '\x60'
	poke 96 '\x10\x00' # PCI Express
	poke 104 "$2"
	poke 256 '\x0d\x00\x01\x00' # ACS
	poke 262 "$3"
	truncate -s "$4" "$file"
}

pci=/sys/devices/pci0000:10

device() # PATH-BELOW-THE-HOST-BRIDGE CLASS VENDOR
{
	local path=$pci/$1

	put "$path/class" "$2"
	put "$path/vendor" "$3"
	put "$path/device" 0x2335
	put "$path/numa_node" 0
	put "$path/local_cpulist" 0-7
	put "$path/current_link_speed" "32.0 GT/s PCIe"
	put "$path/max_link_speed" "32.0 GT/s PCIe"
	put "$path/current_link_width" 16
	put "$path/max_link_width" 16
	config "$path" '\x10' '\x11' 4096
	mkdir -p tree/sys/bus/pci/devices
	ln -s "../../../devices/pci0000:10/$1" "tree/sys/bus/pci/devices/${1##*/}"
}

gpu=$pci/0000:10:01.0/0000:11:00.0
nic=$pci/0000:10:02.0/0000:12:00.0
port=$nic/infiniband/mlx5_0/ports/1

make_devices()
{
	local name

	device 0000:10:01.0 0x060400 0x8086
	device 0000:10:01.0/0000:11:00.0 0x030200 0x10de
	device 0000:10:02.0 0x060400 0x8086
	device 0000:10:02.0/0000:12:00.0 0x020000 0x15b3
	for name in 11 12; do
		put "/sys/kernel/iommu_groups/$name/type" identity
	done
	ln -s ../../../../kernel/iommu_groups/11 "tree$gpu/iommu_group"
	ln -s ../../../../kernel/iommu_groups/12 "tree$nic/iommu_group"
	put /sys/devices/system/node/node0/cpulist 0-7
	put /sys/devices/system/node/node0/distance 10
	put /sys/devices/system/node/node0/meminfo "Node 0 MemTotal: 1048576 kB"
}

make_nic()
{
	local counter

	mkdir -p tree/sys/class/{infiniband,net}
	ln -s "../../devices/pci0000:10/${nic#"$pci/"}/infiniband/mlx5_0" \
		tree/sys/class/infiniband/mlx5_0
	put "$port/state" "4: ACTIVE"
	put "$port/rate" "400 Gb/sec (4X NDR)"
	put "$port/link_layer" Ethernet
	put "$port/gids/0" fe80:0000:0000:0000:0000:0000:0000:0001
	put "$port/gid_attrs/types/0" "IB/RoCE v1"
	put "$port/gids/1" fe80:0000:0000:0000:0000:0000:0000:0001
	put "$port/gid_attrs/types/1" "RoCE v2"
	put "$port/gids/3" 0000:0000:0000:0000:0000:ffff:0a00:0001
	put "$port/gid_attrs/types/2" ""
	put "$port/gid_attrs/types/3" "RoCE v2"
	for counter in out_of_sequence packet_seq_err np_cnp_sent; do
		put "$port/hw_counters/$counter" 0
	done
	ln -s ../../../0000:12:00.0 "tree$nic/infiniband/mlx5_0/device"
	put "$nic/net/eth2/operstate" up
	put "$nic/net/eth2/speed" 400000
	ln -s "../../devices/pci0000:10/${nic#"$pci/"}/net/eth2" tree/sys/class/net/eth2
	put "$nic/net/eth2/ecn/roce_np/enable/3" 1
	put "$nic/net/eth2/qos/pfc" "0,0,0,1,0,0,0,0"
	put /dev/infiniband/uverbs0 ""
	mkdir -p tree/sys/module/nvidia_peermem
}

# The machine's first namespaces.
of_pid_1()
{
	local name number=4026531833

	for name in net pid ipc mnt uts user; do
		mkdir -p tree/proc/self/ns tree/proc/1/ns
		case $name in
		pid) number=4026531836 ;;
		ipc) number=4026531839 ;;
		uts) number=4026531838 ;;
		user) number=4026531837 ;;
		esac
		ln -sfn "$name:[$number]" "tree/proc/1/ns/$name"
		ln -sfn "$name:[$number]" "tree/proc/self/ns/$name"
	done
}

make_host()
{
	put /proc/driver/nvidia/version "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64"
	put /proc/devices "Character devices:
195 nvidia
240 gdrdrv"
	put /proc/self/status "CapEff:	0000000000000000
Cpus_allowed_list:	0-7"
	put /proc/self/mounts "tmpfs /dev/shm tmpfs rw,nosuid,nodev,size=8388608k 0 0"
	mkdir -p tree/dev/shm
	of_pid_1
	put /proc/self/limits "Max locked memory     unlimited     unlimited     bytes"
	put /proc/self/cgroup 0::/pod
	put /proc/sys/kernel/yama/ptrace_scope 0
	put /proc/sys/vm/max_map_count 262144
	put /sys/fs/cgroup/pod/memory.max max
	put /sys/fs/cgroup/pod/cpuset.cpus.effective 0-7
	put /sys/fs/cgroup/pod/rdma.max "mlx5_0 hca_handle=max hca_object=max"
	put /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages 512
	put /dev/gdrdrv "char 240"
	put /dev/nvidiactl ""
	put /dev/nvidia-uvm ""
	put /dev/nvidia0 ""
	put /dev/nvidia-caps-imex-channels/channel0 ""
	put /environment PATH=/bin
}

make_libraries()
{
	mkdir -p tree/lib
	ln -s "$TEST_NVML" tree/lib/libnvidia-ml.so.1
	put /nvml.txt "nvmlDeviceGetCount : 0 1
nvmlSystemGetDriverVersion : 0 580.159.04
nvmlDeviceGetHandleByIndex 0 : 0
nvmlDeviceGetPciInfo 0 : 0 0x0 0x11 0x0 0x233510de
nvmlDeviceGetName 0 : 0 NVIDIA H200
nvmlDeviceGetMemoryInfo 0 : 0 150754820096 0
nvmlDeviceGetBAR1MemoryInfo 0 : 0 274877906944 0
nvmlDeviceGetCurrPcieLinkWidth 0 : 0 16
nvmlDeviceGetMaxPcieLinkWidth 0 : 0 16
nvmlDeviceGetFieldValues 0 230 * : 0 0
nvmlDeviceGetNvLinkState 0 0 : 0 1
nvmlDeviceGetNvLinkState 0 1 : 0 1
nvmlDeviceGetGpuFabricInfoV 0 : 0 3 0 0"
	put /cuda.txt "version 13000
gpu 0000:11:00.0 rdma=1 dma_buf=1 rdma_vmm=1 fabric=1 l2=62914560"
	put /verbs.txt "nic mlx5_0 dma_buf=9 mtu=4096 mtu_most=4096
gpu 0000:11:00.0 exported=0 registered=0"
	put /crypto.txt HMAC-SHA-256
}

mkdir tree
make_devices
make_nic
make_host
make_libraries
mv tree base

fresh()
{
	rm -rf tree
	cp -a base tree
}

# Replace a line of a file of the tree.
change() # FILE PATTERN LINE
{
	sed -i "s|^$2.*|$3|" "tree/$1"
}

# ---- the checks -------------------------------------------------------------------------------

doctor() # ARGUMENTS...: run it on the case's tree
{
	env -u CUDA_VISIBLE_DEVICES FAKE_NVML="$PWD/tree/nvml.txt" timeout 200 "$wherry" doctor \
		--root tree "$@" >out 2>err
	status=$?
}

# Run one check and expect this verdict and text.
expect() # ID VERDICT TEXT
{
	local want

	doctor --only "$1" --color never
	case $2 in
	FAIL) want=2 ;;
	WARN) want=1 ;;
	*) want=0 ;;
	esac
	# Lines that doctor has wrapped count as one.
	if [ $status != $want ] || ! grep -q "^$2 *$1 " out ||
		! tr -s ' \n' ' ' <out | grep -q -F -e "$3"; then
		echo "wants $2 '$3', status $status:"
		cat out err
		verdict "$1: $2: $3" 1
	else
		verdict "$1: $2: $3" 0
	fi
}

# Run COMMAND to change a healthy machine; check ID must then give this verdict and text.
case_of() # ID VERDICT TEXT COMMAND...
{
	local id=$1 word=$2 text=$3

	shift 3
	fresh
	"$@"
	expect "$id" "$word" "$text"
}

no_gpu()
{
	remove "$gpu" "/sys/bus/pci/devices/0000:11:00.0" /lib /nvml.txt /cuda.txt /dev \
		/proc/driver /verbs.txt
	mkdir -p tree/dev/shm
}

no_nic()
{
	remove "$nic" /sys/bus/pci/devices/0000:12:00.0 /sys/class/infiniband /sys/class/net
}

fresh
doctor --json
[ $status = 0 ]
verdict "a machine on which all is well" $?
checks=$("$wherry" doctor --list | cut -d ' ' -f 1)
for id in $checks; do
	expect "$id" PASS ""
done

no_devices()
{
	no_gpu
	no_nic
	put /proc/devices "1 mem"
}
case_of driver.flavour INFO "no NVIDIA GPU" no_gpu
case_of nic.port INFO "no RDMA NIC" no_nic
case_of pci.link INFO "no GPU and no RDMA NIC" no_devices
fresh
no_devices
put /cuda.txt "error 100 no GPU that CUDA can use"
doctor --color never
[ $status = 0 ]
verdict "a machine without GPU and NIC" $?
# Missing hardware is reported once, with the checks that it concerns.
absent=$(grep -c -E '^(driver|gpu|pci|numa|nic|window)\.|^cgroup.rdma$|^container.gpu$' <<<"$checks")
tr -s ' \n' ' ' <out | grep \
	-q -F "INFO $absent checks no NVIDIA GPU here; no RDMA NIC here (driver, gpu, pci, numa, nic, window, cgroup.rdma, container.gpu)" &&
	! grep -q -E '^INFO +(driver|gpu|pci|numa|nic|window)\.' out &&
	grep -q '^PASS *cgroup.memory' out &&
	grep -q -E '^[0-9]+ passed, [0-9]+ informational, 0 warnings, 0 failed, [0-9]+ unknown$' out
verdict "says in one line what it does not have" $?
doctor --json
python3 - "$checks" <<'PYTHON'
import json, sys
with open("out") as text:
    checks = json.load(text)["checks"]
assert [check["id"] for check in checks] == sys.argv[1].split(), checks
assert all(check["evidence"] for check in checks)
PYTHON
verdict "and as JSON in each check" $?
fresh
no_nic
doctor --color never
tr -s ' \n' ' ' <out | grep -q -F ' checks no RDMA NIC here (nic, cgroup.rdma)' &&
	grep -q '^PASS *gpu.bar1' out
verdict "a machine without a NIC" $?

# Below: ID, VERDICT, TEXT, and the command that changes the tree.
nvml()
{
	change nvml.txt "$@"
}
cuda()
{
	put /cuda.txt "version 13000
gpu 0000:11:00.0 $1"
}
verbs()
{
	put /verbs.txt "nic mlx5_0 $1
gpu 0000:11:00.0 ${2-exported=0 registered=0}"
}
lost()
{
	nvml 'nvmlDeviceGetHandleByIndex 0' 'nvmlDeviceGetHandleByIndex 0 : 15'
}

case_of driver.flavour WARN "NVIDIA Kernel Module" put /proc/driver/nvidia/version \
	"NVRM version: NVIDIA UNIX x86_64 NVIDIA Kernel Module  580.159.04"
case_of driver.flavour FAIL "no driver is loaded" remove /proc/driver
case_of driver.flavour UNKNOWN "Too many levels" spoil /proc/driver/nvidia/version
case_of driver.nvml FAIL "do not match" put /nvml.txt "nvmlInit : 18"
case_of driver.nvml FAIL "no NVML" remove /lib
case_of driver.nvml UNKNOWN "no permission" put /nvml.txt "nvmlInit : 4"
case_of driver.nvml UNKNOWN "did not answer in time" put /nvml.txt "delay : 0 7000"
case_of gpu.health FAIL "GPU is lost" lost
case_of gpu.health FAIL "requests recovery action 1" nvml 'nvmlDeviceGetFieldValues 0 230' \
	'nvmlDeviceGetFieldValues 0 230 * : 0 1'
case_of gpu.health UNKNOWN "NVML cannot be asked" remove /lib
case_of gpu.files FAIL "nvidia-uvm: No such file" remove /dev/nvidia-uvm
case_of gpu.files FAIL "no /dev/nvidia0" remove /dev/nvidia0
case_of gpu.files UNKNOWN "nvidiactl: Too many levels" spoil /dev/nvidiactl
case_of gpu.direct WARN "dma-buf 0" cuda "rdma=1 dma_buf=0 rdma_vmm=0 fabric=0"
case_of gpu.direct FAIL "no CUDA driver" put /cuda.txt "error 19 no CUDA driver"
case_of gpu.direct UNKNOWN "no cuda.txt" remove /cuda.txt
case_of gpu.bar1 WARN "BAR1 256 MiB" nvml 'nvmlDeviceGetBAR1MemoryInfo 0' \
	'nvmlDeviceGetBAR1MemoryInfo 0 : 0 268435456 0'
case_of gpu.bar1 UNKNOWN "BAR1 -" nvml 'nvmlDeviceGetBAR1MemoryInfo 0' \
	'nvmlDeviceGetBAR1MemoryInfo 0 : 3'
case_of gpu.nvlink WARN "1 of 2 NVLinks are down" nvml 'nvmlDeviceGetNvLinkState 0 1' \
	'nvmlDeviceGetNvLinkState 0 1 : 0 0'
case_of gpu.nvlink UNKNOWN "cannot be asked" lost
case_of gpu.nvlink INFO "no NVLinks" nvml 'nvmlDeviceGetNvLinkState 0 0' \
	'nvmlDeviceGetNvLinkState 0 0 : 3'
case_of gpu.fabric FAIL "has not joined" nvml 'nvmlDeviceGetGpuFabricInfoV 0' \
	'nvmlDeviceGetGpuFabricInfoV 0 : 0 2 0 0'
case_of gpu.fabric PASS "which ends at this host" true
domain()
{
	nvml 'nvmlDeviceGetGpuFabricInfoV 0' \
		'nvmlDeviceGetGpuFabricInfoV 0 : 0 3 0 4 0x11 0x8000000000000000'
}
case_of gpu.fabric PASS \
	"is in the NVLink domain 00000000-0000-0011-8000-000000000000/4 (cluster/clique)" domain
domain_without_channel()
{
	domain
	remove /dev/nvidia-caps-imex-channels
}
case_of gpu.imex WARN "although a GPU is in a domain of several" domain_without_channel
case_of gpu.fabric FAIL "802" put /cuda.txt "error 19 cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)"
case_of gpu.fabric UNKNOWN "cannot be asked" lost
case_of gpu.imex INFO "no IMEX channel" remove /dev/nvidia-caps-imex-channels
case_of gpu.imex WARN "channel0: Too many levels" spoil /dev/nvidia-caps-imex-channels/channel0
case_of gpu.imex UNKNOWN "Too many levels" spoil /dev/nvidia-caps-imex-channels
case_of cuda.order WARN "'7' is none of the 1 GPUs" put /environment CUDA_VISIBLE_DEVICES=0,7
case_of cuda.order WARN "is empty" put /environment CUDA_VISIBLE_DEVICES=
case_of cuda.order PASS "=GPU-1" put /environment CUDA_VISIBLE_DEVICES=GPU-1
no_nvml_with_order()
{
	remove /lib
	put /environment CUDA_VISIBLE_DEVICES=0
}
case_of cuda.order UNKNOWN "NVML cannot be asked" no_nvml_with_order
two_kinds()
{
	put /environment CUDA_VISIBLE_DEVICES=1
	nvml 'nvmlDeviceGetCount' 'nvmlDeviceGetCount : 0 2'
	put /nvml.txt "$(cat tree/nvml.txt)
nvmlDeviceGetHandleByIndex 1 : 0
nvmlDeviceGetPciInfo 1 : 0 0x0 0x44 0x0 0x233510de
nvmlDeviceGetName 1 : 0 NVIDIA L4"
}
case_of cuda.order WARN "CUDA numbers the fastest GPU first" two_kinds

case_of pci.link WARN "x8, but supports" put "$gpu/current_link_width" 8
# An idle GPU slows its links down: only a link that is slow under load is a problem.
idle() # LINES
{
	put "$gpu/current_link_speed" "2.5 GT/s PCIe"
	[ -z "$1" ] || put /links.txt "$1"
}
loaded="gpu 0000:11:00.0 error=0 generation=-1 width=-1 why="
case_of pci.link UNKNOWN \
	"runs at 2.5 GT/s x16 of 32 GT/s x16; the GPU may be idle, and nothing could be copied: the recorded tree has no line for it" \
	idle ""
case_of pci.link UNKNOWN "nothing could be copied: no CUDA driver" idle \
	"gpu 0000:11:00.0 error=19 generation=-1 width=-1 why=no CUDA driver"
case_of pci.link PASS "GPU0: 32 GT/s x16 while the GPU copies, 2.5 GT/s x16 idle" idle "$loaded
link 0000:11:00.0 speed=32.0 width=16"
case_of pci.link WARN \
	"the link of 0000:11:00.0 runs at 8 GT/s x16 while the GPU copies, but supports 32 GT/s x16" idle \
	"$loaded
link 0000:11:00.0 speed=8.0 width=16"
slow_nic()
{
	put "$nic/current_link_speed" "16.0 GT/s PCIe"
}
case_of pci.link WARN \
	"mlx5_0: the link of 0000:12:00.0 runs at 16 GT/s x16, but supports 32 GT/s x16" slow_nic
case_of pci.link WARN "NVML says x4 of x16" nvml 'nvmlDeviceGetCurrPcieLinkWidth 0' \
	'nvmlDeviceGetCurrPcieLinkWidth 0 : 0 4'
no_link()
{
	remove "$nic"/{current,max}_link_{speed,width} "${nic%/*}"/{current,max}_link_{speed,width}
}
case_of pci.link UNKNOWN "the link of 0000:12:00.0 is unknown" no_link
case_of pci.acs WARN "0000:10:01.0, above GPU0" config "${gpu%/*}" '\x10' '\x1d' 4096
case_of pci.acs UNKNOWN "no more than 256 bytes" config "${nic%/*}" '\x10' '\x11' 64
case_of pci.acs UNKNOWN "No such file" remove "${nic%/*}/config"
case_of pci.relaxed WARN "mlx5_0 (0000:12:00.0): off" config "$nic" '\x00' '\x11' 4096
case_of pci.relaxed UNKNOWN "does not show it" config "$gpu" '\x10' '\x11' 64
case_of pci.iommu WARN "translates every address (DMA-FQ)" put /sys/kernel/iommu_groups/11/type \
	DMA-FQ
case_of pci.iommu UNKNOWN "mlx5_0 is in no group" remove "$nic/iommu_group"
case_of pci.iommu UNKNOWN "No such file" remove /sys/kernel/iommu_groups/12/type
no_iommu()
{
	remove "$nic/iommu_group" "$gpu/iommu_group" /sys/kernel/iommu_groups
}
case_of pci.iommu PASS "no IOMMU" no_iommu
case_of numa.affinity WARN "CPUs 0-7 are near it, this process runs on 8-15" put \
	/proc/self/status "Cpus_allowed_list: 8-15"
case_of numa.affinity UNKNOWN "of this process are unknown" remove /proc/self/status
second_node()
{
	put /sys/devices/system/node/node1/cpulist 8-15
	put "$gpu/numa_node" -1
}
only_node()
{
	put "$gpu/numa_node" -1
	put "$nic/numa_node" -1
}
case_of numa.affinity PASS "GPU0: node 0; mlx5_0: node 0" only_node
no_node()
{
	only_node
	remove /sys/devices/system/node
}
case_of numa.affinity PASS "GPU0: CPUs 0-7, NUMA node unknown" no_node
no_node_elsewhere()
{
	no_node
	put /proc/self/status "Cpus_allowed_list: 8-15"
}
case_of numa.affinity WARN "taskset -c 0-7" no_node_elsewhere
case_of numa.affinity WARN "does not name its NUMA node" second_node

case_of nic.port FAIL "no port is active" put "$port/state" "1: DOWN"
second_nic()
{
	device 0000:10:03.0 0x020000 0x15b3
	mkdir -p "tree$pci/0000:10:03.0/infiniband/mlx5_1"
	ln -s ../../devices/pci0000:10/0000:10:03.0/infiniband/mlx5_1 tree/sys/class/infiniband/
	put "$pci/0000:10:03.0/infiniband/mlx5_1/ports/1/state" "1: DOWN"
}
case_of nic.port WARN "mlx5_1: DOWN" second_nic
case_of nic.port UNKNOWN "mlx5_0: state unknown" remove "$port/state"
case_of nic.port PASS "mlx5_0: active, rate unknown" remove "$port/rate"
# A second port of the NIC.
two_ports() # COMMAND...
{
	cp -r "tree$port" "tree${port%1}2"
	put /verbs.txt "nic mlx5_0 dma_buf=9 mtu=4096 mtu_most=4096
port 2 mtu=1024 mtu_most=4096"
	"$@"
}
case_of nic.port PASS "mlx5_0:1: active, 400 Gbit/s; mlx5_0:2: active, 400 Gbit/s" two_ports true
case_of nic.port WARN "mlx5_0:2: DOWN" two_ports put "${port%1}2/state" "1: DOWN"
case_of nic.mtu WARN "mlx5_0:2: 1024 bytes" two_ports true
case_of nic.gid FAIL "mlx5_0:2: no GID for RoCE v2" two_ports remove \
	"${port%1}2/gid_attrs/types/1" \
	"${port%1}2/gid_attrs/types/3"
case_of nic.gid PASS "mlx5_0:2: InfiniBand needs no RoCE v2 GID" two_ports put \
	"${port%1}2/link_layer" InfiniBand
second_interface()
{
	put "${port%1}1/gid_attrs/ndevs/0" eth2
	put "${port%1}2/gid_attrs/ndevs/0" eth3
	put /sys/class/net/eth3/qos/pfc "0,0,0,0,0,0,0,0"
}
case_of nic.flow WARN "mlx5_0:2: neither ECN nor PFC" two_ports second_interface
case_of nic.counters WARN "mlx5_0:2: out_of_sequence 3" two_ports put \
	"${port%1}2/hw_counters/out_of_sequence" 3
case_of nic.mtu WARN "1024 bytes; the port supports 4096" verbs "dma_buf=9 mtu=1024 mtu_most=4096"
case_of nic.mtu UNKNOWN "mlx5_0: no answer in time" verbs "dma_buf=-1 mtu=-1 mtu_most=-1 late=1"
case_of nic.mtu UNKNOWN "libibverbs does not report the MTU" remove /verbs.txt
case_of nic.gid PASS "index 3" true
only_v1()
{
	remove "$port/gid_attrs/types/1" "$port/gid_attrs/types/3"
	put "$port/gid_attrs/types/1" "IB/RoCE v1"
}
case_of nic.gid FAIL "no GID for RoCE v2" only_v1
case_of nic.gid UNKNOWN "cannot read the GID table" remove "$port/gid_attrs"
case_of nic.gid PASS "InfiniBand needs no RoCE v2 GID" put "$port/link_layer" InfiniBand
lossy()
{
	put "$nic/net/eth2/ecn/roce_np/enable/3" 0
	put "$nic/net/eth2/qos/pfc" "0,0,0,0,0,0,0,0"
}
case_of nic.flow WARN "neither ECN nor PFC" lossy
case_of nic.flow UNKNOWN "does not show PFC and ECN" remove "$nic/net/eth2/ecn" "$nic/net/eth2/qos"
case_of nic.counters WARN "out_of_sequence 17" put "$port/hw_counters/out_of_sequence" 17
case_of nic.counters INFO "there was congestion" put "$port/hw_counters/np_cnp_sent" 5
case_of nic.counters UNKNOWN "no known hw_counters" remove "$port/hw_counters"
# Names of the same counters in other drivers.
counters_of() # FOLDER NAME VALUE
{
	remove "$port/hw_counters"
	put "$1/$2" "$3"
}
case_of nic.counters WARN "mlx5_0: to_retransmits 4" counters_of "$port/hw_counters" \
	to_retransmits 4
case_of nic.counters WARN "mlx5_0: tcpRetransSegs 4" counters_of "$port/hw_counters" \
	tcpRetransSegs 4
case_of nic.counters WARN "mlx5_0: retrans_pkts 4" counters_of "$port/hw_counters" retrans_pkts 4
case_of nic.counters WARN "mlx5_0: rcvd_seq_err 4" counters_of "$port/hw_counters" rcvd_seq_err 4
case_of nic.counters INFO "mlx5_0: rx_cnp_pkts 4: there" counters_of "$port/hw_counters" \
	rx_cnp_pkts 4
case_of nic.counters WARN "mlx5_0: rq_num_oos 4" counters_of "$nic/infiniband/mlx5_0/hw_counters" \
	rq_num_oos 4
case_of nic.counters UNKNOWN "no known hw_counters" counters_of "$port/hw_counters" lifespan 10
case_of nic.files FAIL "no /dev/infiniband/uverbs" remove /dev/infiniband
case_of nic.files UNKNOWN "uverbs0: Too many levels" spoil /dev/infiniband/uverbs0
case_of nic.dmabuf WARN "Operation not supported" verbs "dma_buf=95 mtu=4096 mtu_most=4096"
case_of nic.dmabuf UNKNOWN "mlx5_0: no answer in time" verbs "dma_buf=-1 late=1"
case_of nic.dmabuf UNKNOWN "libibverbs did not answer" remove /verbs.txt
case_of nic.gpu FAIL "plain ibv_reg_mr()" verbs "dma_buf=9" "exported=0 registered=14"
case_of nic.gpu FAIL "exports no dma-buf" verbs "dma_buf=9" "exported=95 registered=-1"
case_of nic.gpu UNKNOWN "could not be tried" verbs "dma_buf=9" "exported=-1 registered=-1"
case_of nic.gpu UNKNOWN "0000:11:00.0 with mlx5_0: not tried, out of time" verbs "dma_buf=9" \
	"exported=0 registered=0 peermem=14 moved=-1 late=1"
slow_nic()
{
	put /verbs.txt "nic mlx5_0 dma_buf=-1 mtu=-1 mtu_most=-1 late=1"
}
case_of nic.gpu UNKNOWN "mlx5_0: no answer in time" slow_nic
slow_cuda()
{
	put /verbs.txt "cuda late=1
nic mlx5_0 dma_buf=95"
	remove "${1-/environment}"
}
case_of nic.gpu UNKNOWN "CUDA did not start in time" slow_cuda
case_of nic.peermem UNKNOWN "not all NICs and GPUs answered" slow_cuda /sys/module/nvidia_peermem
case_of nic.gpu UNKNOWN "no pair" remove /verbs.txt
case_of nic.gpu PASS "mlx5_0 writes and reads" verbs "dma_buf=9" \
	"exported=0 registered=0 peermem=14 moved=0"
case_of nic.gpu PASS "(peermem)" verbs "dma_buf=95" "exported=0 registered=95 peermem=0 moved=0"
case_of nic.gpu FAIL "but transfers fail: Input/output error: status 12" verbs "dma_buf=9" \
	"exported=0 registered=0 peermem=14 moved=5 why=status 12"
case_of nic.gpu WARN "cannot even transfer host memory: mlx5_0:1 is not active" verbs "dma_buf=9" \
	"exported=0 registered=0 peermem=14 moved=-1 why=mlx5_0:1 is not active"
no_peermem()
{
	remove /sys/module/nvidia_peermem
	verbs "${1-dma_buf=95}"
}
case_of nic.peermem WARN "neither nvidia-peermem nor dma-buf" no_peermem
case_of nic.peermem INFO "not needed" no_peermem dma_buf=9
case_of nic.peermem PASS "registers addresses of 0000:11:00.0" verbs "dma_buf=95" \
	"exported=0 registered=95 peermem=0 moved=0"
case_of nic.peermem UNKNOWN "Too many levels" spoil /sys/module/nvidia_peermem

no_window()
{
	remove /dev/nvidiactl /dev/gdrdrv
}
case_of window.ways WARN "interface: No such file" no_window
no_window_known()
{
	no_window
	remove /cuda.txt
}
case_of window.ways UNKNOWN "CUDA cannot be asked" no_window_known
windows() # LINES
{
	put /windows.txt "$1"
}
case_of window.ways PASS "driver: /dev/gdrdrv: open: No such file or directory; rm: opens" windows \
	"window driver error=2 why=/dev/gdrdrv: open: No such file or directory
window rm error=0 why="
case_of window.ways WARN "rm: NVIDIA driver 999.1 has not been seen" windows \
	"window rm error=95 why=NVIDIA driver 999.1 has not been seen working with windows"
case_of gdrdrv.node FAIL "has major 999, the module 240" put /dev/gdrdrv "char 999"
case_of gdrdrv.node WARN "there is no /dev/gdrdrv" remove /dev/gdrdrv
case_of gdrdrv.node WARN "no module gdrdrv" put /proc/devices "195 nvidia"
wherry_gdr()
{
	put /proc/devices "195 nvidia"
	put /proc/misc " 60 gdrdrv
242 rfkill"
	put /dev/gdrdrv "char 10"
}
case_of gdrdrv.node PASS "opens" wherry_gdr
other_misc()
{
	wherry_gdr
	put /dev/gdrdrv "char 240"
}
case_of gdrdrv.node FAIL "has major 240, the module 10" other_misc
case_of gdrdrv.node UNKNOWN "Too many levels" spoil /dev/gdrdrv
little_memlock()
{
	put /proc/self/limits "Max locked memory     8388608     8388608     bytes"
}
case_of limit.memlock WARN "8388608 bytes" little_memlock
capable()
{
	little_memlock
	put /proc/self/status "CapEff:	0000000000004000"
}
case_of limit.memlock PASS "CAP_IPC_LOCK" capable
case_of limit.memlock UNKNOWN "limits: No such file" remove /proc/self/limits
in_a_container()
{
	of_pid_1
	ln -sfn "pid:[4026532999]" tree/proc/self/ns/pid
	ln -sfn "pid:[4026532999]" tree/proc/1/ns/pid
	ln -sfn "net:[4026532998]" tree/proc/self/ns/net
}
case_of container.ns INFO "others than PID 1's: net; a container, with its own: pid" in_a_container
case_of container.ns UNKNOWN "/proc/1/ns/ipc: No such file" remove /proc/1/ns/ipc
case_of container.meet WARN "none of /run/wherry, /dev/shm is there" remove /dev/shm
case_of container.meet WARN "the setting meet is off" put /environment WHERRY_MEET=off
met_elsewhere()
{
	mkdir -p tree/mnt/met
	put /environment WHERRY_MEET=/mnt/met
}
case_of container.meet PASS "/mnt/met is there" met_elsewhere
case_of container.meet UNKNOWN "Too many levels" spoil /dev/shm
case_of container.shm INFO "has 64 MiB" put /proc/self/mounts \
	"shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=65536k 0 0"
case_of container.shm UNKNOWN "is not a mount" put /proc/self/mounts "proc /proc proc rw 0 0"
case_of container.gpu WARN "is utility: without compute" put /environment \
	NVIDIA_DRIVER_CAPABILITIES=utility
case_of container.gpu FAIL "another PID namespace: cuInit fails" put /proc/self/status \
	"NSpid:	77	1"
case_of container.gpu UNKNOWN "status: No such file" remove /proc/self/status
case_of host.ptrace WARN "is 2" put /proc/sys/kernel/yama/ptrace_scope 2
case_of host.ptrace UNKNOWN "Invalid argument" put /proc/sys/kernel/yama/ptrace_scope x
pool() # RESERVED FREE OVERCOMMIT TRANSPARENT
{
	put /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages "$1"
	put /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages "$2"
	put /sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages "$3"
	put /sys/kernel/mm/transparent_hugepage/enabled "$4"
}
# An empty pool is no warning: such memory then has transparent huge pages, or small ones.
case_of mem.huge INFO \
	"no page of 2 MiB is reserved: memory of the kind 'huge' gets transparent huge pages" \
	pool 0 0 0 "always [madvise] never"
case_of mem.huge INFO \
	"no page of 2 MiB is free: memory of the kind 'huge' gets transparent huge pages" \
	pool 8 0 0 "[always] madvise never"
case_of mem.huge INFO "has small pages" pool 0 0 0 "always madvise [never]"
case_of mem.huge PASS "512 pages of 2 MiB are reserved, 3 of them free" pool 512 3 0 \
	"always madvise [never]"
case_of mem.huge PASS "up to 7 more are allocated on demand" pool 0 0 7 "always madvise [never]"
# Pages of 1 GiB do not count.
other_sizes()
{
	remove /sys/kernel/mm/hugepages/hugepages-2048kB
	put /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages 4
	put /sys/kernel/mm/transparent_hugepage/enabled "always [madvise] never"
}
case_of mem.huge INFO "no page of 2 MiB is reserved" other_sizes
case_of mem.huge UNKNOWN "No such file" remove /sys/kernel/mm/hugepages
case_of mem.maps WARN "is 1000" put /proc/sys/vm/max_map_count 1000
case_of mem.maps UNKNOWN "No such file" remove /proc/sys/vm
nearly_full()
{
	put /sys/fs/cgroup/pod/memory.max 1073741824
	put /sys/fs/cgroup/pod/memory.current "$1"
}
case_of cgroup.memory WARN "1023 MiB of 1 GiB" nearly_full 1073000000
case_of cgroup.memory INFO "512 MiB of 1 GiB" nearly_full 536870912
case_of cgroup.memory UNKNOWN "memory.max: No such file" remove /sys/fs/cgroup/pod/memory.max
# The group has no limit, but the group above has one.
parent_full() # USED
{
	put /proc/self/cgroup 0::/outer/pod
	put /sys/fs/cgroup/outer/pod/memory.max max
	put /sys/fs/cgroup/outer/memory.max 1073741824
	put /sys/fs/cgroup/outer/memory.current "$1"
}
case_of cgroup.memory WARN "1023 MiB of 1 GiB are used in /sys/fs/cgroup/outer" parent_full \
	1073000000
case_of cgroup.memory INFO "512 MiB of 1 GiB are used in /sys/fs/cgroup/outer" parent_full 536870912
case_of cgroup.memory UNKNOWN "usage unknown" parent_full ""
first_version() # GROUP LIMIT
{
	put /proc/self/cgroup "12:cpuset:/
9:memory:/outer/pod
0::/"
	put /sys/fs/cgroup/memory/memory.limit_in_bytes 9223372036854771712
	put /sys/fs/cgroup/memory/outer/memory.limit_in_bytes 9223372036854771712
	put /sys/fs/cgroup/memory/outer/pod/memory.limit_in_bytes 9223372036854771712
	put "/sys/fs/cgroup/memory/$1/memory.limit_in_bytes" "$2"
	put "/sys/fs/cgroup/memory/$1/memory.usage_in_bytes" 1073000000
}
case_of cgroup.memory PASS "no limit" first_version outer 9223372036854771712
case_of cgroup.memory WARN "1023 MiB of 1 GiB are used in /sys/fs/cgroup/memory/outer/pod" \
	first_version \
	outer/pod 1073741824
case_of cgroup.memory WARN "are used in /sys/fs/cgroup/memory/outer" first_version outer 1073741824
# A container may see its own group as the topmost one.
contained()
{
	first_version . 1073741824
	remove /sys/fs/cgroup/memory/outer
}
case_of cgroup.memory WARN "are used in /sys/fs/cgroup/memory" contained
case_of cgroup.memory PASS "no limit" put /proc/self/cgroup 0::/
case_of cgroup.cpus WARN "one CPU (3)" put /sys/fs/cgroup/pod/cpuset.cpus.effective 3
case_of cgroup.cpus UNKNOWN "version 2" put /proc/self/cgroup 12:cpuset:/
case_of cgroup.rdma WARN "hca_object=100" put /sys/fs/cgroup/pod/rdma.max \
	"mlx5_0 hca_handle=2 hca_object=100"
parent_objects()
{
	put /proc/self/cgroup 0::/outer/pod
	put /sys/fs/cgroup/outer/pod/rdma.max "mlx5_0 hca_handle=max hca_object=max"
	put /sys/fs/cgroup/outer/rdma.max "mlx5_0 hca_handle=2 hca_object=100"
}
case_of cgroup.rdma WARN "/sys/fs/cgroup/outer/rdma.max" parent_objects
case_of cgroup.rdma UNKNOWN "Too many levels" spoil /sys/fs/cgroup/pod/rdma.max

case_of lib.crypto FAIL "neither listen nor connect: no OpenSSL" put /crypto.txt \
	"error 79 no OpenSSL to prove the cluster key with: libcrypto.so.3 and libcrypto.so.1.1"
case_of lib.crypto FAIL "in OpenSSL's policy" put /crypto.txt \
	"error 5 OpenSSL computes no HMAC-SHA-256"
case_of lib.crypto UNKNOWN "no crypto.txt" remove /crypto.txt
case_of lib.crypto UNKNOWN "no crypto.txt" put /crypto.txt "what is this"
case_of lib.verbs WARN "cannot open shared object" put /verbs.txt \
	"error 2 libibverbs.so.1: cannot open shared object file"
case_of lib.verbs WARN "ibverbs-providers" put /verbs.txt \
	"error 80 libibverbs.so.1 lacks functions of libibverbs"
case_of lib.verbs WARN "modprobe ib_uverbs" put /verbs.txt \
	"error 38 ibv_get_device_list: Function not implemented"
no_nic_no_library()
{
	remove "$nic" "/sys/bus/pci/devices/0000:12:00.0" /sys/class/infiniband
	put /verbs.txt "error 2 libibverbs.so.1: cannot open shared object file"
}
case_of lib.verbs INFO "no RDMA: libibverbs.so.1" no_nic_no_library
case_of lib.verbs UNKNOWN "no verbs.txt" remove /verbs.txt

# Every check must have a case with a problem and a case with an unknown result.
for id in $checks; do
	for words in "WARN FAIL INFO" UNKNOWN; do
		found=no
		for word in $words; do
			grep -q "^case_of $id $word " "${BASH_SOURCE[0]}" && found=yes
		done
		[ $found = yes ]
		verdict "$id has a case of $words" $?
	done
done

# ---- the command ------------------------------------------------------------------------------

# Standard output is valid JSON with the documented keys.
fresh
put "$port/state" "1: DOWN"
doctor --json --only nic.port
python3 - <<'PYTHON'
import json
with open("out") as text:
    report = json.load(text)
check, = report["checks"]
assert report["schema"] == 1 and report["verdict"] == "FAIL"
assert check["id"] == "nic.port" and check["verdict"] == "FAIL" and "DOWN" in check["evidence"]
assert "ip link set eth2 up" in check["fix"] and check["seconds"] >= 0
PYTHON
verdict "JSON" $?
fresh
doctor --only pci --skip pci.acs,pci.link
[ "$(grep -c ' pci\.' out)" = 2 ]
verdict "--only and --skip" $?
for words in "--only pci.lnk|did you mean 'pci.link'" "--skip x|no check 'x'" \
	"--only ,|no check ''" "--root nowhere|nowhere: No such file" \
	"--root base/crypto.txt|crypto.txt: Not a directory" "--root=|is not a folder" \
	"--errno 99999|is no errno"; do
	read -r -a arguments <<<"${words%|*}"
	! "$wherry" doctor "${arguments[@]}" >out 2>err && grep -q -F -e "${words#*|}" err &&
		[ ! -s out ]
	verdict "${words%|*}" $?
done
for words in "EFAULT|nvidia-peermem" "95|dma-buf registration" "-12|BAR1" "22|cuMemCreate()" \
	"EAGAIN|CREATE_MKEY" "5|max_mr_size" "93|Linux 5.12" \
	"ENOSPC|wherry explain --errno ENOSPC"; do
	"$wherry" doctor --errno "${words%|*}" >out 2>err &&
		tr '\n' ' ' <out | grep -q -F -e "${words#*|}"
	verdict "the errno ${words%|*} of a registration" $?
done
"$wherry" doctor --errno EFAULT --json | grep -q '"errno": 14'
verdict "an errno as JSON" $?

# A library that never answers delays doctor by its time limit only.
fresh
put /nvml.txt "delay : 0 60000"
begun=$(quiet_seconds)
doctor --json
[ $status = 0 ] && [ $(($(quiet_seconds) - begun)) -le 9 ] && grep -q '"driver.nvml"' out
verdict "a driver that hangs" $?

# So does a check that never ends; the other checks still give their verdicts.
fresh
cat >hang.c <<'CODE'
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>
DIR *opendir(const char *path)
{
	DIR *(*next)(const char *) = (DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir");

	while (strstr(path, "/hugepages"))
		sleep(60);
	return next(path);
}
CODE
# shellcheck disable=SC2086 # a compiler and its options
${TEST_CC:-cc} -shared -fPIC -o hang.so hang.c || failed=1
sanitizer=$(ldd "$wherry" | grep -o '/[^ ]*/lib[at]san[^ ]*' | head -n 1)
begun=$(quiet_seconds)
FAKE_NVML=$PWD/tree/nvml.txt preloaded "${sanitizer:+$sanitizer:}$PWD/hang.so" timeout 100 \
	"$wherry" doctor --root tree \
	>out 2>err && [ $(($(quiet_seconds) - begun)) -le 5 ] &&
	grep -q '^UNKNOWN mem.huge *no answer within 3 s$' out &&
	[ "$(grep -c '^PASS ' out)" = $(($(wc -w <<<"$checks") - 1)) ]
verdict "a check that hangs" $?

# Doctor gives the same verdicts on a recording as on the machine.
fresh
FAKE_NVML=tree/nvml.txt "$wherry" doctor --root tree --record copy --json |
	grep -v '"seconds"' >first
cp -a tree/lib tree/cuda.txt tree/verbs.txt tree/crypto.txt tree/environment copy
FAKE_NVML=copy/nvml.txt "$wherry" doctor --root copy --json | grep -v '"seconds"' >second
[ -s first ] && diff first second
verdict "a recording gives the same verdicts" $?
exit $failed
