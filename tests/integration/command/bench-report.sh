#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wherry bench --report, --from and --baseline: the contents of the page, from made-up results and
# from a real run, and the errors for files that are not results.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"
unset TEST_CUDA

# Run wherry bench: its exit status is stored in $status, its output in the files out and err.
bench()
{
	timeout 200 "$wherry" bench "$@" >out 2>err
	status=$?
}

# A case: wherry bench ARGUMENT... must exit with STATUS and print TEXT.
check() # NAME STATUS TEXT ARGUMENT...
{
	local name=$1 wanted=$2 text=$3

	shift 3
	bench "$@"
	[ "$status" = "$wanted" ] && grep -q -F -e "$text" out err
	verdict "$name" $?
	[ "$status" = "$wanted" ] || sed 's/^/    /' out err
}

# True if the page contains every TEXT.
holds() # PAGE TEXT...
{
	local page=$1 text

	for text in "${@:2}"; do
		grep -q -F -e "$text" "$page" || { echo "    no $text"; return 1; }
	done
}

python3 "$TEST_SOURCE/tests/integration/command/report-data.py" . || exit

# ---- the page ---------------------------------------------------------------------------------

check "a page" 2 "64 rows; 43 of 61 with a limit reached it; 1 FAILED; 1 WITH WRONG BYTES" \
	--from now.json --report page.html
holds page.html '<b>1</b> WITH WRONG BYTES' 'the peer went away' 'rdma, host to host: no device' \
	'<td>14.13</td>' '3 MiB' 'A Processor, 16 CPUs, 4 GPUs' 'by way of tcp' \
	'70 % of limit<br>cuda' '<th scope=row>cuda:10</th>' 'GPU-3' '16384 × 1 KiB' \
	"default-src 'none'" && ! grep -q 'baseline' <(sed 's/<style>.*<\/style>//' page.html)
verdict "what it has" $?
[ "$(grep -o '<th scope=col>[a-z0-9:]*</th>' page.html | grep -A5 cuda:0 | head -4 |
	tr -d '\n')" = \
	"<th scope=col>cuda:0</th><th scope=col>cuda:1</th><th scope=col>cuda:2</th><th scope=col>cuda:10</th>" ]
