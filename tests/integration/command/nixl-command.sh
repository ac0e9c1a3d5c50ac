#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: nixl
# wherry nixl with folders of packages that look like those of pip, Debian and others: what it
# finds, where it writes, what it refuses, what it notices. tests/nixl/test_command.py has NIXL.
set -u
# shellcheck source=tests/cases.sh
. "$(dirname "$0")/../../cases.sh" || exit
wherry=$TEST_COMMAND
plugin=$TEST_BUILD/compat/libplugin_WHERRY.so
if [ ! -e "$plugin" ]; then
	echo "the plug-in is not built (-Dnixl=): there is nothing to install"
	exit 77
fi
umask 022
chmod 755 "$directory"
cd "$directory" || exit 1
unset "${!WHERRY_@}" VIRTUAL_ENV PYTHONUSERBASE XDG_DATA_HOME
export WHERRY_OBSERVE=off HOME=$directory/home
mkdir home
root=()
[ "$(id -u)" != 0 ] || root=(--allow-root)
libraries=.nixl_cu12.mesonpy.libs/plugins
file=libplugin_WHERRY.so

# A folder of packages with NIXL.
packages() # FOLDER VERSION [cu12|cu13]
{
	mkdir -p "$1/.nixl_${3-cu12}.mesonpy.libs/plugins" "$1/nixl_${3-cu12}-$2.dist-info"
	echo UCX >"$1/.nixl_${3-cu12}.mesonpy.libs/plugins/libplugin_UCX.so"
	echo POSIX >"$1/.nixl_${3-cu12}.mesonpy.libs/plugins/libplugin_POSIX.so"
}

# A virtual environment. Its interpreter must not run.
environment() # FOLDER VERSION
{
	packages "$1/lib/python3.12/site-packages" "$2"
	mkdir -p "$1/bin"
	printf '#!/bin/sh\ntouch "%s/ran"\n' "$directory" >"$1/bin/python3"
	chmod +x "$1/bin/python3"
	printf 'home = /nowhere/bin\ninclude-system-site-packages = false\n' >"$1/pyvenv.cfg"
}

# A file that is no script stands for an interpreter.
interpreter() # PATH
{
	mkdir -p "${1%/*}"
	printf '\177ELF' >"$1"
	chmod +x "$1"
}

# wherry nixl ARGUMENTS must exit with STATUS and print TEXT.
says() # STATUS TEXT ARGUMENTS...
{
	local want=$1 text=$2 status

	shift 2
	timeout 200 "${as[@]}" "$wherry" nixl "$@" >out 2>err </dev/null
	status=$?
	[ $status = "$want" ] && cat out err | grep -q -F -e "$text" && return
	echo "wherry nixl $*: status $status, wanted $want with '$text'"
	cat out err
	return 1
}
as=()
put()
{
	says 0 "${1:-installed}" install "${root[@]}" "${@:2}"
}
# Nothing but what is named differs in FOLDER: as `find` prints it.
content() # FOLDER
{
	(cd "$1" && find . ! -name . -printf '%y %m %p %l\n' | sort)
}
is_ours() # FILE
{
	cmp "$1" "$plugin" && [ "$(stat -c '%a %F' "$1")" = "644 regular file" ]
}

# ---- installing and removing -------------------------------------------------------------------

environment venv 1.5.1
site=$directory/venv/lib/python3.12/site-packages
target=$site/$libraries/$file
before=$(content venv)
says 1 "not installed" status -p venv/bin/python3
verdict "status before" $?
put "for NIXL 1.5.1 (nixl_cu12)" -p venv/bin/python3 && is_ours "$target" &&
	grep -q "name the backend WHERRY" out && grep -q "wherry nixl remove --python" out
verdict "install" $?
says 0 "installed, Wherry" status -p venv/bin/python3 && says 0 installed status --python=venv
verdict "status after, by interpreter and by folder" $?
inode=$(stat -c %i "$target")
put "already there" -p venv && [ "$(stat -c %i "$target")" = "$inode" ]
verdict "install again writes nothing" $?
says 0 '"good": true' status --json -p venv && python3 - <<'PYTHON'
import json
with open("out") as file:
    status = json.load(file)
