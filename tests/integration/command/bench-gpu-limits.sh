#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: fakes unsanitized
# bench/gpu-limits on the fake driver: its rows and files, and what it does when time runs out. The
# command's path is $TEST_COMMAND.
set -u
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
script=${TEST_SOURCE:?}/bench/gpu-limits
[ -n "${TEST_CUDA-}" ] || { echo "it takes the fake CUDA driver"; exit 77; }
export FAKE_CUBLAS_US=1000

timeout 200 "$script" --wherry "${TEST_COMMAND:?}" --out found --seconds 0.02 \
	--only processes,blocks >out 2>&1
status=$?
[ "$status" = 0 ] && python3 - <<'END'
import json
rows = json.load(open("found/blocks.json"))["results"]
assert [(r["size_bytes"], r["ways"]) for r in rows] == [
    (4096, 1), (16384, 1)] * 2 + [(4096, 2), (16384, 2), (64 << 20, 2)], rows
assert all(r["limit_copy_GBps"] > 0 and r["limit_kernel_GBps"] > 0 and r["ratio"] > 0
           for r in rows if r["blocks"] > 1)
assert all(r["options"].startswith("--transport cuda --op write") for r in rows)
rows = json.load(open("found/processes.json"))["results"]
assert [r["size_bytes"] for r in rows] == [65536, 1 << 20, 64 << 20, 8]
assert all(r["processes"] == 2 and r["ratio"] > 0 for r in rows)
END
code=$?
((code == 0)) || cat out
verdict "rows and files" "$code"

# Whatever is left out is said, and no file pretends otherwise.
timeout 200 "$script" --wherry "$TEST_COMMAND" --out late --seconds 0.02 --within -1 \
	--only within >out 2>&1
[ $? = 1 ] && [ "$(grep -c 'left out, no time: within' out)" = 3 ] && [ ! -e late/within.json ]
verdict "no time left" $?

"$script" --only nothing >out 2>&1
[ $? = 64 ] && grep -q "no 'nothing'" out
verdict "an unknown step" $?
exit "$failed"
