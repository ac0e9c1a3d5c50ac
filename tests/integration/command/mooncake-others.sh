#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: registry fakes unsanitized
# wherry serve and wherry copy with Mooncake's own transfer engine: with each of its metadata
# stores, and with an older version. The command's path is $1 or $TEST_COMMAND. Skipped if the
# engine cannot be installed.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
# shellcheck source=tests/integration/lib/stores.sh
. "${BASH_SOURCE[0]%/*}/../lib/stores.sh" || exit
newest=$("$here/../../../scripts/mooncake") || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"
export PYTHONDONTWRITEBYTECODE=1 WHERRY_CUDA=off

# Wait until FILE has at least LINES lines.
wait_for() # LINES FILE
{
	for _ in $(seq 1200); do
		[ "$(wc -l <"$2")" -ge "$1" ] && return
		sleep 0.05
	done
	return 1
}

# Start wherry serve; $name and $address are those of its memory.
serve() # OPTION...
{
	: >ready
	"$wherry" serve -m host:8MiB --mooncake "$@" >ready 2>log &
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

# Start Mooncake's engine with the file bytes as its memory, at $name and $address. It writes its
# memory to the file theirs for each line on descriptor 8.
publish() # PYTHON [METADATA]
{
	cp bytes theirs
	: >ready
	rm -f order
	mkfifo order
	"$1" "$here/../lib/mooncake_real.py" server theirs ${2:+"$2"} <order >ready 2>log &
	exec 8>order
	wait_for 1 ready
	read -r name address <ready
}

# wherry copy ARGUMENTS must succeed and print TEXT.
copies() # NAME TEXT ARGUMENTS...
{
	local name=$1 text=$2

	shift 2
	if ! timeout 200 "$wherry" copy "$@" >out 2>&1 || ! grep -q -F -e "$text" out; then
		cat out
		false
	fi
	verdict "$name" $?
}

# Copy from Mooncake's engine and to it.
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
	# This version never learns that a write was refused, so the case outside is left out.
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

# Wait until a server listens on PORT.
listens() # PORT
{
	for _ in $(seq 1200); do
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
	start_etcd "$port"
	verdict etcd $?
	in_a_store etcd "etcd://127.0.0.1:$port"
else
	echo "[  SKIPPED ] etcd: there is no etcd here"
fi
exit $failed
