#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench/pieces: what the copiers' queue costs for each piece.
set -u
pieces=$TEST_BUILD/bench/pieces
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
if [ ! -x "$pieces" ]; then
	echo "bench/pieces is not built: it needs libjansson" >&2
	exit 77
fi
"$pieces" 1 "$directory/pieces.json"
verdict "a turn" $?
python3 - "$directory/pieces.json" <<'END'
import json, sys

found = json.load(open(sys.argv[1]))
assert [r["bytes"] for r in found["rows"]] == [4 << 10, 64 << 10, 256 << 10, 1 << 20]
assert all(r["gb_s"] > 0 and r["memcpy_gb_s"] > 0 and r["cpu_ns_per_piece"] > 0 and
           r["memcpy_cpu_ns_per_piece"] > 0 and r["sleeps_per_piece"] >= 0
           for r in found["rows"])
assert found["environment"]["config"] == ["inline=0", "observe=off"]
END
verdict "a figure for each size" $?
"$pieces" 1 "$directory/set.json" copy_threads=3 copy_from=4KiB observe=off >"$directory/out" &&
	grep -q '"copy_threads=3"' "$directory/set.json"
verdict "with settings" $?
"$pieces" 1 "$directory/no/folder.json" >"$directory/out" 2>&1
[ $? = 1 ] && grep -q "cannot write .*/no/folder.json" "$directory/out"
verdict "a file that cannot be written" $?
"$pieces" 0 2>"$directory/out"
[ $? = 2 ] && grep -q '^usage: pieces TURNS' "$directory/out"
verdict "no turns" $?
exit $failed
