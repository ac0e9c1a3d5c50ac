#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: fakes unsanitized
# Counting takes less than 1 % of the instructions of a transfer of 4 KiB within a process, which is
# the cheapest there is: by valgrind's callgrind, from the lines of the source that count.
set -u
if ! command -v valgrind >/dev/null; then
	echo "no valgrind"
	exit 77
fi
if [ -n "${TEST_SLOW-}" ]; then
	echo "valgrind runs neither what is sanitized nor what is emulated"
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
		if (wh_batch_submit(batch) || wh_batch_wait_for(batch, WH_FOREVER))
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
		valgrind -q --tool=callgrind --callgrind-out-file="$how.$rounds" \
			--compress-strings=no \
			--compress-pos=no ./rounds $rounds "${mode[@]}" || exit 1
	done
done

python3 - <<'PYTHON'
"""What 10,000 rounds more have added, all of it and in lines that count."""
import collections, os, re, sys

ROOT = os.environ["TEST_SOURCE"] + "/src/"
# Where it is counted: a whole file, a function of one, or lines of one; and in which of the two ways of moving
# each takes instructions. What is renamed, or moves elsewhere, is not found or takes none: this fails then,
# instead of finding counting cheaper.
PLACES = [
    ("core/counters.c", None, "again fresh"),
    ("core/counters.h", None, "fresh"),
    ("core/batch-run.c", "batch_count_submission()", "again fresh"),
    ("core/batch-run.c", r"timed_in", "again fresh"),
    ("core/batch.c", r"made >>", "fresh"),
    ("core/batch.h", "wh_batch_flush_counts()", "fresh"),
    ("core/plan.c", r"> WH_SMALL_BATCH", "fresh"),
]
# And whatever else looks like it, anywhere.
OTHERS = re.compile(r"timed_in|>watch\b|watch\b.*WH_STATISTICS|->submissions|wh_count_|->statistics|fragment->failed")
texts, found = {}, {}


def lines_of(file):
    if file not in texts:
        with open(file) as text:
            texts[file] = text.read().split("\n")
    return texts[file]


def numbers_of(file, what):
    """The lines of a place."""
    lines = lines_of(ROOT + file)
    if what is None:
        return set(range(1, len(lines) + 1))
    if not what.endswith("()"):
        return {i for i, line in enumerate(lines, 1) if re.search(what, line)}
    head = re.compile(rf"^static inline \w+ {what[:-2]}\(")
    first = [i for i, line in enumerate(lines, 1) if head.search(line)]
    return set(range(first[0], lines.index("}", first[0]) + 1)) if first else set()


for place in PLACES:
    found[place] = numbers_of(*place[:2])
    if not found[place]:
        sys.exit(f"[  FAILED  ] there is no {place[1]} in src/{place[0]} any more: where is it counted now?")


def place_of(file, number):
    """Where a line is that counts; None: it does not."""
    for place, numbers in found.items():
        if file == ROOT + place[0] and number in numbers:
            return place
    if not file.startswith(ROOT) or not os.path.exists(file) or not 0 < number <= len(lines_of(file)):
        return None
    return "elsewhere" if OTHERS.search(lines_of(file)[number - 1]) else None


def read(name):
    """All instructions, those of each place that counts, and whether there are lines at all."""
    total, counting = 0, collections.Counter()
    known, file, skip = False, "", False
    with open(name) as lines:
        for line in lines:
            line = line.rstrip("\n")
            key, _, value = line.partition("=")
            if key in ("fl", "fi", "fe"):
                file = os.path.normpath(os.path.join(os.environ["TEST_BUILD"], value))
                # A cache of objects may have those of another directory.
                tail = file.rpartition("/src/")[2]
                if tail and not file.startswith(ROOT) and os.path.exists(ROOT + tail):
                    file = ROOT + tail
            elif key == "calls":
                skip = True
            elif re.match(r"^\d+ \d+$", line):
                if skip:  # what a call took is in the callee's own lines
                    skip = False
                    continue
                number, cost = map(int, line.split())
                total += cost
                known = known or (file.startswith(ROOT) and number > 0)
                place = place_of(file, number)
                if place:
                    counting[place] += cost
    return total, counting, known


failed = False
for how, most in (("again", 1.0), ("fresh", 1.0)):
    few, many = read(how + ".2000"), read(how + ".12000")
    if not many[2]:
        print("the library was built without debugging information")
        sys.exit(77)
    total = (many[0] - few[0]) / 10000
    places = {place: (many[1][place] - few[1][place]) / 10000 for place in many[1]}
    counting = sum(places.values())
    share = counting / total * 100
    good = 0 < share < most
    failed = failed or not good
    print(f"[{'       OK ' if good else '  FAILED  '}] a batch {how}: {counting:.1f} of {total:.0f} "
          f"instructions, {share:.2f} %")
    for place in PLACES:
        if how in place[2] and not places.get(place, 0) > 0:
            failed = True
            print(f"[  FAILED  ] a batch {how}: nothing is counted in {place[1] or 'all'} of src/{place[0]}")
sys.exit(failed)
PYTHON