verdict "GPUs in the order of their numbers" $?
# Two times 28 + 6 points of curves, less one row that failed and one that was wrong, and six
# marks in the keys.
[ "$(grep -o '<[a-z]* class=mark ' page.html | wc -l)" = 70 ] &&
	[ "$(grep -o '<path class=limit d="M[0-9]*\.[0-9]' page.html | wc -l)" = 12 ]
verdict "curves with their limits" $?
check "times to the first byte" 0 "46 of 64 rows reached the limit" --from first.json \
	--report first.html
holds first.html '<td>41.25</td><td>17.50</td>' && ! grep -q '1st byte' page.html
verdict "in the page, where there are any" $?
check "the page on stdout" 0 "<!DOCTYPE html>" --from same.json --report -
grep -q ' of 64 ' err
verdict "and the rest on stderr" $?

# ---- beside a baseline ------------------------------------------------------------------------

check "beside itself" 0 "0 better, 0 worse, 64 as before, 0 not compared" --from same.json \
	--baseline same.json --report same.html
check "beside an earlier run" 1 "1 better, 1 worse, 61 as before, 2 not compared" \
	--from same.json --baseline before.json --report after.html
python3 - <<'PYTHON'
import html, re
with open("after.html", encoding="utf-8") as file:
    page = file.read()
part = page[page.index("<h2 id=baseline>"):page.index("<h2 id=matrix>")]
rows = [html.unescape(re.sub(r"<[^>]+>", " ", row)) for row in part.split("<tr>")[2:]]
found = {}
for row in rows:
    words = re.search(r"(\S+) (\S+) to (\S+), (.+?) +(\S+)(?:, 1 connection)?; working", row)
    what = re.search(r" (better|worse|noise|as its limit|only in the baseline) ", row)
    found.setdefault(what[1], []).append(f"{words[1]} {words[5]} {words[4]}")
    if what[1] == "worse":
        assert "-50" in row, row
assert found["worse"] == ["write shm 8 bytes"], found
assert found["better"] == ["write shm 16 MiB"], found
assert found["as its limit"] == ["write shm 64 MiB"], found
assert found["only in the baseline"] == ["write tcp 128 MiB"], found
assert len(found["noise"]) == 60, len(found["noise"])
assert "Not in the baseline: 1 row." in part
PYTHON
verdict "row by row" $?
holds after.html '6.1.0<br><span class=faint>baseline: 6.0.0</span>'
verdict "the environments differ" $?
check "a failure is worse, and an exit code of its own" 2 "3 worse" --from now.json \
	--baseline before.json --report worse.html
check "several files" 2 "128 rows" --from now.json,same.json --report both.html
holds both.html 'and 1 other run (' 'From now.json, same.json'
verdict "both named" $?

# ---- hostile texts ----------------------------------------------------------------------------

check "texts that want to be more" 2 "30 rows" --from hostile.json --baseline hostile.json \
	--report hostile.html
python3 - <<'PYTHON'
import html.parser
class Page(html.parser.HTMLParser):
    names, attributes, words = set(), set(), ""
    def handle_starttag(self, tag, attributes):
        self.names.add(tag)
        self.attributes.update(name for name, _ in attributes)
    def handle_data(self, data):
        self.words += data
page = Page(convert_charrefs=True)
with open("hostile.html", encoding="utf-8") as file:
    text = file.read()
page.feed(text)
assert not page.names & {"script", "img", "b>", "iframe", "template"}, page.names
assert not [name for name in page.attributes if name.startswith("on")], page.attributes
assert text.count("</style>") == 1 and text.count("<style>") == 1
for hidden in "\u202e\u2066\u200e\u0007\u0085":
    assert hidden not in page.words
for word in ("</script><script>window.ran = 1</script>", "' onmouseover='window.ran=1",
             "&lt;b&gt;&#60;i&#62;", "é 漢字 🚀", "${x} %s%n", "a\ufffdb\ufffdc\ufffdd"):
    assert word in page.words, word
PYTHON
verdict "stay texts" $?

# ---- files that are no results ----------------------------------------------------------------

row='"op": "write", "source": "host", "target": "host", "form": "single", "size_bytes": 8'
while IFS='|' read -r name json text; do
	printf '%s' "$json" >broken.json
	echo untouched >kept.html
	check "broken: $name" 2 "$text" --from broken.json --report kept.html
	[ "$(cat kept.html)" = untouched ] && [ "$(wc -l <err)" = 1 ]
	verdict "broken: $name: one line, and the old page is still there" $?
done <<CASES
nothing||broken.json:1:0: no JSON
cut off|{"schema": 1, "results": [|broken.json:1:26: no JSON
no JSON|results|broken.json:1:7: no JSON
a key twice|{"schema": 1, "schema": 1}|duplicate
bytes|{"schema": 1, "results": "$(printf '\xff')"}|broken.json:1:
a list|[]|not an object
no schema|{}|"schema" is not 1
a newer schema|{"schema": 2}|"schema" is not 1
no results|{"schema": 1}|no list "results"
a text for results|{"schema": 1, "results": "x"}|no list "results"
an environment|{"schema": 1, "environment": [], "results": []}|"environment" is not an object
a row that is none|{"schema": 1, "results": [{$row}, 7]}|results[1] is not an object
no op|{"schema": 1, "results": [{}]}|results[0]: no "op"
a number for a text|{"schema": 1, "results": [{$row, "transport": 3}]}|"transport" is not a text
a negative|{"schema": 1, "results": [{$row, "bandwidth_GBps": -1}]}|"bandwidth_GBps" is not a number
too large|{"schema": 1, "results": [{$row, "ratio": 1e300}]}|"ratio" is not a number from 0
larger than any|{"schema": 1, "results": [{$row, "ratio": 1e999}]}|no JSON
a fraction|{"schema": 1, "results": [{$row, "samples": 1.5}]}|"samples" is not a whole number
no blocks|{"schema": 1, "results": [{$row, "blocks": 0}]}|"blocks" is not a number from 1
latency|{"schema": 1, "results": [{$row, "latency_us": 4}]}|"latency_us" is not an object
the first byte|{"schema": 1, "results": [{$row, "first_byte_us": 4}]}|"first_byte_us" is not an object
verified|{"schema": 1, "results": [{$row, "verified": "yes"}]}|"verified" is not true or false
skipped|{"schema": 1, "results": [], "skipped": [{$row, "reason": 1}]}|skipped[0]: "reason"
CASES
printf '[\033[2J]' >broken.json
check "broken: what moves the cursor" 2 "no JSON: invalid token near '?'" --from broken.json \
	--report kept.html
! grep -q $'\033' err
verdict "broken: what moves the cursor is not shown" $?
check "results of another program" 2 'no "op"' --report other.html \
	--from "$TEST_SOURCE/bench/results/2026-11-20-h200x2-blocks-kernel.json"
[ ! -e other.html ]
verdict "leave no page" $?
# The page explains marks beside a line, and only if it has any.
check "several working sets" 0 "12 rows" --report sets.html \
	--from "$TEST_SOURCE/bench/results/2026-11-22-h200-16cpu-tcp.json"
holds sets.html 'marks beside a line: smaller working sets'
verdict "are told from the line's" $?
check "one working set" 0 "4 rows" --report set.html \
	--from "$TEST_SOURCE/bench/results/2026-11-27-h200x2-32cpu-cuda.json"
! holds set.html 'marks beside a line'
verdict "has none beside it" $?
printf '{"schema": 1, "results": []}' >empty.json
check "no rows at all" 0 "0 rows" --from empty.json --report empty.html
holds empty.html 'Nothing was measured' 'On an unknown machine'
verdict "have a page" $?
python3 - <<'PYTHON'
import json
with open("same.json") as file:
    whole = json.load(file)
whole["results"] = whole["results"][:1] * 4097
with open("many.json", "w") as file:
    json.dump(whole, file)
whole["results"] = [{**whole["results"][0], "source": f"cuda:{i}"} for i in range(200)]
with open("crowd.json", "w") as file:
    json.dump(whole, file)
PYTHON
check "more rows than a page has" 2 "results[4096]: more than 4096 rows" --from many.json \
	--report many.html
check "more memories than a matrix has" 0 "200 rows" --from crowd.json --report crowd.html
holds crowd.html 'Not drawn: 1 of more than 64 memories'
verdict "are told of" $?

# ---- command lines ----------------------------------------------------------------------------

check "no such file" 2 "nowhere.json: No such file" --from nowhere.json --report x.html
check "a directory" 2 "cannot write /: " --from same.json --report /
check "an empty name" 64 "name is empty" --from same.json,,now.json --report x.html
check "--from alone" 64 "add --report FILE.html" --from same.json
check "--baseline alone" 64 "add --report FILE.html" --baseline same.json
check "--from, and what to measure" 64 "leave out --size" --from same.json --report x.html --size 8
check "--from, and --json" 64 "leave out --json" --from same.json --report x.html --json y.json
check "one file for both" 64 "two files" --json x --report x
check "a bad baseline is found before measuring" 2 "nowhere.json" -t shm -s 8 --baseline \
	nowhere.json --report x.html
[ ! -e x.html ]
verdict "none of them leaves a page" $?

# ---- for real ---------------------------------------------------------------------------------

check "a run with a page" 0 "6 rows" -t shm --processes 2 -s 8,64KiB,1MiB --seconds 0.05 \
	--working-set 1MiB --limits --verify --json run.json --report run.html
holds run.html '<b>6</b> verified, byte by byte' 'write, host to host' 'From this run.' memcpy
verdict "what was measured" $?
# The table and the page grade small rows by latency, and agree on how many reached the limit.
python3 - out run.json <<'PYTHON'
import json
import re
import sys

lines = open(sys.argv[1]).read().splitlines()
rows = json.load(open(sys.argv[2]))["results"]
header = next(line for line in lines if line.startswith("op "))
table = [line for line in lines if re.match("(read|write) ", line)]
assert len(table) == len(rows) == 6
good = 0
for line, row in zip(table, rows):
    shown = line[:header.index("of it") + 5].split()[-1]
    if row["size_bytes"] * row["blocks"] < 1 << 20:
        assert shown == "%.2fx" % row["latency_ratio"], (line, row)
        good += row["latency_ratio"] <= 1.3 or row["latency_us"]["p50"] <= 0.5
    else:
        assert shown == "%" and line.split("%")[0].split()[-1] == "%.0f" % (100 * row["ratio"]), (line, row)
        good += row["ratio"] >= 0.95
found = [line for line in lines if "%d of 6 rows reached the limit" % good in line]
assert len(found) == 2, (good, lines)
assert any(line.startswith("of it: ") for line in lines)
PYTHON
verdict "the table grades as the page does" $?
check "the same from its file" 0 "6 rows" --from run.json --report again.html
diff <(sed 's/this run/run.json/' run.html) again.html
verdict "is the same page" $?
exit $failed
