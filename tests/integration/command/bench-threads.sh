#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench/threads: an engine with threads beside one without.
set -u
threads=$TEST_BUILD/bench/threads
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
if [ ! -x "$threads" ]; then
	echo "bench/threads is not built: it needs libjansson" >&2
	exit 77
fi
"$threads" 1 "$directory/threads.json"
verdict "a turn" $?
python3 - "$directory/threads.json" <<'END'
import json, sys

found = json.load(open(sys.argv[1]))
rows = {(r["route"], r["initiator"], r["owner"], r["bytes"]) for r in found["rows"]}
assert rows == {(route, ours, theirs, size) for route in ("shm", "tcp")
                for ours in ("threads", "none") for theirs in ("threads", "none")
                for size in (8, 65536, 1048576)}
assert all(r["median_us"] >= r["least_us"] > 0 and r["memcpy_us"] > 0 for r in found["rows"])
END
verdict "a figure for each pair" $?
"$threads" 1 "$directory/no/folder.json" >"$directory/out" 2>&1
[ $? = 1 ] && grep -q "cannot write .*/no/folder.json" "$directory/out"
verdict "a file that cannot be written" $?
"$threads" 0 2>"$directory/out"
[ $? = 2 ] && grep -q '^usage: threads TURNS' "$directory/out"
verdict "no turns" $?
exit $failed
