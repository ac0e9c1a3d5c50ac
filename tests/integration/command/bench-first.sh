#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench/first: what the first submission takes, against a server of this host.
set -u
first=$TEST_BUILD/bench/first
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
if [ ! -x "$first" ]; then
	echo "bench/first is not built: it needs libjansson" >&2
	exit 77
fi
"$TEST_COMMAND" serve --memory host:1MiB >"$directory/serve" &
server=$!
while kill -0 "$server" && ! grep -q '^wherry://' "$directory/serve"; do
	sleep 0.05
done
url=$(grep -m 1 '^wherry://' "$directory/serve")

"$first" "$url" host 4096 3 "$directory/first.json"
verdict "three turns" $?
python3 - "$directory/first.json" <<'END'
import json, sys

rows = json.load(open(sys.argv[1]))["rows"]
assert [(r["route"], r["prepared"]) for r in rows] == \
    [(route, prepared) for route in ("shm", "tcp") for prepared in (False, True)]
for row in rows:
    assert row["first_us"] > 0 and row["tenth_us"] > 0
    assert (row["prepare_us"] > 0) == row["prepared"]
END
verdict "a row for each route, prepared and not" $?
"$first" "$url" host 4096 3 "$directory/no/folder.json" >"$directory/out" 2>&1
[ $? = 1 ] && grep -q "cannot write .*/no/folder.json" "$directory/out"
verdict "a file that cannot be written" $?
"$first" "$url" nowhere 4096 0 2>"$directory/out"
[ $? = 2 ] && grep -q '^usage: first URL' "$directory/out"
verdict "no turns" $?
kill "$server" && wait "$server"
verdict "the server ends well" $?
exit $failed
