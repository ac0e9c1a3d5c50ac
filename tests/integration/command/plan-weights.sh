#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: weights
# wherry plan: what it prints, what it refuses, and what a plan of a thousand engines costs.
set -u
wherry=$TEST_COMMAND
layouts=$TEST_SOURCE/examples/weights/layouts.py
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit

fails() # STATUS TEXT ARGUMENT...
{
	local want=$1 text=$2 status

	shift 2
	timeout 200 "$wherry" plan "$@" >out 2>err
	status=$?
	[ $status = "$want" ] && [ "$(wc -l <err)" -le 2 ] && grep -q -F -e "$text" err && return
	echo "plan $*: $status"
	cat out err
	return 1
}

prints() # PATTERN...
{
	local pattern

	for pattern; do
		grep -q -e "$pattern" out || { cat out && return 1; }
	done
}

# One trainer with 96 MB, two servers on another host that want it, by NICs of 1 GB/s and GPUs'
# links of 10: it crosses once, and the second server has the last piece of 3 MB 0.3 ms later.
cat >a.json <<'JSON'
{ "schema": 1,
  "topology": { "nics": 1, "nic_GBps": 1, "nic_us": 0, "gpu_GBps": 10, "gpu_us": 0 },
  "tensors": { "w": { "dtype": "f32", "shape": [32, 750000] } },
  "engines": { "t": { "host": "a", "gpu": 0, "regions": { "r": 96000000 }, "slices": ["w@r"] } } }
JSON
sed -e 's/"t": {.*/"s0": { "host": "b", "gpu": 0, "regions": { "r": 96000000 },\
	"slices": ["w@r"] },/
	$a "s1": { "host": "b", "gpu": 1, "regions": { "r": 96000000 }, "slices": ["w@r"] } } }' \
	a.json >b.json
"$wherry" plan a.json b.json --chunk 1GiB --piece 2929KiB >out &&
	prints '^moves  *183.1 MiB: between hosts 91.55 MiB, within hosts 91.55 MiB, ' \
		'^expected  *96.30 ms, 1.994 GB/s over all (simulated, not measured)$' \
		"^bottleneck  *NIC 0 of host 'a', out: 91.55 MiB at 1.000 GB/s take 96.00 ms" \
		'^t  *s0  *network  *91.55 MiB ' '^s0  *s1  *host  *91.55 MiB '
verdict "who sends what to whom, when, and what limits it" $?

"$wherry" plan a.json b.json --chunk 1GiB --json --steps >out &&
	python3 - out <<'PYTHON'
import json, sys
plan = json.load(open(sys.argv[1]))
assert plan["schema"] == 1 and plan["measured"] is False
assert plan["network_bytes"] == plan["host_bytes"] == 96000000 and plan["copy_bytes"] == 0
first, second = plan["steps"]
assert (first["from"], first["to"], first["after"]) == ("t", "s0", None)
assert (second["from"], second["to"], second["after"]) == ("s0", "s1", 0)
assert sum(piece["block_bytes"] for piece in first["pieces"]) == 96000000
assert [pair["done_us"] for pair in plan["pairs"]] == sorted(p["done_us"] for p in plan["steps"])
PYTHON
verdict "the same as JSON, with each step" $?

"$wherry" plan a.json b.json --chunk 1GiB --steps >out &&
	prints '^1  *0  *s0  *s1 .* w\[0:32, 0:750000\]$'
verdict "each step as text" $?

sed 's/f32/i32/' b.json >type.json
sed 's/w@r/w[0:31,:]@r/' a.json >part.json
sed 's/w@r/w[0:33,:]@r/' a.json >range.json
fails 2 "tensor 'w': a.json has f32 of 4 bytes [32, 750000], type.json has i32 of 4" \
	a.json type.json &&
	fails 2 "tensor 'w' [31:32, 0:750000]: engine 's0' of b.json wants it, no engine of" \
		part.json b.json &&
	fails 2 "range.json: tensor 'w' of engine 't': range 0:33 of dimension 0, whose size is 32" \
		range.json b.json &&
	fails 2 "region 'r' of engine 't' is in a.json and in a.json" a.json a.json &&
	fails 2 "cannot read 'none.json': No such file" none.json b.json &&
	echo '{' >cut.json && fails 2 "cut.json: line 2 is no JSON" cut.json b.json &&
	fails 64 "Usage: wherry plan" a.json && fails 64 "--piece is 0" a.json b.json --piece 0
verdict "errors, each in one line with both sides" $?

# Run it, and print the seconds of processors and MiB that it took: seconds by the clock would be
# those of other programs, too. It must exit with STATUS.
cost() # STATUS LAYOUT LAYOUT
{
	python3 - "$1" "$wherry" plan "${@:2}" <<'PYTHON'
import resource, subprocess, sys
run = subprocess.run(sys.argv[2:], capture_output=True, text=True)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(*run.stdout.split("\n")[:5], run.stderr, sep="\n", file=sys.stderr)
print(round(usage.ru_utime + usage.ru_stime + 0.5), usage.ru_maxrss // 1024)
sys.exit(run.returncode != int(sys.argv[1]))
PYTHON
}

at_most() # SECONDS MIB STATUS LAYOUT LAYOUT
{
	local figures

	figures=$(cost "${@:3}") || return
	echo "${figures/ / s, } MiB"
	# A sanitizer takes many times both.
	[ -n "${TEST_SLOW-}" ] || { [ "${figures% *}" -le "$1" ] && [ "${figures#* }" -le "$2" ]; }
}

python3 "$layouts" 200x1024x512x8 fsdp 520 --name trainer >a.json &&
	python3 "$layouts" 200x1024x512x8 fsdp 480 --name server >b.json &&
	[ "$(cat a.json b.json | grep -c '@[a-z]*+')" -ge 1000000 ] &&
	at_most 5 1024 0 a.json b.json
verdict "1,000 engines with a million slices, in 5 s and 1 GiB" $?

python3 "$layouts" 16x1024x512x8 tp 2048 --group 8 --name trainer >a.json &&
	python3 "$layouts" 16x1024x512x8 tp 2048 --group 8 --name server >b.json &&
	at_most 5 1024 0 a.json b.json
verdict "4,096 GPUs with replicas" $?

# Row shards of 500 trainers, of which each has a part of what each of 500 servers wants in
# columns.
python3 - <<'PYTHON'
import json
tensors = {f"w{i}": {"dtype": "f32", "shape": [500, 500]} for i in range(70)}
for name, part in ("a", "{}:{},:"), ("b", ":,{}:{}"):
    engines = {
        f"{name}{e}": {
            "host": f"{name}{e}",
            "regions": {f"r{e}": 140000},
            "slices": [f"w{i}[{part.format(e, e + 1)}]@r{e}+{2000 * i}" for i in range(70)],
        }
        for e in range(500)
    }
    with open(f"{name}.json", "w") as file:
        json.dump({"schema": 1, "tensors": tensors, "engines": engines}, file)
PYTHON
at_most 8 256 2 a.json b.json 2>err && grep -q "cut into more than" err
verdict "rows to columns, 17.5 million parts, are refused before they are planned" $?
exit $failed
