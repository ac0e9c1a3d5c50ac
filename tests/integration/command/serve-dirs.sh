#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wherry serve --dir and wherry copy: files by name, as users see them; a server that is killed and
# a copy that is resumed. The command's path is $1 or $TEST_COMMAND.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
# shellcheck source=tests/serving.sh
. "${BASH_SOURCE[0]%/*}/../../serving.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"

# A number of the JSON in `out`.
number() # NAME
{
	sed -n "s/^ *\"$1\": \([0-9]*\),*$/\1/p" out
}

mkdir -p tree/a/b "tree/name with space" tree/empty writable outside
head -c 3000017 /dev/urandom >tree/big
head -c 100 /dev/urandom >tree/a/small
head -c 70000 /dev/urandom >"tree/name with space/+x:y"
: >tree/a/b/none
truncate -s 30M tree/holes
printf hello | dd of=tree/holes bs=1 seek=9000000 conv=notrunc status=none
chmod 640 tree/a/small
touch -d '2001-02-03 04:05:06.789' tree/a/small
echo secret >outside/secret
for number in $(seq 200); do echo "$number" >"tree/a/b/f$number"; done

# Does the file system keep holes?
[ "$(stat -c %b tree/holes)" -lt 20000 ] && sparse=1 || sparse=

# ---- wrong arguments ----------------------------------------------------------------------------

ln -s tree link
refused 64 "has no path" serve --dir :rw &&
	refused 64 "takes :rw" serve --dir tree:rw:grow=1MiB &&
	refused 64 "contradict" serve --dir tree:rw --read-only &&
	refused 64 "two regions are named 'tree'" serve --dir tree --dir tree/ &&
	refused 64 "two regions are named 'tree'" serve --dir tree --memory host:1MiB:tree &&
	refused 2 "no directory, or a symbolic link" serve --dir link &&
	refused 2 "No such file" serve --dir nothing &&
	refused 2 "no directory" serve --dir tree/big
verdict "wrong directories are refused" $?

serve --dir tree --dir writable:rw --memory host:1MiB
refused 64 "relative, without" copy "$url/tree/../outside/secret" x &&
	refused 64 "relative, without" copy "$url/tree//a" x &&
	refused 64 "relative, without" copy "$url/tree/.big.wherry-part" x &&
	refused 64 "between files use cp" copy --recursive tree writable &&
	refused 64 "is for regions" copy -r tree "$url/writable" --offset 4096 &&
	refused 64 "standard input" copy -r - "$url/writable" &&
	refused 2 "is a directory" copy "$url/tree" x &&
	refused 2 "use --recursive" copy "$url/tree/a" x &&
	refused 2 "there is no such file" copy "$url/tree/none" x &&
	refused 2 "No such file" copy tree/nothing tree/big "$url/writable"
verdict "wrong names are refused" $?
refused 2 "may not be written" copy -r tree "$url/tree/copy" &&
	refused 2 "not a directory of" copy -r tree "$url/host" &&
	refused 2 "offers no directory" copy -r tree "$url/other"
verdict "what is not writable, or no directory, is refused" $?
[ ! -e x ]
verdict "and nothing was created" $?

# ---- ls -----------------------------------------------------------------------------------------

"$wherry" ls "$url" >out 2>err && grep -q '^0x.* 24 bytes  *directory r-  *tree$' out &&
	grep -q '^0x.* 1 MiB  *host  *rw  *host$' out
verdict "ls tells directories from regions" $?
"$wherry" ls "$url/tree" >out 2>err &&
	[ "$(sed -n 's/.*Z  *//p' out)" = "$(find tree -mindepth 1 -maxdepth 1 \
		\( -type d -printf '%f/\n' -o -printf '%f\n' \) | LC_ALL=C sort)" ]
