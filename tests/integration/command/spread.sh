#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: weights
# wherry spread and wherry serve --weights: a file to several processes, which hand it on to each
# other; receivers that refuse or stand still; readers. Failures in the middle: spread-faults.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
# shellcheck source=tests/serving.sh
. "${BASH_SOURCE[0]%/*}/../../serving.sh" || exit
# shellcheck source=tests/integration/lib/spreading.sh
. "${BASH_SOURCE[0]%/*}/../lib/spreading.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"

head -c 12000017 /dev/urandom >one
head -c 11000000 /dev/urandom >two
head -c 1500000 /dev/urandom >small

# ---- wrong arguments ----------------------------------------------------------------------------

: >empty
refused 64 "Usage: wherry spread" spread one &&
	refused 64 "'b' is no address" spread one b &&
	refused 64 "no offset" spread one wherry://127.0.0.1:1/a+5 &&
	refused 64 "--require: the receivers read" spread one wherry://127.0.0.1:1 --require shm &&
	refused 64 "--piece is 0" spread one wherry://127.0.0.1:1 --piece 0 &&
	refused 64 "'1Gib' is not a rate" spread one wherry://127.0.0.1:1 --link 1Gib &&
	refused 64 "chunks are too small" spread one wherry://127.0.0.1:1 --chunk 1 &&
	refused 64 "pieces are too small" spread one wherry://127.0.0.1:1 --piece 1 &&
	refused 2 "is empty" spread empty wherry://127.0.0.1:1 &&
	refused 2 "No such file" spread none wherry://127.0.0.1:1 &&
	refused 2 "no regular file" spread . wherry://127.0.0.1:1 &&
	refused 64 "has no size" serve --weights host &&
	refused 64 "has a size of 0" serve --weights host:0 &&
	refused 64 "two regions are named 'weights'" serve --weights host:1 --weights host:1 &&
	refused 64 "two regions are named 'a'" serve --memory host:1:a --weights host:1:a &&
	refused 64 "--read-only forbids" serve --weights host:1MiB --read-only &&
	refused 64 "there is no --weights" serve --memory host:1 --weights-from a
verdict "wrong arguments are refused" $?

# ---- one file, four receivers -------------------------------------------------------------------

start --weights host:64MiB:model -- r1 r2 r3 r4

spread one "${urls[@]}" --dry-run && grep -q "'r4' on .* would take 12000017 bytes as 'model'" out
verdict "a dry run says who would take the file" $?
spread one "${urls[@]}" --dry-run --json && [ "$(value moved)" = False ] &&
	[ "$(value receivers_done)" = 0 ] && [ "$(value receivers 3 region)" = model ]
verdict "also as JSON" $?
spread one "${urls[@]}" "${hand_on[@]}" --plan && grep -q '^expected .*simulated' out &&
	grep -q '^bottleneck' out && grep -q '^r[1-4] *r[1-4] *network' out
verdict "a plan shows who would hand on what to whom" $?
spread one "${urls[@]}" "${hand_on[@]}" --plan --json && [ "$(value measured)" = False ] &&
	[ "$(value pair_count)" -ge 4 ]
verdict "also as JSON" $?
refused 2 "no region 'model'" copy "${urls[0]}/model" back
verdict "and nothing has moved" $?

spread one "${urls[@]}" "${hand_on[@]}" --json
status=$?
[ $status = 0 ] && all_have one "${urls[@]/%//model}"
verdict "four receivers have the file" $?
# Each received it once; this process sent about one copy, and the others handed the rest on.
[ "$(value receivers_done)" = 4 ] && python3 - <<'PYTHON'
import json
out = json.load(open("out"))
size = out["size_bytes"]
assert size == 12000017 and out["moved"] and out["duration_seconds"] > 0, out
for receiver in out["receivers"]:
    assert receiver["done"] and receiver["error"] is None, receiver
    assert receiver["region"] == "model" and receiver["bandwidth_GBps"] > 0, receiver
    assert sum(part["size_bytes"] for part in receiver["from"]) == size, receiver
    assert all(part["transport"] in ("shm", "tcp") for part in receiver["from"]), receiver
senders = {part["engine"] for receiver in out["receivers"] for part in receiver["from"]}
assert len(senders & {"r1", "r2", "r3", "r4"}) > 1, senders
# Who is late takes from others what its place in the plan has not got yet.
assert size <= out["sent_bytes"] < 2.5 * size, out["sent_bytes"]
PYTHON
verdict "each of them once, handed on by the receivers" $?

spread two "${urls[@]}" "${hand_on[@]}" && all_have two "${urls[@]/%//model}" &&
	grep -q '^spread 11000000 bytes to 4 of 4 receivers' out &&
	grep -q "^${urls[2]}: 'model' in .* GB/s; [0-9]* bytes from" out
verdict "another file replaces it, and the text says how" $?

# A piece of 4 MiB takes 35 ms at 1 Gbit/s: the plan's own rule is 5 ms. All make the same plan, or
# refuse each other.
spread one "${urls[@]}" --separate-hosts --plan --json && [ "$(value piece_bytes)" -gt 1048576 ] &&
	spread one "${urls[@]}" --separate-hosts --link 1Gbit --plan --json &&
	[ "$(value piece_bytes)" -lt 1048576 ] && [ "$(value bottleneck GBps)" = 0.125 ] &&
	spread one "${urls[@]}" --separate-hosts --link 1Gbit --plan &&
	grep -q 'pieces of up to [0-9.]* KiB' out
