#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench/regions: what peers cost an owner of many regions.
set -u
regions=$TEST_BUILD/bench/regions
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
if [ ! -x "$regions" ]; then
	echo "bench/regions is not built: it needs libjansson" >&2
	exit 77
fi
"$regions" 200 20 "$directory/regions.json"
verdict "200 regions, 20 peers" $?
python3 - "$directory/regions.json" <<'END'
import json, sys

found = json.load(open(sys.argv[1]))
assert (found["regions"], found["peers"]) == (200, 20)
assert [(s["step"], s["count"]) for s in found["steps"]] == \
    [("open a peer", 20), ("find a region", 20), ("register, unregister", 100)]
assert all(s["longest_us"] >= s["median_us"] > 0 for s in found["steps"])
END
verdict "a figure for each step" $?
"$regions" 1 1 "$directory/no/folder.json" >"$directory/out" 2>&1
[ $? = 1 ] && grep -q "cannot write .*/no/folder.json" "$directory/out"
verdict "a file that cannot be written" $?
"$regions" 0 1 2>"$directory/out"
[ $? = 2 ] && grep -q '^usage: regions REGIONS PEERS' "$directory/out"
verdict "no regions" $?
exit $failed
