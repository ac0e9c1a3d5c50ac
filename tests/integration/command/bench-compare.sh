#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench/compare: a build beside itself, what it calls worse, and what it says of a build that is not
# there.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
compare=$TEST_SOURCE/bench/compare
cd "$directory" || exit 1
unset "${!WHERRY_@}"

# The machine's own variation may well make it 1.
"$compare" "$wherry" "$wherry" --rows self --turns 2 --seconds 0.02 --json new.json >out 2>err
if [ $? -gt 1 ] || ! grep -q -E '^[0-9]+ rows, [0-9]+ worse by more than 3%$' out; then
	cat out err
	false
fi
verdict "two turns of one build" $?
python3 - new.json <<'PYTHON'
import json, sys
found = json.load(open(sys.argv[1], encoding="utf-8"))
assert found["results"] and set(found["environment"]) == {"old", "new"}
for row in found["results"]:
    assert row["turns"] == 2 and row["transport"] == "self", row
    low, high = row["bandwidth"]["ratio_quartiles"]
    assert 0 < low <= row["bandwidth"]["ratio"] <= high, row
PYTHON
verdict "the JSON has each row's ratios" $?

cat >planted.py <<'PYTHON'
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.SourceFileLoader("compare", sys.argv[1])
compare = importlib.util.module_from_spec(importlib.util.spec_from_loader("compare", loader))
loader.exec_module(compare)


def verdict(slower):
    """Is a build worse that needs `slower` times as long in each of 8 turns?"""
    row = {"bandwidth_GBps": 10.0, "latency_us": {"p50": 5.0}, "submit_ns_per_transfer": 3.0}
    late = {"bandwidth_GBps": 10 / slower, "latency_us": {"p50": 5 * slower},
            "submit_ns_per_transfer": 3 * slower}
    turns = [{"old": {("write",): row}, "new": {("write",): late}}] * 8
    [result] = compare.summarize("self", turns, 0.03)
    assert abs(result["latency_p50"]["ratio"] - 1 / slower) < 1e-3, result
    return result["worse"]


assert [verdict(slower) for slower in (0.5, 1, 1.02, 1.05, 2)] == [False, False, False, True, True]
PYTHON
python3 -B planted.py "$compare"
verdict "planted: 5 % slower is worse, 2 % is not" $?

! "$compare" "$directory/none" "$wherry" --rows self --turns 1 >out 2>err && grep -q 'none' err
verdict "a build that is not there is named" $?
! "$compare" "$wherry" "$wherry" --rows pigeon --turns 1 >out 2>err && grep -q 'pigeon' err
verdict "a row that is not there is named" $?
exit $failed
