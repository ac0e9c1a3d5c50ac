#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# libtransfer_engine.so and Mooncake's own transfer engine, both ways. Skipped, as a whole, where
# that engine is not to be had. real-engine.sh PEER
set -u
peer=$1
theirs=$TEST_SOURCE/tests/integration/lib/mooncake_real.py
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
# shellcheck source=tests/integration/mooncake/serve.sh
. "${BASH_SOURCE[0]%/*}/serve.sh" || exit
python=$("$TEST_SOURCE/scripts/mooncake") || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"
export PYTHONDONTWRITEBYTECODE=1 WHERRY_CUDA=${TEST_CUDA:?the path of a libcuda} WHERRY_RDMA=off

# Its client with our memory.
theirs_to() # PLACE
{
	serve P2PHANDSHAKE 127.0.0.1 "$1"
	"$python" "$theirs" client "$name" >out 2>err || { cat err; failed=1; }
	sed "s/\] /&its client, $1: /" out
	finish "its client, $1"
}

# Our client with its memory, of 4 MiB.
ours_to() # NAME METADATA OWN-NAME PLACE
{
	rm -f order ready
	mkfifo order || exit
	: >ready
	"$python" "$theirs" server theirs ${2:+"$2"} <order >ready 2>said &
	exec 8>order
	for _ in $(seq 1200); do
		[ -s ready ] && break
		sleep 0.05
	done
	read -r name address <ready
	timeout 200 "$peer" client "${2:-P2PHANDSHAKE}" "$3" "$4" "$name" "$address" 4194304 \
		mooncake >out 2>err
	local status=$?
	cat err
	sed "s/\] /&$1, $4: /" out
	verdict "$1, $4: our client" $status
	echo notes >&8
	for _ in $(seq 1200); do
		[ "$(wc -l <ready)" -ge 2 ] && break
		sleep 0.05
	done
	[ "$(tail -n 1 ready)" = "[('client', 'alone'), ('client', 'two \"blocks\"')]" ]
	verdict "$1, $4: our notifications" $?
	exec 8>&-
}

theirs_to host
head -c 4194304 /dev/urandom >theirs
place=gpu
[ "${TEST_FEWER-}" = 1 ] && place=host # under the thread sanitizer a fake GPU is ten seconds' work
ours_to "its server" "" 127.0.0.1 $place

: >store
"$TEST_COMMAND" registry --listen 127.0.0.1:0 >store 2>registry.err &
for _ in $(seq 1200); do
	[ -s store ] && break
	sleep 0.05
done
metadata=$(head -n 1 store)/metadata
serve "$metadata" prefill host
"$python" "$theirs" named prefill "$address" "$metadata"
verdict "its client finds us by name" $?
finish "by name"
ours_to "its server by name" "$metadata" decode host
exit $failed