(place,) = status["places"]
assert status["schema"] == 1 and place["wheel"] == "nixl_cu12" and place["nixl"] == "1.5.1", status
assert place["state"] == "installed" and place["known"] and not place["upgraded"], status
assert place["nixl_recorded"] == "1.5.1" and place["plugin"] == status["plugin"]["version"], status
PYTHON
verdict "status as JSON" $?
says 0 removed remove "${root[@]}" -p venv && [ "$(content venv)" = "$before" ]
verdict "remove leaves everything as it was" $?
says 0 "not there" remove "${root[@]}" -p venv && [ "$(content venv)" = "$before" ]
verdict "remove again" $?
[ ! -e ran ]
verdict "the interpreter never runs" $?

# ---- where NIXL is looked for ------------------------------------------------------------------

interpreter prefix/bin/python3.12
ln -s python3.12 prefix/bin/python3
packages prefix/lib/python3.12/site-packages 1.5.1
packages prefix/lib/python3.11/site-packages 1.4.0
ln -s lib prefix/lib64
put "for NIXL 1.5.1" -p prefix/bin/python3 && [ "$(grep -c ^installed out)" = 1 ] &&
	[ ! -e prefix/lib/python3.11/site-packages/$libraries/$file ]
verdict "an interpreter's own version, once though lib64 is lib" $?

interpreter debian/usr/bin/python3.11
ln -s python3.11 debian/usr/bin/python3
packages debian/usr/lib/python3/dist-packages 1.2.0
packages debian/usr/local/lib/python3.11/dist-packages 1.5.1 cu13
ln -s debian/usr/bin/python3 python-link
put "" -p ./python-link && grep -q "NIXL 1.2.0 (nixl_cu12)" out &&
	grep -q "NIXL 1.5.1 (nixl_cu13)" out
verdict "Debian's folders, by a link from elsewhere; two wheels" $?

environment inner 1.5.1
rm -r inner/lib
ln -sf "$directory/debian/usr/bin/python3" inner/bin/python3
mkdir -p inner/lib/python3.11/site-packages
says 69 "no NIXL among the packages of" status -p inner/bin/python3
verdict "a virtual environment without NIXL" $?
printf 'home = %s\nInclude-System-Site-Packages = TRUE\n' "$directory/debian/usr/bin" \
	>inner/pyvenv.cfg
says 0 "NIXL 1.2.0" status -p inner/bin/python3 && grep -q "NIXL 1.5.1" out
verdict "... that sees the packages of its base" $?

printf '#!/bin/sh\ntouch "%s/ran"\n' "$directory" >shim
chmod +x shim
says 2 "is no Python interpreter" status -p ./shim && [ ! -e ran ]
verdict "a script that starts an interpreter" $?
says 2 "No such file" status -p ./nowhere && says 64 "want a path" status -p ""
verdict "no such interpreter" $?
mkdir empty
interpreter empty/bin/python3.12
says 69 "looked in: nothing" install "${root[@]}" -p empty/bin/python3.12
verdict "no packages" $?

