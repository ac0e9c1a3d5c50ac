#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: unsanitized
# What ./check says of tests: each is counted, and who was skipped is named with the reason.
set -u
tally=$(cd "${BASH_SOURCE[0]%/*}/../../../scripts" && pwd)/tally
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1

log() # NAME RESULT STATUS STDOUT STDERR
{
	printf '{"name": "wherry:x / %s", "result": "%s", "returncode": %s, "stdout": "%s", "stderr": "%s"}\n' "$@"
}

{
	log whole SKIP 77 "" "a warning\\nMooncake's engine is not to be had: no network\\n"
	log silent SKIP 77 "" ""
	log parts OK 0 "[       OK ] one\\n[  SKIPPED ] etcd: there is no etcd here\\n" ""
	log bad FAIL 1 "" "boom"
} >testlog.json
python3 "$tally" meson testlog.json plain . >out
wanted="skipped	plain: whole: Mooncake's engine is not to be had: no network	./plain-whole.log
skipped	plain: silent	./plain-silent.log
passed	plain: parts: one	./plain-parts.log
skipped	plain: parts: etcd: there is no etcd here	./plain-parts.log
failed	plain: bad	./plain-bad.log"
[ "$(cat out)" = "$wanted" ] || { cat out; false; }
verdict "tests of meson" $?

# meson test --repeat runs the same command again.
log parts OK 0 "[       OK ] one\\n" "" >>testlog.json
python3 "$tally" meson testlog.json plain . >out
! grep 'two tests' out
verdict "a test that is repeated" $?
log parts OK 0 "[       OK ] two\\n" "" | sed 's/{/{"command": ["another"], /' >>testlog.json
python3 "$tally" meson testlog.json plain . >out
[ "$(grep 'two tests' out)" = \
	"failed	plain: parts: the name of two tests	./plain-parts.log" ]
verdict "two tests of one name" $?

# ---- a second run, alone ------------------------------------------------------------------------

# A test that failed, to be judged with others, since each start of Python takes time.
: >failures.json
add() # SUITE RESULT STATUS OUTPUT
{
	log "$1 $2 $3 $4" "$2" "$3" "$4" "" | sed "s|wherry:x|wherry:$1|" >>failures.json
}

# Print who of them may run once more, and forget them.
who_may()
{
	python3 "$tally" again failures.json
	: >failures.json
}

none_may()
{
	who_may | tee out
	[ ! -s out ]
}

{
	log good OK 0 "" ""
	log skipped SKIP 77 "" ""
	log late FAIL 1 "it took 31 s" ""
	log hangs TIMEOUT -15 "" ""
} >testlog.json
[ "$(python3 "$tally" again testlog.json)" = "late
hangs" ]
verdict "who may run once more" $?

while read -r text; do
	add integration FAIL 1 "$text"
done <<'TEXT'
==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000010
==7==ERROR: LeakSanitizer: detected memory leaks
WARNING: ThreadSanitizer: data race (pid=7)
../src/core/batch.c:7:3: runtime error: signed integer overflow
SUMMARY: UndefinedBehaviorSanitizer: undefined-behavior
==7== Invalid read of size 8
TEXT
add integration FAIL 23 "" && add integration FAIL 66 "" && add integration ERROR 99 ""
none_may
verdict "a sanitizer's report is never taken back" $?

for code in -4 -6 -7 -8 -11 132 134 135 136 139; do
	add unit FAIL $code ""
done
while read -r text; do
	add integration FAIL 1 "$text"
done <<'TEXT'
Test failed with exception: Segmentation fault(11)
CRASHED: target: Aborted
./serve-dirs.sh: line 7: 4711 Segmentation fault
./serve-dirs.sh: line 7: 4711 Aborted
wherry: ../src/core/batch.c:7: wh_batch_free: Assertion `batch' failed.
free(): invalid pointer
TEXT
none_may
verdict "nor is a crash" $?
add integration FAIL 1 "a child was killed by signal 9" && add integration FAIL -9 ""
[ "$(who_may | wc -l)" = 2 ]
verdict "what a test or a limit kills has not crashed" $?

while read -r text; do
	add integration FAIL 1 "$text"
done <<'TEXT'
WRONG BYTES
wrong bytes in round 3
16 bytes of 0x7ffd5c3c and 0x55d0a8f differ
tree/big back/big differ: byte 4097, line 12
cmp: EOF on back after byte 4096, line 12
Binary files tree/big and back/big differ
the copy of big is wrong: its SHA-256 from byte 0 on differs
TEXT
none_may
verdict "nor are wrong bytes" $?

add sim FAIL 1 "" && add sim+long TIMEOUT -15 "" && add simple FAIL 1 ""
[ "$(who_may)" = "simple FAIL 1 " ]
verdict "nor is the simulation" $?

log late OK 0 "[       OK ] one\\n[       OK ] two\\n" "" >again.json
log hangs FAIL 1 "still" "" >>again.json
python3 "$tally" meson testlog.json plain . again.json >out
[ "$(grep -c ", status " plain-hangs.log)" = 2 ] && grep -q still plain-hangs.log
verdict "the log of one that fails again holds both runs" $?
kept=$(sed -n 's/^flaky	plain: late	//p' out)
[ "$(grep -v ^flaky out)" = "passed	plain: good	./plain-good.log
skipped	plain: skipped	./plain-skipped.log
passed	plain: late: one	./plain-late.log
passed	plain: late: two	./plain-late.log
failed	plain: hangs	./plain-hangs.log" ] && [ "$(grep -c ^flaky out)" = 1 ] &&
	grep -q "it took 31 s" "$kept" && ! grep -q "it took" plain-late.log
verdict "who passes the second time is flaky, and the failure is kept" $?
# Not even if the second run is there.
{
	log late FAIL 1 "WRONG BYTES" ""
	log broken FAIL -11 "" ""
} >testlog.json
log broken OK 0 "" "" >>again.json
python3 "$tally" meson testlog.json plain . again.json >out
[ "$(cut -f 1 out | sort -u)" = failed ]
verdict "a second run takes back no proof" $?

printf 'no virtual machine here\n' >lab.log
[ "$(python3 "$tally" output 77 lab lab.log)" = \
	"skipped	lab: no virtual machine here	lab.log" ]
verdict "a step" $?
exit $failed
