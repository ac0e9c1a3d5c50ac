#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wherry explain expects what wherry bench measures on the same machine: from memory, not from the
# CPU's cache. Explain marks estimates that come from the cache. The two commands run in turns, so
# that both meet the same load.
set -u
wherry=$TEST_COMMAND
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"
export WHERRY_OBSERVE=off WHERRY_CUDA=off

cat >compare.py <<'PYTHON'
"""compare.py WHERRY TRANSPORT [URL]: explain and bench in turns; their medians are within a factor of 2."""
import json
import statistics
import subprocess
import sys

wherry, transport, url = sys.argv[1], sys.argv[2], sys.argv[3:]


def run(*words):
    return json.loads(subprocess.run([wherry, *words], check=True, stdout=subprocess.PIPE).stdout)


def expected():
    if not url:
        return run("explain", "host", "host", "--json")["expected_us"]
    routes = run("explain", url[0], "--json", "--require", transport)["routes"]
    return next(r["expected_us"] for r in routes if r["local"] == "host" and r["op"] == "read")


def measured():
    where = ["--peer", url[0]] if url else []
    rows = run("bench", "-s", "1MiB", "-o", "read", "-t", transport, "--seconds", "0.1", "--json", "-", *where)
    return rows["results"][0]["latency_us"]["p50"]


# Repeat while the two differ: the machine's load varies.
estimates, seen = [], []
while len(estimates) < 15:
    estimates.append(expected())
    seen.append(measured())
    ratio = statistics.median(estimates) / statistics.median(seen)
    if len(estimates) >= 3 and 1 / 2 < ratio < 2:
        break
print(transport, [round(x, 1) for x in estimates], [round(x, 1) for x in seen],
      "ratio", round(ratio, 2))
sys.exit(not 1 / 2 < ratio < 2)
PYTHON

python3 compare.py "$wherry" self
verdict "of two memories" $?

"$wherry" serve -m host:64MiB:large -m host:1MiB:small >served &
for _ in $(seq 1200); do
	[ -s served ] && break
	sleep 0.05
done
url=$(cat served)
python3 compare.py "$wherry" shm "$url/large"
verdict "of a peer, by shm" $?
python3 compare.py "$wherry" tcp "$url/large"
verdict "of a peer, by tcp" $?

cat >cache.py <<'PYTHON'
"""cache.py FILE BYTES CACHE: explain read BYTES, and calls that cached if the CPU's CACHE holds both
sides."""
import json
import sys

with open(sys.argv[1]) as text:
    routes = json.load(text)["routes"]
size = int(sys.argv[2])
for route in routes:
    assert route["working_set_bytes"] == size, route
    assert route["from_cache"] == (2 * size <= int(sys.argv[3])), route
PYTHON
cache=0
for file in /sys/devices/system/cpu/cpu0/cache/index*/size; do
	[ -r "$file" ] && cache=$(sed 's/K$/*1024/; s/M$/*1048576/' "$file") && cache=$((cache))
done
[ "$cache" -gt 0 ] || cache=$((32 << 20))
"$wherry" explain "$url/small" --json >small && python3 cache.py small 1048576 "$cache" &&
	"$wherry" explain "$url/large" --json >large && python3 cache.py large 67108864 "$cache"
verdict "what is from the cache" $?
if [ "$cache" -ge 2097152 ]; then
	"$wherry" explain "$url/small" >out &&
		grep -q '^\[[0-9]*\] expected: from the CPU.s cache: the region has 1 MiB' out
	verdict "... is called so" $?
fi
exit $failed