verdict "a plan for slow links has smaller pieces" $?
spread one "${urls[@]}" --separate-hosts --link 1Gbit --json &&
	[ "$(value receivers_done)" = 4 ] && all_have one "${urls[@]/%//model}" &&
	spread two "${urls[@]}" --link 2.5GB/s --quiet && all_have two "${urls[@]/%//model}"
verdict "and the receivers follow it" $?

spread small "${urls[@]}" --quiet && [ ! -s out ] && [ ! -s err ] &&
	all_have small "${urls[@]/%//model}"
verdict "a third one, which is smaller, quietly" $?

# ---- a reader, while files come -----------------------------------------------------------------

# Copies until `enough` is there: each is one of the files, whole. A copy in whose middle the file
# is replaced may fail, and then leaves nothing.
reader()
{
	local copies=0

	until [ -e enough ]; do
		rm -f seen
		if timeout 200 "$wherry" copy --quiet "$1" seen 2>/dev/null; then
			cmp -s one seen || cmp -s two seen || cmp -s small seen || return 1
			copies=$((copies + 1))
		elif [ -e seen ]; then
			return 1
		fi
		echo $copies >copies
	done
	[ $copies -gt 0 ]
}

reader "${urls[3]}/model" &
reading=$!
status=0
for file in one two one two one; do
	spread $file "${urls[@]}" "${hand_on[@]}" || { status=1 && cat err; }
done
until_so test -s copies && until_so grep -q -v '^0$' copies || status=1
: >enough
wait $reading && [ $status = 0 ] && all_have one "${urls[@]/%//model}"
verdict "a reader sees one file or another, never both" $?

# ---- refusals -----------------------------------------------------------------------------------

head -c 70000000 /dev/zero >large
before=$(sha256sum <one)
serve --weights host:64MiB:other --name other
other=$url
serve --weights host:1MiB:model --name narrow
narrow=$url
refused 2 "$narrow: 'model' takes files of up to 1 MiB, not 1500000 bytes" \
	spread small "${urls[@]}" "$narrow" && [ "$(wc -l <err)" = 1 ] && [ ! -s out ] &&
	refused 2 "takes files of up to 64 MiB" spread large "${urls[@]}" --dry-run &&
	[ "$(wc -l <err)" = 4 ] && all_have one "${urls[@]/%//model}"
verdict "a bound that is too small, at one or at all: nothing moves" $?
refused 2 "it receives no 'model', but other" spread small "${urls[0]}" "$other/model" &&
	refused 2 "it receives no 'none', but model" spread small "${urls[0]}/none" &&
	all_have one "${urls[0]}/model"
verdict "weights of another name" $?
serve --memory host:1MiB
refused 2 "it receives no files: start it with wherry serve --weights" spread small "$url"
verdict "a server without weights says so" $?
refused 2 "is there twice" spread small "${urls[0]}" "${urls[0]}/model"
verdict "a receiver that is named twice" $?
refused 69 "wherry://127.0.0.1:1: " spread small wherry://127.0.0.1:1 "${urls[0]}" --dry-run &&
	refused 69 "wherry://127.0.0.1:1: " spread small wherry://127.0.0.1:1 &&
	refused 69 "wherry://127.0.0.1:1: " spread small wherry://127.0.0.1:1 "${urls[@]}" --json &&
	[ "$(wc -l <err)" = 1 ] && [ "$(value receivers_done)" = 4 ] &&
	[ "$(value receivers 0 "done")" = False ] && all_have small "${urls[@]/%//model}"
verdict "a receiver that is not there is left out" $?
serve --weights host:64MiB:model --name frozen
kill -STOP "$server"
refused 69 "$url: " spread one "$url" "${urls[@]}" --json -c timeout=3s &&
	[ "$(wc -l <err)" = 1 ] && [ "$(value receivers_done)" = 4 ] &&
	all_have one "${urls[@]/%//model}"
verdict "as is one that stands still" $?
kill -CONT "$server"
serve --weights host:4MiB:a --weights host:4MiB:b --weights-from chief --name two
refused 2 "it takes no files from " spread small "$url/a" &&
	refused 2 "which of a, b?" spread small "$url" --name chief &&
	spread small "$url/b" --name chief && all_have small "$url/b" &&
	refused 2 "no region 'a'" copy "$url/a" back
verdict "the right to send is a right, by name" $?
"$wherry" key make key >/dev/null
serve --weights host:4MiB -c keyfile=key
refused 2 "" spread small "$url" &&
	spread small "$url" -c keyfile=key --json && [ "$(value receivers 0 region)" = weights ]
verdict "who has no key has no right" $?
[ "$before" = "$(sha256sum <one)" ] || { echo "wrong bytes" && false; }
verdict "the file is only read" $?

if end && ! grep -e "cannot free" -e "cannot withdraw" -e "cannot leave" ./*.err; then
	result=0
else
	result=1
	cat ./*.err
fi
verdict "the receivers end well" $result

# ---- other routes ------------------------------------------------------------------------------

start --weights host:400MiB:model --require tcp -- r1 r2 r3 r4
spread one "${urls[@]}" --json && [ "$(value receivers 2 from 0 transport)" = tcp ] &&
	all_have one "${urls[@]/%//model}"
verdict "the same by TCP" $?
end

# ---- GPU memory ---------------------------------------------------------------------------------

if [ -n "${TEST_CUDA-}" ]; then
	export WHERRY_CUDA=$TEST_CUDA
	start --weights cuda:0:8MiB:model -- g1 g2
	spread small "${urls[@]}" "${hand_on[@]}" --json && all_have small "${urls[@]/%//model}" &&
		"$wherry" ls "${urls[0]}" | grep -q '1500000 bytes *device *r- *model'
	verdict "to the memory of GPUs" $?
	unset WHERRY_CUDA
fi

exit $failed
