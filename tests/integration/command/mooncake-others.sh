#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Mooncake's own transfer engine in each of its stores of metadata, and an older one, with both
# commands. Takes the command's path as $1 or in $TEST_COMMAND. Skipped, as a whole, where that
# engine is not to be had.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
newest=$("$here/../../../scripts/mooncake") || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"
export PYTHONDONTWRITEBYTECODE=1 WHERRY_CUDA=off

# Wait until a file has so many lines.
wait_for() # LINES FILE
{
	for _ in $(seq 1200); do
		[ "$(wc -l <"$2")" -ge "$1" ] && return
		sleep 0.05
	done
	return 1
}

# wherry serve; its line is in $name and $address.
serve() # OPTION...
{
	: >ready
	"$wherry" serve -m host:8MiB --mooncake "$@" >ready 2>said &
	server=$!
	wait_for 2 ready
	name=$(sed -n '2s|mooncake://||; 2s|/.*||p' ready)
	address=$(sed -n '2s| .*||; 2s|.*/||p' ready)
}

finish() # NAME
{
	kill "$server"
	wait "$server"
	verdict "$1: the server ends with status 0" $?
}

# Their engine with FILE's bytes, theirs; at $name and $address. Its standard input is 8.
publish() # PYTHON [METADATA]
{
	cp bytes theirs
	: >ready
	rm -f order
	mkfifo order
	"$1" "$here/../lib/mooncake_real.py" server theirs ${2:+"$2"} <order >ready 2>said &
	exec 8>order
	wait_for 1 ready
	read -r name address <ready
}

# wherry copy ARGUMENTS says TEXT.
copies() # NAME TEXT ARGUMENTS...
{
	local name=$1 text=$2

	shift 2
	if ! timeout 60 "$wherry" copy "$@" >out 2>&1 || ! grep -q -F -e "$text" out; then
		cat out
		false
	fi
	verdict "$name" $?
}

# Both ways with their server.
to_and_from() # NAME VERSION ARGUMENTS...
{
	local title=$1 version=$2 there=mooncake://$name/$address

	shift 2
	copies "$title: from it" "tcp version $version" "$there" back "$@"
	cmp bytes back
	verdict "$title: the same" $?
	copies "$title: to it, verified" verified half "$there+1MiB" --chunk 512KiB --verify "$@"
	echo now >&8
	wait_for 2 ready
	{ head -c 1048576 bytes && cat half && tail -c +4194305 bytes; } >wanted
	cmp wanted theirs
	verdict "$title: it is there, and nothing else" $?
	exec 8>&-
}

head -c 6291456 /dev/urandom >bytes
head -c 3145728 /dev/urandom >half

# ---- an older one, which does not confirm writes -------------------------------------------------

if older=$("$here/../../../scripts/mooncake" v1 2>why); then
	"$older" "$here/../lib/mooncake_real.py" check
	serve
	# It does not learn of a write that was refused.
	"$older" "$here/../lib/mooncake_real.py" client "$name" to_and_back in_batches >out 2>&1 ||
		{ cat out; failed=1; }
	grep -F ' ] ' out | sed 's/\] /&older: /'
	finish older
	publish "$older"
	to_and_from older 1
else
	echo "[  SKIPPED ] an older engine: $(tail -n 1 why)"
fi

# ---- stores --------------------------------------------------------------------------------------

in_a_store() # NAME METADATA
{
	serve --mooncake-metadata "$2" --mooncake-name prefill
	"$newest" "$here/../lib/mooncake_real.py" named prefill "$address" "$2" >out 2>&1 ||
		{ cat out; false; }
	verdict "$1: it finds us by name" $?
	finish "$1"
	publish "$newest" "$2"
	to_and_from "$1" 2 --mooncake-metadata "$2"
}

# Until something listens there.
listens() # PORT
{
	for _ in $(seq 600); do
		(: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return
		sleep 0.1
	done
	return 1
}

if web=$("$here/../../../scripts/mooncake" store 2>why); then
	port=$(free_port 0)
	read -r python script <<<"$web"
	"$python" "$script" --host 127.0.0.1 --port "$port" >store.log 2>&1 &
	listens "$port"
	verdict "its own web server" $?
	in_a_store "its own web server" "http://127.0.0.1:$port/metadata"
else
	echo "[  SKIPPED ] its own web server: $(tail -n 1 why)"
fi
if command -v etcd >/dev/null; then
	port=$(free_port 1)
	etcd --data-dir etcd.data --listen-client-urls "http://127.0.0.1:$port" --log-level error \
		--advertise-client-urls "http://127.0.0.1:$port" \
		--listen-peer-urls http://127.0.0.1:0 >etcd.log 2>&1 &
	listens "$port"
	verdict etcd $?
	in_a_store etcd "etcd://127.0.0.1:$port"
else
	echo "[  SKIPPED ] etcd: there is no etcd here"
fi
exit $failed
