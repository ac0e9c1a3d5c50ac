#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: registry fakes slow patient
# wherry serve --mooncake and wherry copy mooncake:// with mooncake_peer.py, which behaves as
# Mooncake's engines do, and also as they never would. The command's path is $1 or $TEST_COMMAND.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
peer=$(cd "${BASH_SOURCE[0]%/*}" && pwd)/../lib/mooncake_peer.py
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
# shellcheck source=tests/integration/lib/stores.sh
. "${BASH_SOURCE[0]%/*}/../lib/stores.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}" "${!MC_@}"
export PYTHONDONTWRITEBYTECODE=1
[ -z "${TEST_CUDA-}" ] || export WHERRY_CUDA=$TEST_CUDA

# Start COMMAND and wait until it has printed LINES lines, in the file ready. $started is its
# process id.
start() # LINES COMMAND...
{
	local lines=$1

	shift
	rm -f ready
	"$@" >ready 2>log &
	started=$!
	for _ in $(seq 1200); do
		[ -e ready ] && [ "$(wc -l <ready)" -ge "$lines" ] && return
		kill -0 "$started" 2>/dev/null || break
		sleep 0.05
	done
	cat ready log
	return 1
}

# End the process $started; true if it exits with status 0.
stop()
{
	kill -TERM "$started"
	wait "$started"
}

# wherry ARGUMENTS must exit with STATUS and print TEXT.
says() # NAME STATUS TEXT ARGUMENTS...
{
	local name=$1 want=$2 text=$3 status

	shift 3
	timeout 200 "$wherry" "$@" >out 2>err
	status=$?
	if [ "$status" != "$want" ] || ! cat out err | grep -q -F -e "$text"; then
		echo "wherry $*: status $status, not $want with '$text'"
		cat out err
		false
	fi
	verdict "$name" $?
}

# ---- our memory, their requests ------------------------------------------------------------------

ulimit -S -n 2048 2>/dev/null
second=host:1MiB:b
"$wherry" explain cuda:0 >/dev/null 2>&1 && second=cuda:0:1MiB:b
# This case waits for half a minute: it runs in the background, beside the others.
start 2 "$wherry" serve -m host:8MiB:a --mooncake
trickled=$started
control=$(sed -n '2s|mooncake://||; 2s|/.*||p' ready)
python3 "$peer" client "$control" trickle >trickle.out 2>&1 &
trickling=$!

