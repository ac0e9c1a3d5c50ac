#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench/addresses: regions beside addresses, between two engines of one process.
set -u
addresses=$TEST_BUILD/bench/addresses
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
if [ ! -x "$addresses" ]; then
	echo "bench/addresses is not built: it needs libjansson" >&2
	exit 77
fi
"$addresses" 3 "$directory/addresses.json"
verdict "three turns" $?
python3 - "$directory/addresses.json" <<'END'
import json, sys

rows = json.load(open(sys.argv[1]))["lists"]
assert [(r["regions"], r["order"], r["transfers_per_call"]) for r in rows] == \
    [(regions, order, each) for regions in (1, 16, 1000)
     for order in ("in turn", "random") for each in (4096, 1)]
assert all(r["region_ns"] > 0 and r["address_ns"] > 0 for r in rows)
END
verdict "a row for each count, order and call" $?
"$addresses" 1 "$directory/no/folder.json" >"$directory/out" 2>&1
[ $? = 1 ] && grep -q "cannot write .*/no/folder.json" "$directory/out"
verdict "a file that cannot be written" $?
"$addresses" 0 2>"$directory/out"
[ $? = 2 ] && grep -q '^usage: addresses TURNS' "$directory/out"
verdict "no turns" $?
exit $failed