verdict "ls lists what a directory holds" $?
printf x >"$(printf 'writable/\033[2J\302\233x')"
"$wherry" ls "$url/writable" >out 2>err && grep -q -F ' ?[2J?x' out
verdict "ls shows no character that commands a terminal" $?
rm writable/*
"$wherry" ls "$url/tree/a/small" >out 2>err && [ "$(wc -l <out)" = 2 ] &&
	grep -q "^0640 100 bytes  *$(date -u -r tree/a/small +%FT%TZ)  *small$" out
verdict "ls shows one file" $?
"$wherry" ls -r --json "$url/tree/" >out 2>err &&
	[ "$(grep -c '"kind": "file"' out)" = "$(find tree -type f | wc -l)" ] &&
	[ "$(grep -c '"kind": "directory"' out)" = "$(find tree -mindepth 1 -type d | wc -l)" ]
verdict "ls --recursive --json lists all" $?
refused 2 "there is no such file" ls "$url/tree/none" &&
	refused 2 "not a directory of" ls "$url/host" &&
	refused 2 "offers no directory" ls "$url/other" &&
	refused 64 "relative, without" ls "$url/tree/../x" &&
	refused 64 "is for directories" ls -r "$url"
verdict "ls refuses what is not there" $?

# ---- trees --------------------------------------------------------------------------------------

"$wherry" copy --recursive tree "$url/writable" >out 2>err && diff -r tree writable
verdict "a tree goes to the server" $?
"$wherry" copy -r "$url/tree" back --verify >out 2>err && diff -r tree back && grep -q verified out
verdict "a tree comes from the server" $?
[ "$(stat -c %a.%Y back/a/small)" = "$(stat -c %a.%Y tree/a/small)" ] &&
	[ "$(stat -c %a.%Y writable/a/small)" = "$(stat -c %a.%Y tree/a/small)" ]
verdict "modes and times are kept" $?

# Modes and times of the directories below one.
directories() # PATH
{
	find "$1" -mindepth 1 -type d -printf '%P %m %T@\n' | sort
}

mkdir -p private/own/deep private/read private/group
echo secret >private/own/deep/file
echo old >private/read/file
chmod 770 private/group
chmod 700 private/own
chmod 555 private/read
touch -d '2002-03-04 05:06:07.89' private/own/deep private/own private/read
"$wherry" copy -r private "$url/writable/private" >out &&
	"$wherry" copy -r "$url/writable/private" pulled >out &&
	[ "$(directories private)" = "$(directories writable/private)" ] &&
	[ "$(directories private)" = "$(directories pulled)" ]
verdict "directories keep their modes and times, there and back" $?
chmod 755 pulled/own pulled/read && touch pulled/read && chmod 500 pulled/group &&
	"$wherry" copy -r "$url/writable/private" pulled >out &&
	[ "$(stat -c %a pulled/own pulled/read pulled/group | tr '\n' ' ')" = "755 755 500 " ]
verdict "directories that were there keep their own" $?
"$wherry" copy -r --resume "$url/writable/private" pulled >out &&
	[ "$(stat -c %a pulled/own pulled/read pulled/group | tr '\n' ' ')" = "700 555 500 " ] &&
	[ "$(stat -c %Y pulled/read)" = "$(stat -c %Y private/read)" ]
verdict "--resume takes rights that the source lacks, and gives none" $?
chmod 755 private/read writable/private/read pulled/read
rm -r writable/private pulled
if [ "$sparse" ]; then
	[ "$(stat -c %b back/holes)" -lt 20000 ] && [ "$(stat -c %b writable/holes)" -lt 20000 ]
	verdict "holes are kept" $?
fi
[ -z "$(find writable back -name '.*wherry-part')" ]
verdict "nothing unfinished is left" $?

"$wherry" copy tree/big tree/a/small "$url/writable/new" >out && cmp tree/big writable/new/big &&
	cmp tree/a/small writable/new/small
verdict "several files go into a directory" $?
"$wherry" copy "$url/tree/big" "$url/tree/a/small" back/new/ >out && cmp tree/big back/new/big &&
	cmp tree/a/small back/new/small
verdict "and come from one" $?
"$wherry" copy "$url/tree/name with space/+x:y" one >out && cmp "tree/name with space/+x:y" one &&
	"$wherry" copy one "$url/writable/a/other" >out && cmp one writable/a/other
verdict "one file, under another name" $?
"$wherry" copy -r tree/a "$url/tree/b" "$url/writable" 2>/dev/null
[ $? = 64 ]
verdict "sources of both kinds are refused" $?

"$wherry" copy -r --resume tree "$url/writable" --json >out && [ "$(number copied_bytes)" = 0 ] &&
	[ "$(number unchanged_files)" = "$(number files)" ]
verdict "--resume leaves what is there" $?
printf x | dd of=writable/big bs=1 seek=77 conv=notrunc status=none
"$wherry" copy -r --resume tree "$url/writable" --json >out && cmp tree/big writable/big &&
	[ "$(number copied_bytes)" = 3000017 ]
verdict "but a file of the same length with another byte" $?

# ---- links --------------------------------------------------------------------------------------

ln -s ../outside tree/out
ln -s ../outside/secret tree/secret
ln -s ../outside writable/out
ln -s ../outside/secret writable/secret
mkfifo tree/pipe
refused 2 "symbolic link" copy "$url/tree/out/secret" x &&
	refused 2 "neither a regular file" copy "$url/tree/secret" x &&
	refused 2 "neither a regular file" copy "$url/tree/pipe" x &&
	refused 2 "symbolic link" copy one "$url/writable/out/new" &&
	refused 2 "symbolic link" copy one "$url/writable/secret" &&
	refused 2 "symbolic link" copy -r tree/empty "$url/writable/out/deep" &&
	[ "$(cat outside/secret)" = secret ] && [ "$(ls outside)" = secret ]
verdict "symbolic links of the server are refused" $?
rm -r back
refused 1 "3 symbolic links and special files were left out" copy -r "$url/tree" back &&
	[ ! -e back/out ] && [ ! -L back/out ] && [ ! -e back/pipe ] && cmp tree/big back/big
verdict "links and pipes in a tree are left out, and said" $?
rm tree/out tree/secret tree/pipe writable/out writable/secret

if [ "$(id -u)" = 0 ]; then
	mkdir small
	if mount -t tmpfs -o size=2m tmpfs small 2>/dev/null; then
		refused 2 "No space left" copy -r "$url/tree" small
		bad=$?
		[ -z "$(find small -type f -name big)" ] || bad=1
		umount small
		verdict "a full disk: an error, and no half file has its name" $bad
	else
		echo "skipped: a full disk (mount is not allowed)"
	fi
fi
stop
verdict "the server ends" $?

# ---- a server that is killed --------------------------------------------------------------------

mkdir large
for number in $(seq 10 33); do head -c 8M /dev/urandom >"large/$number"; done

# Kill the server while the copy's target has at least 40 MB, but not all files their names. 3: the
# copy was faster.
kill_meanwhile() # TARGET
{
	while [ "$(du -sk "$1" | cut -f1)" -lt 40000 ]; do
		kill -0 "$copy" 2>/dev/null || break
	done
	kill -KILL "$server"
	wait "$server" 2>/dev/null
	wait "$copy"
	status=$?
	cat err
	# What has its name is whole.
	for file in "$1"/*; do
		[ ! -e "$file" ] || cmp "$file" "large/${file##*/}" || return 1
	done
	[ "$status" != 0 ] || return 3
	[ "$status" = 69 ] || [ "$status" = 2 ]
}

