#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Engines of libtransfer_engine.so that find each other in a store of metadata; memory that comes
# and goes; and one that is killed and comes back under its name. by-name.sh PEER
set -u
peer=$1
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
# shellcheck source=tests/integration/lib/stores.sh
. "${BASH_SOURCE[0]%/*}/../lib/stores.sh" || exit
# shellcheck source=tests/integration/mooncake/serve.sh
. "${BASH_SOURCE[0]%/*}/serve.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"
export WHERRY_CUDA=off WHERRY_RDMA=off

# What the client reads there is what the server has.
same() # NAME METADATA SEGMENT
{
	ask sum
	[ "$reply" = "$(timeout 200 "$peer" sum "$2" "client$RANDOM" host "$3" "$address" \
		"$length")" ]
	verdict "$1" $?
}

# It is not found there.
same_fails() # METADATA SEGMENT
{
	! timeout 200 "$peer" sum "$1" "client$RANDOM" host "$2" "$address" "$length" >out 2>&1 &&
		grep -q 'no engine has the name' out
	verdict "redis: another cluster does not find it" $?
}

# One store after the other: NAME METADATA
with()
{
	serve "$2" prefill-7 host
	[ "$name" != "" ]
	verdict "$1: a server" $?
	timeout 200 "$peer" client "$2" decode-3 host prefill-7 "$address" "$length" shm >out 2>err
	verdict "$1: a client that knows the name" $?
	grep -F -e FAILED out
	cat err
	same "$1: the same" "$2" prefill-7
	! "$peer" serve "$2" prefill-7 host >out 2>&1 &&
		grep -q 'the name prefill-7 is that of the engine at' out
	verdict "$1: the name is taken" $?
	ask more
	address=$reply
	timeout 200 "$peer" client "$2" decode-3 host prefill-7 "$address" "$length" shm >out 2>err
	verdict "$1: memory that was registered later" $?
	ask less
	! timeout 200 "$peer" sum "$2" decode-4 host prefill-7 "$address" "$length" >out 2>&1
	verdict "$1: and is gone" $?
	finish "$1"
	! "$peer" sum "$2" decode-5 host prefill-7 "$address" "$length" >out 2>&1 &&
		grep -q 'no engine has the name' out
	verdict "$1: nobody has the name any more" $?
	serve "$2" prefill-7 host
	kill -KILL "$server"
	wait "$server" 2>/dev/null
	exec 8>&-
	serve "$2" prefill-7 host
	[ "$name" != "" ]
	verdict "$1: one that was killed loses its name" $?
	same "$1: to the next one" "$2" prefill-7
	finish "$1"
}

: >store
"$TEST_COMMAND" registry --listen 127.0.0.1:0 >store 2>registry.err &
for _ in $(seq 1200); do
	[ -s store ] && break
	sleep 0.05
done
with http "$(head -n 1 store)/metadata"

# What stands before the @ is in no error.
for url in 'etcd://root:opensesame@' 'etcd://root:opensesame@127.0.0.1' \
	'etcd://root:open/opensesame@127.0.0.1:1' \
	'root:open://opensesame@127.0.0.1:1' 'http://root:opensesame%zz@127.0.0.1:1' \
	'redis://u:opensesame@127.0.0.1:x' \
	'root:opensesame@127.0.0.1:1' 'http://root:opensesame@127.0.0.1:1/m' \
	'redis://u:opensesame@127.0.0.1:1/5x' \
	'etcd:root:opensesame@127.0.0.1:1' "http://root:$(printf 'opensesame%.0s' \
	{1..60})@127.0.0.1:1"; do
	! "$peer" serve "$url" a host >out 2>&1 && grep -q 'createTransferEngine' out &&
		! grep -q opensesame out
	verdict "not told: ${url:0:40}" $?
done

# Redis, with a password and a prefix of the keys, as Mooncake's engines are told of them.
if command -v redis-server >/dev/null; then
	port=$(free_port 0)
	start_redis "$port" sesame
	! "$peer" serve "redis://127.0.0.1:$port" a host >out 2>&1 && grep -q NOAUTH out
	verdict "redis: without the password" $?
	! MC_REDIS_PASSWORD=open "$peer" serve "redis://127.0.0.1:$port" a host >out 2>&1 &&
		grep -q 'does not accept' out &&
		! grep -q open out
	verdict "redis: with another one, which is not told" $?
	(
		export MC_REDIS_PASSWORD=sesame MC_METADATA_CLUSTER_ID=blue MC_REDIS_DB_INDEX=3
		with redis "redis://127.0.0.1:$port"
		serve "redis://127.0.0.1:$port" b host
		MC_METADATA_CLUSTER_ID=green same_fails "redis://127.0.0.1:$port" b
		finish "redis, another cluster"
		exit $failed
	) || failed=1
	serve "redis://:sesame@127.0.0.1:$port/3" c host
	same "redis: the password in the URL" "redis://:sesame@127.0.0.1:$port/3" c
	finish "redis: in the URL"
else
	echo "[  SKIPPED ] redis: there is no redis-server here"
fi

if command -v etcd >/dev/null; then
	port=$(free_port 1)
	start_etcd "$port"
	# Without a scheme it is etcd.
	with etcd "127.0.0.1:$port"
	# With users from now on.
	python3 "$TEST_SOURCE/tests/integration/lib/mooncake_peer.py" lock "127.0.0.1:$port" root \
		'ses@me'
	verdict "etcd: has users now" $?
	serve "etcd://root:ses%40me@127.0.0.1:$port" c host
	same "etcd: user and password in the URL" "root:ses%40me@127.0.0.1:$port" c
	finish "etcd: with users"
	! "$peer" serve "root:opensesame@127.0.0.1:$port" a host >out 2>&1 &&
		grep -q 'does not accept' out &&
		! grep -q opensesame out
	verdict "etcd: with another password, which is not told" $?
else
	echo "[  SKIPPED ] etcd: there is no etcd here"
fi

exit $failed
