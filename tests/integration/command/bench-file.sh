#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wherry bench --source file:PATH: a file in the page cache and out of it. The command's path is $1
# or $TEST_COMMAND.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"

head -c 20000003 /dev/urandom >bytes

refused() # STATUS TEXT ARGUMENTS...
{
	local want=$1 text=$2 status

	shift 2
	timeout 200 "$wherry" bench "$@" >out 2>err
	status=$?
	[ "$status" = "$want" ] && grep -q -F -e "$text" err && return
	echo "wherry bench $*: status $status"
	cat err
	return 1
}

refused 64 "leave out --size" --source file:bytes --size 4KiB &&
	refused 64 "leave out --peer" --source file:bytes --peer wherry://127.0.0.1:1 &&
	refused 64 "--target" --source file:bytes --target nowhere &&
	refused 2 "No such file" --source file:nothing &&
	refused 2 "no regular file" --source file:/dev &&
	refused 2 "no regular file" --source file:/dev/null
verdict "what is no file is refused" $?

"$wherry" bench --source file:bytes --json json >out 2>err
status=$?
cat out err
[ $status = 0 ] && grep -q '^read   file warm -> host  *self, file.* yes$' out
verdict "warm: measured, and the bytes are right" $?
if grep -q 'file cold was not measured' err; then
	echo "skipped: cold (this file system keeps its files in memory)"
else
	grep -q '^read   file cold -> host  *self, file.* yes$' out
	verdict "cold: measured, and the bytes are right" $?
	python3 - <<'PYTHON'
import json
results = json.load(open("json"))["results"]
assert [one["source"] for one in results] == ["file warm", "file cold"], results
for one in results:
    assert one["verified"] and one["bandwidth_GBps"] > 0 and one["limit_GBps"] > 0, one
    assert one["limit_name"].startswith("pread, "), one
PYTHON
	verdict "the JSON has both rows with their limits" $?
fi

# A page that is locked in memory stays there: the row would be neither warm nor cold.
if python3 - "$wherry" <<'PYTHON'; then
import ctypes, mmap, os, subprocess, sys
with open("bytes", "rb") as file:
    map_ = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    at = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, file.fileno(), ctypes.c_long(0))
    if libc.mlock(ctypes.c_void_p(at), ctypes.c_size_t(4096)):
        sys.exit(77)
    run = subprocess.run([sys.argv[1], "bench", "--source", "file:bytes"], capture_output=True)
sys.exit(not (b"pages stay in memory" in run.stderr and b"file cold ->" not in run.stdout))
PYTHON
	verdict "a file that cannot be evicted is not called cold" 0
elif [ $? = 77 ]; then
	echo "skipped: mlock is not allowed"
else
	verdict "a file that cannot be evicted is not called cold" 1
fi
exit "$failed"