# Kill the client instead.
kill_client() # TARGET
{
	while [ "$(du -sk "$1" | cut -f1)" -lt 20000 ] && kill -0 "$copy" 2>/dev/null; do :; done
	kill -KILL "$copy"
	wait "$copy" 2>/dev/null
	status=$?
	[ "$status" = 137 ] && return
	stop
	return 3
}

copy_there()
{
	serve --dir target:rw
	"$wherry" copy -r large "$url/target" >out 2>err &
	copy=$!
}

copy_back()
{
	serve --dir large
	"$wherry" copy -r "$url/large" got >out 2>err &
	copy=$!
}

# Begin a copy and kill one side in its middle; anew if it was too fast.
cut_off() # BEGIN KILL TARGET
{
	local try

	for try in {1..10}; do
		rm -rf "$3"
		mkdir "$3"
		"$1"
		"$2" "$3"
		case $? in
		0) return 0 ;;
		3) echo "try $try: the copy was faster than its killer" ;;
		*) return 1 ;;
		esac
	done
	return 1
}

cut_off copy_there kill_meanwhile target
verdict "a copy to a server that is killed fails, and names no half file" $?
serve --dir target:rw
# A part of the same length with other bytes must not be believed.
part=$(find target -name '.*wherry-part' | head -n 1)
[ -z "$part" ] || printf 'wrong' | dd of="$part" bs=1 seek=5000 conv=notrunc status=none
"$wherry" copy -r --resume large "$url/target" --json >out 2>err && diff -r large target &&
	[ "$(number copied_bytes)" -lt "$(number size_bytes)" ] &&
	[ -z "$(find target -name '.*wherry-part')" ]
verdict "--resume completes it, and does not copy all of it again" $?
stop

cut_off copy_back kill_meanwhile got
verdict "a copy from a server that is killed fails, and names no half file" $?
serve --dir large
"$wherry" copy -r --resume "$url/large" got --json >out 2>err && diff -r large got &&
	[ "$(number copied_bytes)" -lt "$(number size_bytes)" ]
verdict "--resume completes it, too" $?

# A client that is killed leaves its file open at the server: the next one takes it over.
stop
cut_off copy_there kill_client target || verdict "a client is killed in the middle" 1
"$wherry" copy -r --resume large "$url/target" >out 2>err && diff -r large target
verdict "a copy goes on that another process began and did not end" $?
stop
verdict "the server ends with files open" $?
exit "$failed"
