#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
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

printf 'no virtual machine here\n' >lab.log
[ "$(python3 "$tally" output 77 lab lab.log)" = \
	"skipped	lab: no virtual machine here	lab.log" ]
verdict "a step" $?
exit $failed
