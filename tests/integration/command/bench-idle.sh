#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench/idle: what idle copy threads take from programs beside them.
set -u
idle=$TEST_BUILD/bench/idle
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
if [ ! -x "$idle" ]; then
	echo "bench/idle is not built: it needs libjansson" >&2
	exit 77
fi
"$idle" 1 "$directory/idle.json" copy_threads=3 copy_from=64KiB observe=off
verdict "a turn" $?
python3 - "$directory/idle.json" <<'END'
import json, sys

found = json.load(open(sys.argv[1]))
rates = [1000, 2000, 5000, 10000, 20000]
assert [(r["load"], r["pieces_per_second"]) for r in found["rows"]] == \
    [(load, rate) for load in (False, True) for rate in rates]
# Two times of the CPU, less what sleeping alone takes, may differ by less than their noise.
assert all(r["cpu_us_per_piece"] != 0 and r["memcpy_cpu_us_per_piece"] != 0 for r in found["rows"])
# Without a load there is nothing that it could lose.
assert all(r["load_lost_cpus"] == 0 for r in found["rows"] if not r["load"])
assert any(r["load_lost_cpus"] != 0 for r in found["rows"] if r["load"])
assert found["environment"]["config"] == ["copy_threads=3", "copy_from=64KiB", "observe=off"]
END
verdict "a figure for each rate" $?
"$idle" 0 2>"$directory/out"
[ $? = 2 ] && grep -q '^usage: idle TURNS' "$directory/out"
verdict "no turns" $?
exit $failed
