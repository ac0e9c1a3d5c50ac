#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The example's list of transports is the tree's, with one line more. The macro's last line has no
# backslash, so the line before the new one gets one.
# list.sh LIST OF-EXAMPLE
set -u
lines() # FILE
{
	sed 's/ \\$//' "$1"
}
added=$(diff <(lines "$1") <(lines "$2") | grep '^[<>]')
[ "$added" = $'> \tDO(DELAY, delay)' ]
status=$?
if [ "$status" = 0 ]; then
	echo "[       OK ] one line more"
else
	printf '%s\n[  FAILED  ] one line more\n' "$added"
fi
exit "$status"
