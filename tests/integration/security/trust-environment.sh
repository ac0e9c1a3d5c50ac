#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Keys from files and from the environment, the one that is made where there is none, and a system
# without OpenSSL.
set -u
wherry=$TEST_COMMAND
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
server=
key=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
unset "${!WHERRY_@}"
export WHERRY_CUDA=off WHERRY_OBSERVE=off XDG_RUNTIME_DIR=$directory/run \
	XDG_CACHE_HOME=$directory/cache
mkdir -m 700 "$directory/run" "$directory/cache"

stop()
{
	[ -z "$server" ] || kill "$server" 2>/dev/null
	[ -z "$server" ] || wait "$server"
	server=
}

judge() # NAME STATUS
{
	[ "$2" = 0 ] || cat "$directory/out" "$directory/err"
	verdict "$@"
}

# A server, and its address.
serve() # ARGUMENTS...
{
	stop
	: >"$directory/served"
	"$wherry" serve -v -m host:64KiB:memory "$@" >"$directory/served" 2>"$directory/said" &
	server=$!
	for _ in {1..1200}; do
		url=$(grep -m 1 '^wherry://' "$directory/served") && return 0
		kill -0 "$server" 2>/dev/null || return 1
		sleep 0.05
	done
	return 1
}

# Do both sides shake hands?
reach()
{
	timeout 200 "$wherry" explain "$url" >"$directory/out" 2>"$directory/err"
}

says() # WORD
{
	grep -q -F -e "$1" "$directory/out" "$directory/err"
}

# ---- TLS -----------------------------------------------------------------------------------------

export WHERRY_TLS=1 WHERRY_KEY=$key WHERRY_TRANSPORTS=tcp
serve && reach && says "encrypted: TLS 1.3" && ! says "$key" &&
	! grep -q -e "$key" "$directory/served" "$directory/said" &&
	! WHERRY_TLS=0 reach && says "speaks TLS only" &&
	grep -q "connection refused: this engine speaks TLS only" "$directory/said" &&
	! WHERRY_KEY=${key/[0-7]/9} reach && says "does not know this engine's key"
judge "with TLS explain says so, and who has none or another key is told" $?
stop
unset WHERRY_TLS WHERRY_KEY WHERRY_TRANSPORTS

# ---- wherry key ----------------------------------------------------------------------------------

key() # STATUS WORD ARGUMENTS...
{
	local status=$1 word=$2

	"$wherry" key "${@:3}" >"$directory/out" 2>"$directory/err"
	[ $? = "$status" ] && says "$word"
}

made=$directory/made
"$wherry" key make "$made" && [ "$(stat -c %a "$made")" = 600 ] && [ "$(wc -c <"$made")" = 65 ] &&
	key 0 "1 key, readable by this user alone" check "$made" &&
	key 0 "proved and accepted" show "$made" &&
	! says "$(cut -c 1-16 "$made")" && key 2 "is left as it is" make "$made"
judge "wherry key makes a file, once, and shows nothing of what is in it" $?

cp "$made" "$directory/two" && chmod 600 "$directory/two" && echo "$key" >>"$directory/two" &&
	key 0 "2 keys" check "$directory/two" &&
	key 0 '"fingerprint"' show --json "$directory/two" &&
	[ "$("$wherry" key show "$directory/two" | wc -l)" = 2 ] &&
	[ "$("$wherry" key show "$directory/two" | head -1)" = "$("$wherry" key show "$made")" ]
judge "wherry key shows both keys of a file" $?

chmod 640 "$made" && key 2 "chmod 600" check "$made" && key 2 "chmod 600" show "$made" &&
	echo none >"$directory/none" && chmod 600 "$directory/none" &&
	key 2 "line 1 is no key" check "$directory/none" &&
	key 64 "did you mean 'check'" chek "$made" && key 64 "wherry key show" check --json "$made"
judge "wherry key says what is wrong with a file, and with a command" $?
rm -f "$made" "$directory/two" "$directory/none"

# ---- a user's own --------------------------------------------------------------------------------

serve && reach && [ "$(stat -c %a "$directory/run/wherry.key")" = 600 ] &&
	[ "$(ls -A "$directory/run")" = wherry.key ] && [ -z "$(ls -A "$directory/cache")" ]
judge "without a key one is made, and found by the next process" $?

! XDG_RUNTIME_DIR=/nowhere reach && says "does not hold this engine's key"
judge "another key, another user's as it were, is refused" $?

mv "$directory/cache/wherry.key" "$directory/run/wherry.key" && ! reach && says "does not hold"
judge "a key that has been changed is read by those that start" $?

! timeout 200 "$wherry" serve -m host:64KiB --listen 0.0.0.0:0 >"$directory/out" \
	2>"$directory/err" &&
	says "wherry key make" && says "WHERRY_KEYFILE"
judge "more than loopback takes a key, and it is said how to make one" $?

chmod 640 "$directory/run/wherry.key"
! timeout 200 "$wherry" serve -m host:64KiB >"$directory/out" 2>"$directory/err" && says "chmod 600"
judge "one that others can read is not used" $?
rm "$directory/run/wherry.key"

# ---- a cluster's ---------------------------------------------------------------------------------

(umask 077 && echo "$key" >"$directory/file" && echo "${key:32}${key:0:32}" >"$directory/other")
export WHERRY_KEYFILE=$directory/file
serve --listen 0.0.0.0:0 && url=${url/0.0.0.0/127.0.0.1} && reach
judge "a key from a file" $?

env -u WHERRY_KEYFILE WHERRY_KEY="$key" timeout 200 "$wherry" explain "$url" \
	>"$directory/out" 2>"$directory/err"
judge "the same key from the environment" $?

! WHERRY_KEYFILE=$directory/other reach && says "does not hold this engine's key" &&
	says "$directory/other"
judge "the key of another cluster is refused, and where it is from is told" $?

! WHERRY_KEY=$key reach && says "one key is enough"
judge "two keys are one too many" $?
unset WHERRY_KEYFILE

# Whatever is said of it, the key is not among it.
export WHERRY_KEY=$key
serve && reach
{
	cat "$directory/said" "$directory/served"
	"$wherry" config
	"$wherry" config --json
	"$wherry" config -c key="$key"
	WHERRY_KEY=${key:1} "$wherry" config
} >>"$directory/out" 2>>"$directory/err"
says "the given value is not shown" && ! says "${key:4:20}"
judge "a key is never printed" $?
unset WHERRY_KEY

# ---- no OpenSSL ----------------------------------------------------------------------------------

# The loader takes these for the libraries, and goes no further.
mkdir "$directory/lib" && : >"$directory/lib/libcrypto.so.3" && : >"$directory/lib/libcrypto.so.1.1"
! LD_LIBRARY_PATH=$directory/lib:$TEST_BUILD/src timeout 200 "$TEST_BUILD/examples/example-write" \
	127.0.0.1:9 memory text >"$directory/out" 2>"$directory/err" &&
	says "no OpenSSL" && says "libssl3"
judge "without OpenSSL it is said what to install" $?
exit $failed