# The command as pip installs it.
mkdir -p own/lib/python3.12/site-packages/wherry/{bin,compat}
cp "$wherry" own/lib/python3.12/site-packages/wherry/bin
cp "$plugin" own/lib/python3.12/site-packages/wherry/compat
touch own/lib/python3.12/site-packages/wherry/__init__.py
packages own/lib/python3.12/site-packages 1.5.0
export LD_LIBRARY_PATH=${TEST_LIBRARY%/*}
VIRTUAL_ENV=$directory/venv wherry=own/lib/python3.12/site-packages/wherry/bin/wherry \
	put "for NIXL 1.5.0"
verdict "by default the packages that the command is one of" $?

# ---- what is not Wherry's ----------------------------------------------------------------------

refuses() # NAME TEXT: neither install nor remove changes anything
{
	local now

	now=$(content venv)
	says 2 "$2" install "${root[@]}" -p venv && says 2 "" remove "${root[@]}" -p venv &&
		says 1 "not Wherry's" status -p venv && [ "$(content venv)" = "$now" ]
	verdict "$1" $?
}
echo somebody >"$target"
refuses "a foreign file" "is not Wherry's; nothing was done"
[ "$(cat "$target")" = somebody ]
verdict "... and its content" $?
cp /bin/true "$target"
refuses "a foreign program" "is not Wherry's; nothing was done"
ln -sf "$plugin" "$target"
refuses "a symbolic link, even to the plug-in" "is not Wherry's; nothing was done"
rm "$target"
mkfifo "$target"
refuses "a pipe" "is not Wherry's; nothing was done"
rm "$target"
echo '{"wherry": 7}' >"$site/.nixl_cu12.wherry.json"
says 2 "no record of Wherry's" install "${root[@]}" -p venv && [ ! -e "$target" ]
verdict "a foreign record" $?
rm "$site/.nixl_cu12.wherry.json"
mv venv/lib/python3.12/site-packages/.nixl_cu12.mesonpy.libs aside
ln -s "$directory/aside" "$site/.nixl_cu12.mesonpy.libs"
says 2 "symbolic link" install "${root[@]}" -p venv && [ ! -e aside/plugins/$file ]
verdict "NIXL's folder as a symbolic link" $?
rm "$site/.nixl_cu12.mesonpy.libs"
mv aside "$site/.nixl_cu12.mesonpy.libs"

# ---- folders to which others may write ---------------------------------------------------------

for place in "$site/$libraries" "$site/.nixl_cu12.mesonpy.libs" "$site" venv/lib; do
	chmod g+w "$place"
	now=$(content venv)
	says 2 "others may write to" install "${root[@]}" -p venv && [ "$(content venv)" = "$now" ]
	verdict "the group may write to ${place#"$site/"}" $?
	chmod g-w "$place"
done
mkdir shared
chmod 1777 shared
cp -a venv shared/venv
put "" -p shared/venv
verdict "a folder of one's own in one like /tmp" $?
chmod 777 shared
says 2 "chmod go-w" install "${root[@]}" -p shared/venv
verdict "... but not in one where others rename" $?
chmod 1777 shared
says 2 "others may write to" install "${root[@]}" -d shared
verdict "nor in /tmp itself" $?

# ---- interrupted, changed, upgraded ------------------------------------------------------------

head -c 1000 "$plugin" >"$site/$libraries/.$file.wherry-new"
put "" -p venv && is_ours "$target" && [ ! -e "$site/$libraries/.$file.wherry-new" ]
verdict "what an interrupted install has left" $?
rm "$site/.nixl_cu12.wherry.json"
says 0 "installed" status -p venv && put "already there" -p venv &&
	[ -s "$site/.nixl_cu12.wherry.json" ]
verdict "... before it wrote its record" $?
rm "$site/.nixl_cu12.wherry.json"
says 0 removed remove "${root[@]}" -p venv && [ "$(content venv)" = "$before" ]
verdict "... and is removed" $?
(ulimit -f 100 && says 2 "File too large" install "${root[@]}" -p venv) &&
	[ "$(content venv)" = "$before" ]
verdict "no room for the file" $?
for i in 1 2 3 4 5 6 7 8; do
	"$wherry" nixl install "${root[@]}" -p venv >"out-$i" 2>&1 &
done
bad=0
for job in $(jobs -p); do
	wait "$job" || bad=1
done
[ $bad = 0 ] && [ "$(cat out-? | grep -c ^installed)" = 1 ] && is_ours "$target"
verdict "eight at once" $?

echo more >>"$target"
says 1 "changed" status -p venv &&
	says 2 "not as wherry nixl install wrote it" remove "${root[@]}" -p venv && [ -e "$target" ]
verdict "a plug-in that was changed stays" $?
put replaced -p venv && is_ours "$target"
verdict "... or is installed anew" $?

# The plug-in of another version: the same file with another version in its note.
python3 - "$target" "$site/.nixl_cu12.wherry.json" <<'PYTHON'
import json, sys

def crc32c(data):
    table = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ 0x82F63B78 if i & 1 else i >> 1
        table.append(i)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF

with open(sys.argv[1], "rb") as file:
    data = file.read()
note = data.index(b"Wherry\0\0")
data = data[: note + 8] + b"0.0.9".ljust(32, b"\0") + data[note + 40 :]
with open(sys.argv[1], "wb") as file:
    file.write(data)
with open(sys.argv[2]) as file:
    record = json.load(file)
record.update(wherry="0.0.9", size_bytes=len(data), crc32c=crc32c(data))
with open(sys.argv[2], "w") as file:
    json.dump(record, file)
PYTHON
says 1 "is of Wherry 0.0.9" status -p venv && grep -q "out of date, Wherry 0.0.9" out
verdict "an older plug-in" $?
cp -a venv older
says 0 removed remove "${root[@]}" -p older && [ "$(content older)" = "$before" ]
verdict "... is removed" $?
put replaced -p venv && says 0 "installed, Wherry" status -p venv
verdict "... or replaced" $?

mv "$site/nixl_cu12-1.5.1.dist-info" "$site/nixl_cu12-1.5.0.dist-info"
says 1 "NIXL was 1.5.1 when the plug-in was installed, and is 1.5.0" status -p venv &&
	put "already there" -p venv && says 0 "NIXL 1.5.0" status -p venv
verdict "another NIXL" $?
rm -r "${site:?}/$libraries"
mv "$site/nixl_cu12-1.5.0.dist-info" "$site/nixl_cu12-1.5.1.dist-info"
mkdir "$site/$libraries"
says 1 "and is 1.5.1, and the plug-in has gone" status -p venv && grep -q ": gone" out &&
	put installed -p venv
verdict "another NIXL, whose installation replaced the folder" $?
mv "$site/nixl_cu12-1.5.1.dist-info" "$site/nixl_cu12-1.6.0.dist-info"
says 1 "NIXL 1.6.0 is not known" status -p venv
verdict "an unknown NIXL" $?
says 0 removed remove "${root[@]}" -p venv &&
	says 69 "is for NIXL 1.0.0 to" install "${root[@]}" -p venv &&
	[ "$(wc -l <err)" = 1 ] && [ ! -e "$target" ]
verdict "... is refused in one line" $?
mv "$site/nixl_cu12-1.6.0.dist-info" "$site/nixl_cu12-1.5.1.dist-info"
put "" -p venv
# As pip does: it removes its own files, and folders that are empty then.
rm -r "$site/nixl_cu12-1.5.1.dist-info"
says 1 "was removed from" status -p venv && says 69 "is incomplete" install "${root[@]}" -p venv &&
	says 0 removed remove "${root[@]}" -p venv && [ ! -e "$site/.nixl_cu12.mesonpy.libs" ]
verdict "NIXL was removed, and its folder goes with the plug-in" $?
says 69 "no NIXL" status -p venv
verdict "... and nothing is left to be found" $?

# ---- in a folder for NIXL_PLUGIN_DIR -----------------------------------------------------------

put "NIXL_PLUGIN_DIR='$directory/it'\''s here'" -d "$directory/it's here" &&
	is_ours "it's here/$file" && says 0 "folder: installed" status -d "it's here" &&
	says 0 removed remove "${root[@]}" -d "it's here"
verdict "a folder that is named" $?
export XDG_DATA_HOME=$directory/data
as_ucx=$directory/data/wherry/nixl-as-ucx
[ -z "${root[*]}" ] || as_ucx=$directory/system/wherry/nixl-as-ucx
where=()
[ -z "${root[*]}" ] || where=(-d "$as_ucx")
environment other 1.5.1
put "" --as-ucx "${where[@]}" && is_ours "$as_ucx/libplugin_UCX.so" &&
	line=$(sed -n 's/^Use it: *//p' out) &&
	[ "$(bash -c "$line; echo \"\$NIXL_PLUGIN_DIR\"")" = "$as_ucx" ] &&
	[ "$(LC_ALL=C ls -A "$as_ucx")" = $'.UCX.wherry.json\nlibplugin_UCX.so' ]
verdict "--as-ucx, and the line for the shell" $?
says 0 "as UCX: installed" status --as-ucx "${where[@]}"
verdict "status --as-ucx" $?
says 0 removed remove "${root[@]}" --as-ucx "${where[@]}" && [ ! -e "$as_ucx" ]
verdict "remove --as-ucx" $?
says 1 "not installed" status --as-ucx "${where[@]}"
verdict "status --as-ucx after it" $?
put "plug-ins (POSIX)" --as-ucx -p other -d folder && is_ours folder/libplugin_UCX.so &&
	says 64 "exclude each other" install "${root[@]}" -p other -d folder
verdict "--as-ucx names the plug-ins that are missing then" $?
says 2 "is not Wherry's" install "${root[@]}" --as-ucx -d \
	"$directory/other/lib/python3.12/site-packages/$libraries" &&
	[ "$(cat other/lib/python3.12/site-packages/$libraries/libplugin_UCX.so)" = UCX ]
verdict "--as-ucx never replaces NIXL's own UCX" $?
mv other/lib/python3.12/site-packages/nixl_cu12-{1.5.1,9.9.9}.dist-info
says 69 "NIXL 9.9.9" install "${root[@]}" --as-ucx -p other -d unknown && [ ! -e unknown ]
verdict "--as-ucx with an unknown NIXL writes nothing" $?

# ---- the command line --------------------------------------------------------------------------

says 64 "did you mean 'install'" instal && says 64 "write one of: install remove status" x &&
	says 64 "--json works with" install --json -p other
verdict "words that are wrong" $?

if [ "$(id -u)" != 0 ]; then
	for name in "root has to be asked" "root's variables choose nothing" "another user" \
		"a user's own packages"; do
		echo "this is not root"
		echo "[  SKIPPED ] $name"
	done
	exit $failed
fi
environment mine 1.5.1
says 64 "you are root" install -p mine && says 64 "you are root" remove -p mine &&
	says 1 "" status -p mine
verdict "root has to be asked" $?
VIRTUAL_ENV=$directory/mine PATH=$directory/mine/bin:$PATH says 64 "name its path with --python" \
	install --allow-root && says 64 "name its path" install --allow-root -p python3 &&
	[ ! -e ran ]
verdict "root's variables choose nothing" $?

cp -a mine theirs
chown -R 65534:65534 theirs home
says 2 "belongs to user 65534" install --allow-root -p theirs
verdict "another user's folder, as root" $?
if ! setpriv --reuid 65534 --regid 65534 --clear-groups test -x "$wherry"; then
	echo "another user cannot reach $wherry"
	echo "[  SKIPPED ] another user"
	exit $failed
fi
as=(setpriv --reuid 65534 --regid 65534 --clear-groups)
root=()
touch out err
chmod 666 out err
put "" -p theirs && says 0 removed remove -p theirs
verdict "another user" $?
VIRTUAL_ENV=$directory/theirs put "" && VIRTUAL_ENV=$directory/theirs says 0 removed remove &&
	PATH=$directory/theirs/bin:$PATH says 1 "NIXL 1.5.1" status
verdict "... by VIRTUAL_ENV and PATH" $?
says 2 "Permission denied" install -p mine
verdict "... not into root's folder" $?
mkdir -p home/.local/lib/python3.12/site-packages
packages home/.local/lib/python3.12/site-packages 1.3.0
chown -R 65534:65534 home
says 1 "NIXL 1.3.0" status -p prefix/bin/python3 && grep -q "NIXL 1.5.1" out
verdict "a user's own packages" $?
XDG_DATA_HOME=$directory/home/data put "" --as-ucx &&
	[ -e home/data/wherry/nixl-as-ucx/libplugin_UCX.so ] &&
	XDG_DATA_HOME=$directory/home/data says 1 "as UCX: installed" status -p theirs &&
	XDG_DATA_HOME=$directory/home/data says 0 removed remove --as-ucx &&
	[ -z "$(ls -A home/data)" ]
verdict "--as-ucx below XDG_DATA_HOME" $?
exit $failed
