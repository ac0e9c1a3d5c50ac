#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A program written for Mooncake's C interface, in two processes, by each of Wherry's routes.
# two-processes.sh PEER
set -u
peer=$1
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../cases.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"
export WHERRY_CUDA=${TEST_CUDA:?the path of a libcuda} WHERRY_VERBS=${TEST_VERBS:?the path of a libibverbs}
export FAKE_VERBS_WORLD=$directory/world
: >world

# Start a server with a pipe to it; what it prints is in `said`, its first line in $name, $address, $length.
serve() # METADATA NAME PLACE
{
	rm -f order said
	mkfifo order || exit
	: >said
	"$peer" serve "$1" "$2" "$3" <order >said 2>server.err &
	server=$!
	exec 8>order
	line=0
	answer
	read -r name address length <<<"$reply"
}

# Its next line.
answer()
{
	line=$((line + 1))
	for _ in $(seq 1200); do
		[ "$(wc -l <said)" -ge "$line" ] && break
		kill -0 "$server" 2>/dev/null || break
		sleep 0.05
	done
	reply=$(sed -n "${line}p" said)
}

ask() # COMMAND
{
	echo "$1" >&8
	answer
}

finish() # NAME
{
	exec 8>&-
	wait "$server"
	verdict "$1: the server ends with status 0" $?
	cat server.err
}

# Client and server in these places; the client's knobs are those of the environment.
by() # ROUTE PLACE PLACE
{
	serve P2PHANDSHAKE 127.0.0.1:0 "$3"
	timeout 100 "$peer" client P2PHANDSHAKE 127.0.0.1 "$2" "$name" "$address" "$length" "$1" >out 2>err
	local status=$?
	sed "s/\] /&$1, $2 to $3: /" out
	cat err
	verdict "$1, $2 to $3: the client" $status
	ask notes
	[ "$reply" = '2 [client: two "blocks"] [client: alone]' ]
	verdict "$1, $2 to $3: notifications" $?
	ask sum
	[ "$reply" = "$(timeout 100 "$peer" sum P2PHANDSHAKE 127.0.0.1 "$2" "$name" "$address" "$length")" ]
	verdict "$1, $2 to $3: what the client reads is what the server has" $?
	finish "$1, $2 to $3"
}

by shm host host
WHERRY_TRANSPORTS=self,tcp by tcp host host
exit $failed
