#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench/blocks-new: preparing blocks in each form, beside memcpy().
set -u
blocks=$TEST_BUILD/bench/blocks-new
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
if [ ! -x "$blocks" ]; then
	echo "bench/blocks-new is not built: it needs libjansson" >&2
	exit 77
fi
"$blocks" 1 "$directory/blocks.json"
verdict "one turn" $?
python3 - "$directory/blocks.json" <<'END'
import json, sys

rows = json.load(open(sys.argv[1]))["rows"]
assert [(r["blocks"], r["form"]) for r in rows] == \
    [(blocks, form) for blocks in (1000, 16384, 1000000)
     for form in ("stride", "offsets", "indices", "converted", "addresses")]
assert all(r[figure] > 0 for r in rows
           for figure in ("new_ns", "submit_ns", "submit_least_ns", "memcpy_new_ns", "memcpy_ns"))
END
verdict "a row for each count and form" $?
"$blocks" 1 "$directory/no/folder.json" >"$directory/out" 2>&1
[ $? = 1 ] && grep -q "cannot write .*/no/folder.json" "$directory/out"
verdict "a file that cannot be written" $?
"$blocks" 0 2>"$directory/out"
[ $? = 2 ] && grep -q '^usage: blocks-new TURNS' "$directory/out"
verdict "no turns" $?
exit $failed