start 3 "$wherry" serve -m host:8MiB:a -m "$second" --mooncake --notifications -v
verdict "a server" $?
url=$(sed -n '2s/ .*//p' ready)
address=${url##*/}
control=${url#mooncake://}
control=${control%/*}
[ "$(sed -n 2p ready)" = "mooncake://$control/$address 8388608 a" ] &&
	grep -q 'anybody who reaches' log
verdict "it says where, and who may" $?
cases=(the_segment both_versions the_whole in_small_pieces requests_ahead many_at_once outside
	refused_with_its_bytes operations cut_off questions wrong_questions the_other_memory)
if [ "$(ulimit -n)" = unlimited ] || [ "$(ulimit -n)" -ge 2048 ]; then
	cases+=(silent a_crowd a_crowd_of_questions big_questions)
else
	echo "[  SKIPPED ] silent, a_crowd, a_crowd_of_questions, big_questions: more than $(ulimit -n) files may not be open here"
fi
python3 "$peer" client "$control" "${cases[@]}" || failed=1
grep -q -F 'decoder\x207 0x0 9 block 9 \x07' ready
verdict "a notification is printed" $?
grep -q 'refused: a write of 1048576 bytes at 0x1000 is not within published memory' log
verdict "what was refused is told" $?

# ---- both are ours -------------------------------------------------------------------------------

head -c 8388608 /dev/urandom >bytes
says "to a server of ours, verified" 0 verified copy bytes "$url" --verify
says "back" 0 "read by mooncake (tcp version 2): 8388608 bytes in 8 transfers" copy "$url" back \
	--chunk 1MiB
cmp bytes back
verdict "the same" $?
says "a part" 0 "copied 100 bytes" copy "$url+4096" part --length 100
cmp -n 100 -i 4096:0 bytes part
verdict "the same part" $?
says "too long" 2 "has room for 8388607 bytes" copy bytes "$url+1"
says "no address" 2 "it has $address (8388608 bytes, a), 0x" copy "mooncake://$control" back
says "another address" 2 "no memory that it publishes holds 0x1000" copy \
	"mooncake://$control/0x1000" back
says "a transport" 64 "Mooncake's own TCP" copy "$url" back --transport tcp
says "from a region" 0 "written by mooncake" copy "$(head -n 1 ready)/a" "$url+4MiB" --length 1MiB
stop
verdict "it ends with status 0" $?

start 2 "$wherry" serve -m host:8MiB --read-only --mooncake-listen '[::1]:0' -v
if grep -q 'mooncake://\[::1\]:' ready; then
	says "to what is read-only" 2 "status 1" copy bytes "$(sed -n '2s/ .*//p' ready)"
	grep -q 'is for memory published read-only' log
	verdict "and it is told" $?
	stop
else
	echo "[  SKIPPED ] to what is read-only: this host has no IPv6 on loopback"
	stop
fi
start 2 "$wherry" serve -m host:1MiB:a --read-only --mooncake
python3 "$peer" client "$(sed -n '2s|mooncake://||; 2s|/.*||p' ready)" read_only || failed=1
stop
says "nowhere to listen" 64 "--mooncake-listen: nonsense" serve -m host:4KiB \
	--mooncake-listen nonsense
start 2 "$wherry" serve -m host:4KiB --mooncake
taken=$(sed -n '2s|mooncake://||; 2s|/.*||p' ready)
says "a port that is taken" 2 "cannot listen at $taken" serve -m host:4KiB \
	--mooncake-listen "$taken"
stop

# ---- their memory, our requests ------------------------------------------------------------------

head -c 4194304 bytes >quarter
for version in 1 2; do
	for manner in good once; do
		: >theirs
		start 1 python3 "$peer" server $version $manner theirs
		there=mooncake://$(cat ready)/0x700000000000
		says "to version $version, $manner" 0 verified copy quarter "$there" --chunk 1MiB \
			--verify
		cmp quarter theirs
		verdict "there, version $version, $manner" $?
		says "back from version $version, $manner" 0 "tcp version $version" copy "$there" \
			back --chunk 1MiB
		cmp quarter back
		verdict "and the same, version $version, $manner" $?
		says "the end of it, version $version, $manner" 0 "copied 7 bytes" copy \
			"$there+4194297" back
		kill "$started"
	done
done

# The peer misbehaves in this MANNER: wherry copy reports it in one line.
wrong() # VERSION MANNER STATUS TEXT
{
	cp quarter theirs
	start 1 python3 "$peer" server "$1" "$2" theirs
	says "a read of version $1, $2" "$3" "$4" copy "mooncake://$(cat ready)/0x700000000000" back
	[ "$(wc -l <err)" = 1 ]
	verdict "version $1, $2: in one line" $?
	kill "$started"
}
wrong 2 refuse 2 "refuses the read of 4194304 bytes at 0x700000000000 (status 1)"
wrong 1 refuse 69 "has closed the connection"
wrong 2 short 69 "has closed the connection"
wrong 2 reset 69 "has closed the connection"
wrong 2 status 69 "is not a status"
wrong 2 type 69 "answers a request of type 1 with type 3"
wrong 2 long 69 "a frame of 1099511627776 bytes"
wrong 2 json 69 "invalid JSON"
wrong 2 rdma 69 'the segment offers "rdma"'
wrong 2 nothing 2 "publishes nothing"
wrong 2 nowhere 69 "has no data port"
start 1 python3 "$peer" server 2 refuse theirs
says "a write that is refused" 2 "refuses the write" copy quarter "mooncake://$(cat \
	ready)/0x700000000000"
kill "$started"
start 1 python3 "$peer" server 1 refuse theirs
says "and over version 1" 69 "mooncake:" copy quarter "mooncake://$(cat ready)/0x700000000000"
kill "$started"
says "nobody there" 69 "Connection refused" copy mooncake://127.0.0.1:1/1 back

# ---- stores of metadata --------------------------------------------------------------------------

# Publish an engine in a metadata store, and look it up there by name.
in_a_store() # KIND URL
{
	says "$1: a name with a space" 64 "not one word" serve -m host:4MiB \
		--mooncake-metadata "$2" \
		--mooncake-name "decode 7"
	start 2 "$wherry" serve -m host:4MiB --mooncake-metadata "$2" --mooncake-name "decode+7/$1"
	verdict "$1: a server with a name" $?
	address=$(sed -n '2s| .*||; 2s|.*/||p' ready)
	control=$(sed -n '2s|mooncake://||; 2s|/.*||p' ready)
	says "$1: the name is taken" 2 "is that of the engine at ${control%:*}:${control##*:}" \
		serve -m host:4KiB \
		--mooncake-metadata "$2" --mooncake-name "decode+7/$1"
	stop
	start 2 "$wherry" serve -m host:4MiB --mooncake-metadata "$2" --mooncake-name "decode+7"
	verdict "$1: another name" $?
	address=$(sed -n '2s| .*||; 2s|.*/||p' ready)
	says "$1: by name, verified" 0 "verified" copy quarter "mooncake://decode+7/$address" \
		--mooncake-metadata "$2" --verify
	says "$1: no such name" 69 "no engine has the name decode+8" copy "mooncake://decode+8/1" \
		back \
		--mooncake-metadata "$2"
	stop
	verdict "$1: it ends with status 0" $?
	says "$1: and is gone" 69 "no engine has the name decode+7" copy "mooncake://decode+7/1" \
		back \
		--mooncake-metadata "$2"
}

# An engine published under a cluster's name is found in that cluster only.
in_a_cluster() # KIND METADATA
{
	export MC_METADATA_CLUSTER_ID=blue
	start 2 "$wherry" serve -m host:4MiB --mooncake-metadata "$2" --mooncake-name "decode+7"
	verdict "$1: a server in a cluster" $?
	url=$(sed -n '2s/ .*//p' ready)
	says "$1: found in that cluster" 0 "verified" copy quarter \
		"mooncake://decode+7/${url##*/}" \
		--mooncake-metadata "$2" --verify
	says "$1: where the name is taken" 2 "decode+7" serve -m host:4MiB \
		--mooncake-metadata "$2" --mooncake-name "decode+7"
	MC_METADATA_CLUSTER_ID=green says "$1: not in another one" 69 \
		"no engine has the name decode+7" \
		copy quarter "mooncake://decode+7/${url##*/}" --mooncake-metadata "$2"
	unset MC_METADATA_CLUSTER_ID
	says "$1: nor in none" 69 "no engine has the name decode+7" \
		copy quarter "mooncake://decode+7/${url##*/}" --mooncake-metadata "$2"
	if [ "$1" = http ]; then
		python3 -c 'import sys, urllib.parse as p, urllib.request as r
for key in "ram", "rpc_meta":
    r.urlopen(sys.argv[1] + "?key=" + p.quote("mooncake/blue/" + key + "/decode+7", safe=""), timeout=9)' "$2"
		verdict "$1: by the keys of Mooncake's" $?
	fi
	stop
	verdict "$1: the server in a cluster ends with status 0" $?
}

# Print @FILE for a URL with a password: command lines must not contain the URL itself.
secret() # URL
{
	local file

	file=$(mktemp "$PWD/secret.XXXXXX")
	echo "$1" >"$file"
	echo "@$file"
}

# A wrong password is reported, and never printed.
refused() # KIND TEXT URL
{
	says "$1: another password" 2 "$2" copy mooncake://a/1 back \
		--mooncake-metadata "$(secret "$3")"
	! grep -q opensesame out err
	verdict "$1: which is not told" $?
}

start 1 "$wherry" registry --listen 127.0.0.1:0
registry=$started
store=$(cat ready)/metadata
in_a_store http "$store"
in_a_cluster http "$store"
kill "$registry"
start 1 python3 "$peer" store root 'ses@me'
store=$(cat ready)
registry=$started
in_a_store http-with-password "$(secret "http://root:ses%40me@$store/metadata")"
refused http-with-password "does not accept" "http://root:opensesame@$store/metadata"
kill "$registry"
if command -v redis-server >/dev/null; then
	port=$(free_port 0)
	start_redis "$port" 'ses@me'
	in_a_store redis "$(secret "redis://:ses%40me@127.0.0.1:$port")"
	refused redis "does not accept" "redis://:opensesame@127.0.0.1:$port"
	export MC_REDIS_PASSWORD='ses@me' MC_REDIS_DB_INDEX=3
	in_a_cluster redis "redis://127.0.0.1:$port"
	unset MC_REDIS_PASSWORD MC_REDIS_DB_INDEX
else
	echo "[  SKIPPED ] redis: there is no redis-server here"
fi
if command -v etcd >/dev/null; then
	port=$(free_port 1)
	start_etcd "$port"
	in_a_store etcd "etcd://127.0.0.1:$port"
	in_a_cluster etcd "etcd://127.0.0.1:$port"
	says "etcd: a user, and it asks for none" 69 "no engine has the name" copy mooncake://a/1 \
		back \
		--mooncake-metadata "$(secret "etcd://root:ses%40me@127.0.0.1:$port")"
	python3 "$peer" lock "127.0.0.1:$port" root 'ses@me'
	verdict "etcd: has users now" $?
	in_a_store etcd-with-password "$(secret "etcd://root:ses%40me@127.0.0.1:$port")"
	refused etcd-with-password "does not accept the user or the password" \
		"etcd://root:opensesame@127.0.0.1:$port"
	says "etcd: without a user" 2 "user name is empty" copy mooncake://a/1 back \
		--mooncake-metadata "etcd://127.0.0.1:$port"
	says "etcd: a password alone" 64 "no password without a user" copy mooncake://a/1 back \
		--mooncake-metadata "$(secret "etcd://:opensesame@127.0.0.1:$port")"
else
	echo "[  SKIPPED ] etcd: there is no etcd here"
fi
chmod 644 "$(secret http://root:opensesame@127.0.0.1:1 | tee open | cut -c 2-)"
says "a URL that others may read" 2 "mode 0600" copy mooncake://a/1 back \
	--mooncake-metadata "$(cat open)"
says "nobody at the store" 69 "connect to 127.0.0.1 port 1" copy mooncake://a/1 back \
	--mooncake-metadata http://127.0.0.1:1
says "a store of another kind" 64 "known are" serve -m host:4KiB \
	--mooncake-metadata ftp://127.0.0.1:1
says "a name without a store" 64 "--mooncake-name needs" serve -m host:4KiB --mooncake-name a
says "all addresses in a store" 64 "not 0.0.0.0" serve -m host:4KiB \
	--mooncake-metadata http://127.0.0.1:1 \
	--mooncake-listen 0.0.0.0:0
says "a store for nothing" 64 "needs an address mooncake://" copy wherry://127.0.0.1:1/a back \
	--mooncake-metadata http://127.0.0.1:1

wait "$trickling" || failed=1
cat trickle.out
kill "$trickled"
wait "$trickled"
verdict "the server of those who were slow ends with status 0" $?
exit $failed
