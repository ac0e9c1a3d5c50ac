#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: fakes fake-nvidia
# wherry doctor --peer: what this process shares with an engine in another container, which is a
# network namespace here, with and without a folder in common and a PID namespace.
set -u
wherry=$TEST_COMMAND
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

if [ "${PEER_INSIDE-}" = "" ]; then
	if [ "$(id -u)" != 0 ] ||
		! why=$(unshare --net --mount --pid --fork --mount-proc \
			ip link add type veth 2>&1); then
		echo "no namespaces of our own here: ${why-only root makes them}"
		exit 77
	fi
	PEER_INSIDE=1 exec unshare --net --mount "$0"
fi

# shellcheck source=tests/cases.sh
. "$tests/cases.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"
unset XDG_RUNTIME_DIR
mkdir meet
"$wherry" key make key >out || exit 1
export WHERRY_KEYFILE=$PWD/key WHERRY_CUDA=off WHERRY_RDMA=off

# shellcheck source=tests/two-networks.sh
. "$tests/two-networks.sh"

serve() # SETTINGS...
{
	: >served
	env "$@" nsenter --net="/proc/$other/ns/net" "$wherry" serve --memory host:1MiB \
		--name over-there --listen 10.79.0.2:7000 >served 2>&1 &
	server=$!
	for _ in {1..1200}; do
		grep -q '^wherry://' served && return 0
		sleep 0.05
	done
	cat served
	return 1
}

# The finding of container.peer must have this verdict and every text.
expect() # VERDICT TEXT...; the command is in `command`
{
	local word=$1 text good=0

	shift
	"${command[@]}" doctor --only lib.crypto --peer wherry://10.79.0.2:7000 --color never \
		>out 2>&1
	grep -q "^$word *container.peer" out || good=1
	for text; do
		tr -s ' \n' ' ' <out | grep -q -F -e "$text" || good=1
	done
	[ $good = 0 ] || cat out
	verdict "$word: $1" $good
}

serve WHERRY_MEET="$PWD/meet" || exit 1
command=(env WHERRY_MEET="$PWD/meet" "$wherry")
expect PASS "over-there is on this machine, in another network namespace" \
	"its unix socket is reached in a folder that both mount" \
	"its PID namespace is seen from here"
command=(env WHERRY_MEET="$PWD/meet" unshare --pid --fork --mount-proc "$wherry")
expect INFO "its PID namespace is not seen from here" "wh_memory_alloc()"
command=(env WHERRY_MEET=/nowhere "$wherry")
expect WARN "its unix socket is not reached: its socket is not in /nowhere here" \
	"hostPath: {path: /run/wherry"
command=(env WHERRY_MEET="$PWD/meet" setpriv --reuid 1 --regid 1 --clear-groups "$wherry")
chmod 755 . meet
expect WARN "its unix socket is not reached"
command=(nsenter --net="/proc/$other/ns/net" "$wherry")
expect PASS "over-there is on this machine, in this network namespace" "its unix socket is reached;"
printf '%s\n' 0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d >boot_id
mount --bind boot_id /proc/sys/kernel/random/boot_id
command=("$wherry")
expect INFO "over-there is on another machine"
umount /proc/sys/kernel/random/boot_id
kill "$server"
wait "$server" 2>/dev/null
expect FAIL "wherry://10.79.0.2:7000: Connection refused"
serve WHERRY_TLS=1 || exit 1
expect UNKNOWN "this engine speaks TLS only"
exit "$failed"
