#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: registry fakes
# wherry serve --mooncake and wherry copy mooncake:// with Mooncake's own transfer engine. The
# command's path is $1 or $TEST_COMMAND. Skipped if the engine cannot be installed.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
python=$("$here/../../../scripts/mooncake") || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"
export PYTHONDONTWRITEBYTECODE=1
[ -z "${TEST_CUDA-}" ] || export WHERRY_CUDA=$TEST_CUDA

# Wait for the first line of FILE and print it.
first_line() # FILE
{
	for _ in $(seq 1200); do
		[ "$(wc -l <"$1")" -ge 1 ] && break
		sleep 0.05
	done
	head -n 1 "$1"
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

"$python" "$here/../lib/mooncake_real.py" check
protocol=$("$python" "$here/../lib/mooncake_real.py" protocol)

# ---- it reads and writes our memory --------------------------------------------------------------

memories=(-m host:8MiB)
"$wherry" explain cuda:0 >/dev/null 2>&1 && memories+=(-m cuda:0:8MiB)
: >ready
"$wherry" serve "${memories[@]}" --mooncake --notifications -v >ready 2>log &
server=$!
for _ in $(seq 1200); do
	[ "$(wc -l <ready)" -gt 1 ] && break
	sleep 0.05
done
name=$(sed -n '2s|mooncake://||; 2s|/.*||p' ready)
"$python" "$here/../lib/mooncake_real.py" client "$name" || {
	cat log
	failed=1
}
grep -q 'refused: a write of 16 bytes' log
verdict "what was refused is told" $?
[ "$(tail -n 2 ready)" = "prefill 0x0 6 page 9
prefill 0x0 11 page \\xc3\\xa9 \\xe6\\xb8\\xa1" ]
verdict "its notifications are printed" $?
kill "$server"
wait "$server"
verdict "the server ends with status 0" $?

# ---- we read and write its memory ----------------------------------------------------------------

head -c 6291456 /dev/urandom >bytes
cp bytes theirs
: >ready
mkfifo order
"$python" "$here/../lib/mooncake_real.py" server theirs <order >ready 2>log &
exec 8>order
read -r name address <<<"$(first_line ready)"
there=mooncake://$name/$address
copies "from it" "read by mooncake (tcp version $protocol): 6291456 bytes" "$there" back
cmp bytes back
verdict "the same" $?
head -c 3145728 /dev/urandom >half
copies "to it, verified" "verified" half "$there+1MiB" --chunk 512KiB --verify
echo now >&8
for _ in $(seq 1200); do
	[ "$(wc -l <ready)" -gt 1 ] && break
	sleep 0.05
done
{ head -c 1048576 bytes && cat half && tail -c +4194305 bytes; } >wanted
cmp wanted theirs
verdict "it is there, and nothing else" $?
! "$wherry" copy half "$there+5MiB" >out 2>&1 && grep -q 'has room for 1048576 bytes' out
verdict "too long" $?
exec 8>&-

# ---- by name, with the metadata in wherry registry -----------------------------------------------

: >store
"$wherry" registry --listen 127.0.0.1:0 >store 2>log &
metadata=$(first_line store)/metadata
: >ready
"$wherry" serve -m host:8MiB --mooncake-metadata "$metadata" --mooncake-name prefill >ready 2>log &
server=$!
for _ in $(seq 1200); do
	[ "$(wc -l <ready)" -gt 1 ] && break
	sleep 0.05
done
"$python" "$here/../lib/mooncake_real.py" named prefill "$(sed \
	-n '2s| .*||; 2s|.*/||p' ready)" "$metadata"
verdict "it finds us by name" $?
kill "$server"
wait "$server"
verdict "and the server ends with status 0" $?
cp bytes theirs
: >ready
rm -f order
mkfifo order
"$python" "$here/../lib/mooncake_real.py" server theirs "$metadata" <order >ready 2>log &
exec 8>order
read -r name address <<<"$(first_line ready)"
copies "we find it by name" "read by mooncake (tcp version $protocol): 6291456 bytes" \
	"mooncake://$name/$address" back \
	--mooncake-metadata "$metadata"
cmp bytes back
verdict "the same by name" $?
exec 8>&-

exit $failed
