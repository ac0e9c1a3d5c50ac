#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Counting takes less than 1 % of the instructions of a transfer of 4 KiB within a process, which is the
# cheapest there is: by valgrind's callgrind, from the lines of the source that count.
set -u
if ! command -v valgrind >/dev/null; then
	echo "no valgrind"
	exit 77
fi
if [ -n "${TEST_SANITIZED-}" ]; then
	echo "valgrind does not run what is sanitized"
	exit 77
fi
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT
cd "$directory" || exit 1
unset "${!WHERRY_@}"

cat >rounds.c <<'SOURCE'
#include <stdlib.h>
#include <wherry/wherry.h>

static char from[4096], to[4096];

/* rounds N [fresh]: N transfers of 4 KiB by one batch, or each by a batch of its own. */
int main(int argc, char **argv)
{
	struct wh_transfer transfer = { .op = WH_WRITE, .length = sizeof(from) };
	struct wh_engine *engine;
	struct wh_peer *peer;
	struct wh_region *source, *target;
	struct wh_batch *batch = NULL;

	if (wh_engine_open(NULL, &engine) || wh_peer_open(engine, "self", NULL, &peer) ||
	    wh_region_register(engine, from, sizeof(from), NULL, &source) ||
	    wh_region_register(engine, to, sizeof(to), NULL, &target))
		return 1;
	transfer.local = source;
	transfer.remote = wh_region_id(target);
	for (long i = atol(argv[1]); i > 0; i--) {
		if (!batch && (wh_batch_new(peer, NULL, &batch) || wh_batch_add(batch, &transfer, 1)))
			return 1;
		if (wh_batch_submit(batch) || wh_batch_wait(batch, WH_FOREVER))
			return 1;
		if (argc > 2 && i > 1) {
			wh_batch_free(batch);
			batch = NULL;
		}
	}
	return wh_batch_free(batch) || wh_region_unregister(source) || wh_region_unregister(target) ||
	       wh_peer_close(peer) || wh_engine_close(engine);
}
SOURCE
"${CC:-cc}" -O2 -o rounds rounds.c -I "$TEST_SOURCE/include" "$TEST_LIBRARY" \
	-Wl,-rpath,"${TEST_LIBRARY%/*}" || exit 1
for how in again fresh; do
	for rounds in 2000 12000; do
		mode=()
		[ $how = again ] || mode=(fresh)
		valgrind -q --tool=callgrind --callgrind-out-file="$how.$rounds" --compress-strings=no \
			--compress-pos=no ./rounds $rounds "${mode[@]}" || exit 1
	done
done

python3 - <<'PYTHON'
"""What 10,000 rounds more have added, all of it and in lines that count."""
import os, re, sys

COUNTS = re.compile(r"timed_in|->listed|>watch|watch\b.*WH_WATCH|!watch|->rounds|wh_count_|->tally|made >>|"
                    r"piece = batch->pieces|> WH_SMALL_BATCH|counted by|->failed")
ROOT = os.environ["TEST_SOURCE"]
texts = {}


def line_counts(file, number):
    if "/src/core/counters." in file:
        return True
    if "/src/" not in file or not os.path.exists(file):
        return False
    if file not in texts:
        with open(file) as text:
            texts[file] = text.read().split("\n")
    return bool(COUNTS.search(texts[file][number - 1])) if 0 < number <= len(texts[file]) else False


def read(name):
    """All instructions, and those of lines that count; known says whether there are lines at all."""
    total = counting = 0
    known, file, skip = False, "", False
    with open(name) as lines:
        for line in lines:
            line = line.rstrip("\n")
            key, _, value = line.partition("=")
            if key in ("fl", "fi", "fe"):
                file = os.path.normpath(os.path.join(os.environ["TEST_BUILD"], value))
            elif key == "calls":
                skip = True
            elif re.match(r"^\d+ \d+$", line):
                if skip:  # what a call took is in the callee's own lines
                    skip = False
                    continue
                number, cost = map(int, line.split())
                total += cost
                known = known or (file.startswith(ROOT + "/src/") and number > 0)
                if line_counts(file, number):
                    counting += cost
    return total, counting, known


failed = False
for how, most in (("again", 1.0), ("fresh", 1.0)):
    few, many = read(how + ".2000"), read(how + ".12000")
    if not many[2]:
        print("the library was built without debugging information")
        sys.exit(77)
    total, counting = ((many[i] - few[i]) / 10000 for i in (0, 1))
    share = counting / total * 100
    good = 0 < share < most
    failed = failed or not good
    print(f"[{'       OK ' if good else '  FAILED  '}] a batch {how}: {counting:.1f} of {total:.0f} "
          f"instructions, {share:.2f} %")
sys.exit(failed)
PYTHON
