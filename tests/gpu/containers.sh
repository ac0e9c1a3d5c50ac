#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# GPU memory between two containers of this machine: in network, PID, IPC, mount and UTS namespaces
# of their own, which meet in a folder. Host bytes go to each kind of memory of the other
# container's GPU, and back; all must go by cuda, and be right. A few bytes go through a window.
#
#   containers.sh WHERRY
#
# Needs root, unshare and ip; 77 without. On the fake driver where TEST_CUDA names it.
set -u
wherry=$(realpath "$1")
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
all=(--pid --ipc --mount --uts --fork --mount-proc)

if [ "${CONTAINERS_INSIDE-}" = "" ]; then
	if ! why=$(unshare --net "${all[@]}" ip link add type veth 2>&1); then
		echo "no namespaces of our own here: $why"
		exit 77
	fi
	CONTAINERS_INSIDE=1 exec unshare --net "$0" "$wherry"
fi

# shellcheck source=tests/cases.sh
. "$tests/cases.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}" XDG_RUNTIME_DIR
if [ -n "${TEST_CUDA-}" ]; then
	export WHERRY_CUDA=$TEST_CUDA FAKE_CUDA_WORLD=$directory/world FAKE_NVIDIA_CUDA=$TEST_CUDA
	# The stand-in for the NVIDIA kernel driver, for windows.
	export "${TEST_PRELOAD_BY:-LD_PRELOAD}=$(dirname "$TEST_CUDA")/libfake-nvidia.so"
fi
mkdir meet world
"$wherry" key make key >out || exit 1
export WHERRY_KEYFILE=$PWD/key WHERRY_MEET=$PWD/meet WHERRY_RDMA=off
head -c 33554432 /dev/urandom >bytes

# shellcheck source=tests/two-networks.sh
. "$tests/two-networks.sh"

# Both containers have a process 1; "init": what talks to the GPU is another one.
inside() # AS COMMAND...
{
	if [ "$1" = init ]; then
		shift
		unshare "${all[@]}" sh -c '"$@"; exit $?' sh "$@"
	else
		shift
		unshare "${all[@]}" "$@"
	fi
}

serve() # AS
{
	: >served
	nsenter --net="/proc/$other/ns/net" unshare "${all[@]}" "$wherry" serve \
		--memory cuda:0:32MiB:legacy --memory vmm:cuda:0:32MiB:vmm \
		--memory host:32MiB:shared --listen 10.79.0.2:7000 >served 2>&1 &
	for _ in {1..600}; do
		grep -q '^wherry://' served && return 0
		sleep 0.1
	done
	cat served
	return 1
}
serve || exit 1

for as in init one; do
	for memory in shared vmm legacy; do
		route=cuda
		[ $memory != shared ] || route=shm
		rm -f back
		inside $as "$wherry" copy bytes "wherry://10.79.0.2:7000/$memory" --require local \
			>out 2>err && grep -q "by $route" out &&
			inside $as "$wherry" copy "wherry://10.79.0.2:7000/$memory" back \
				--length 33554432 --require local >>out 2>>err && cmp bytes back
		status=$?
		# A legacy handle names its exporter by a number that both containers have here:
		# driver 580 takes it for the process's own.
		if [ "$as $memory" = "one legacy" ]; then
			[ $status != 0 ] && grep -q "one PID" err
			status=$?
		fi
		[ $status = 0 ] || cat out err
		verdict "$memory, as $as" $status
	done
done

# A few bytes go through a window that the CPU has onto the other container's GPU memory.
inside init "$wherry" bench --peer wherry://10.79.0.2:7000/vmm --transport cuda --size 8 --op both \
	--verify --seconds 0.2 >out 2>err && [ "$(grep -c "^[rw].* window" out)" = 2 ]
status=$?
[ $status = 0 ] || cat out err
verdict "8 bytes through a window" $status
exit "$failed"
