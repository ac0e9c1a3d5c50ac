#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wherry serve --file and wherry copy: files as regions, as users see them. The command's path is $1
# or $TEST_COMMAND.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
# shellcheck source=tests/serving.sh
. "${BASH_SOURCE[0]%/*}/../../serving.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"

head -c 3000017 /dev/urandom >weights.bin
head -c 5000 /dev/urandom >cache
cp weights.bin before.bin
mkfifo pipe
ln -s weights.bin link
: >empty

# ---- wrong arguments ----------------------------------------------------------------------------

wrong_arguments()
{
	local bad=0 status text argument

	while IFS='|' read -r status text argument; do
		refused "$status" "$text" serve --file "$argument" || bad=1
	done <<-'LINES'
		64|has no path|:rw
		64|add :rw|cache:grow=1MiB
		64|grow is 0|cache:rw:grow=0
		64|not a size|cache:rw:grow=much
		64|none, data or all|cache:rw:durable=maybe
		64|add :name=NAME|a b
		64|add :name=NAME|cache:name=a/b
		2|No such file|nothing-there
		2|symbolic link|link
		2|not a regular file|pipe
		2|has 0 bytes|empty
	LINES
	return "$bad"
}
wrong_arguments
verdict "wrong files are refused" $?
refused 64 "contradict" serve --file cache:rw --read-only &&
	refused 64 "two regions are named 'cache'" serve --file cache --file ./cache &&
	refused 64 "two regions are named 'cache'" serve --file cache --memory host:1MiB:cache &&
	refused 64 "--mooncake offers memory" serve --file cache --mooncake
verdict "arguments that contradict each other" $?

# ---- a server of files --------------------------------------------------------------------------

serve --file weights.bin --file cache:rw --file new:rw:grow=1MiB:durable=data:name=growing \
	--memory host:4MiB
"$wherry" ls "$url" >out && grep -q 'file .*weights.bin' out && grep -q 'growing' out
verdict "files are listed" $?

"$wherry" copy "$url/weights.bin" back --verify >out && cmp weights.bin back &&
	grep -q 'read by tcp' out
verdict "a file of the server is read" $?
"$wherry" copy "$url/weights.bin+1000003" back --length 77 >out &&
	cmp <(tail -c +1000004 weights.bin | head -c 77) back
verdict "a part of it is read" $?
"$wherry" copy "$url/weights.bin" back -v >out 2>&1 && grep -q 'read by tcp (shared memory' out
verdict "and it is said that its bytes go through shared memory" $?
"$wherry" copy "$url/weights.bin" back -v -c transports=tcp >out 2>&1 && cmp weights.bin back &&
	grep -q 'read by tcp (.*connection' out && ! grep -q 'read by tcp (shared memory' out
verdict "or through the socket, where that is not used" $?

refused 2 "may not be written" copy cache "$url/weights.bin"
verdict "a file that is not :rw cannot be written" $?
cmp weights.bin before.bin
verdict "and is as it was" $?

head -c 3000 /dev/urandom >new-cache
"$wherry" copy new-cache "$url/cache+100" --verify >out &&
	cmp <(head -c 100 cache.before 2>/dev/null || head -c 100 cache) <(head -c 100 cache) &&
	cmp <(tail -c +101 cache | head -c 3000) new-cache && [ "$(stat -c %s cache)" = 5000 ]
verdict "a file that is :rw is written, and stays as long as it is" $?
refused 2 "room for" copy weights.bin "$url/cache"
verdict "nothing is written behind its end" $?

[ "$(stat -c %s new)" = 0 ] && "$wherry" copy cache "$url/growing+10" --verify >out &&
	[ "$(stat -c %s new)" = 5010 ] && cmp <(tail -c +11 new) cache
verdict "a file that may grow is created, and grows as far as it is written" $?
refused 2 "Input/output error" copy "$url/growing" back
verdict "what was never written cannot be read" $?

"$wherry" copy weights.bin "$url/host" --verify >out && grep -q 'shm (file, mapped' out &&
	"$wherry" copy "$url/host" back --length 3000017 >out && cmp weights.bin back
verdict "a file goes straight into mapped memory" $?
"$wherry" copy weights.bin "$url/host" --transport tcp --offset 17 --verify >out &&
	grep -q 'tcp (file, ' out && "$wherry" copy "$url/host" back --length 3000000 >out &&
	cmp <(tail -c +18 weights.bin) back
verdict "a file goes straight into a socket" $?
"$wherry" copy "$url/weights.bin" "$url/host+5" --verify >out
verdict "from a file of the server to its memory" $?

stop
verdict "the server ends" $?
cmp weights.bin before.bin
verdict "the files are there" $?
exit "$failed"
