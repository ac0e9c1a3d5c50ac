#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A program written for Mooncake's C interface, in two processes, by each of Wherry's routes.
# two-processes.sh PEER
set -u
peer=$1
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
# shellcheck source=tests/integration/mooncake/serve.sh
. "${BASH_SOURCE[0]%/*}/serve.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"
# Nothing here is lost, however busy the machine is.
export WHERRY_TIMEOUT=60000
export WHERRY_CUDA=${TEST_CUDA:?the path of a libcuda} \
	WHERRY_VERBS=${TEST_VERBS:?the path of a libibverbs}
export FAKE_VERBS_WORLD=$directory/world
: >world

# Client and server in these places; the client's settings are those of the environment.
by() # ROUTE PLACE PLACE
{
	serve P2PHANDSHAKE 127.0.0.1:0 "$3"
	timeout 200 "$peer" client P2PHANDSHAKE 127.0.0.1 "$2" "$name" "$address" "$length" "$1" \
		>out 2>err
	local status=$?
	sed "s/\] /&$1, $2 to $3: /" out
	cat err
	verdict "$1, $2 to $3: the client" $status
	ask notes
	[ "$reply" = '2 [client: two "blocks"] [client: alone]' ]
	verdict "$1, $2 to $3: notifications" $?
	ask sum
	[ "$reply" = "$(timeout 200 "$peer" sum P2PHANDSHAKE 127.0.0.1 "$2" "$name" "$address" \
		"$length")" ]
	verdict "$1, $2 to $3: what the client reads is what the server has" $?
	finish "$1, $2 to $3"
}

# Under the thread sanitizer two fake GPUs are ten seconds' work.
by_gpus() # ROUTE
{
	if [ "${TEST_FEWER-}" = 1 ]; then
		echo "[  SKIPPED ] $1, gpu to gpu: not under the thread sanitizer"
	else
		by "$1" gpu gpu
	fi
}

by shm host host
WHERRY_TRANSPORTS=self,tcp by tcp host host
by_gpus cuda
by cuda host gpu
export FAKE_VERBS=mlx5_0
WHERRY_TRANSPORTS=self,rdma by rdma host host
WHERRY_TRANSPORTS=self,cuda,rdma WHERRY_RDMA_GPU=dmabuf by rdma host gpu
unset FAKE_VERBS

# An engine that no other reaches by Wherry's routes: the same by Mooncake's TCP.
export WHERRY_LISTEN=none
by mooncake host host
by_gpus mooncake
unset WHERRY_LISTEN
exit $failed
