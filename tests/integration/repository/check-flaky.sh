#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: unsanitized
# What ./check does about a test that fails: it runs a suite of a project of this test's own, whose
# tests fail once, or always, or together.
set -u
here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
# shellcheck source=tests/cases.sh
. "$here/../../cases.sh" || exit
cd "$directory" || exit 1

cat >meson.build <<'MESON'
project('p')
foreach name : ['good', 'once', 'always', 'crash', 'bytes']
	test(name, find_program('one'), args: name, suite: 'unit', timeout: 30)
endforeach
foreach i : range(9)
	test('storm-@0@'.format(i), find_program('one'), args: 'storm-@0@'.format(i), suite: 'storm')
endforeach
test('seeds', find_program('one'), args: 'seeds', suite: 'sim')
MESON
# Fails the first time, "good" apart; prints who else runs.
cat >one <<'SHELL'
#!/bin/sh
echo "$1 begins" >>order
[ "$1" != good ] || { sleep 0.5; echo "$1 ends" >>order; exit 0; }
[ -e "$1.ran" ] && [ "$1" != always ] && { sleep 0.1; echo "$1 ends" >>order; exit 0; }
touch "$1.ran"
[ "$1" != crash ] || kill -SEGV $$
[ "$1" != bytes ] || echo "WRONG BYTES"
exit 1
SHELL
sed -i "2i cd '$directory'" one
chmod +x one
meson setup build >/dev/null || exit

# Run suites of the project as ./check does.
check() # MESON-TEST-OPTION...
{
	rm -f order ./*.ran
	bash -s "$here/../../.." "$directory" "$@" <<'SHELL' >out 2>&1
		. "$1/scripts/common.sh"
		logs=$2/logs records=$2/logs/steps
		for part in count background builds; do . "$1/scripts/check/$part.sh"; done
		begun=$(now) built=(plain)
		mkdir -p "$records"
		meson_tests plain plain "$2/build" "${@:3}"
		summary
SHELL
}

check --suite unit
[ "$(tail -n 1 out)" = "2 passed, 3 failed, 0 skipped" ] &&
	grep -q '^flaky:   plain: once (.*; 1 in ' out && grep -q '^1 flaky' out &&
	[ "$(grep -c ^failed: out)" = 3 ]
verdict "one that passes the second time is named, and counts as passed" $?
[ "$(grep -c 'once begins' order)" = 2 ] && [ "$(grep -c 'always begins' order)" = 2 ] &&
	[ "$(grep -c -E '(good|crash|bytes) begins' order)" = 3 ]
verdict "crashes and wrong bytes do not run again" $?
# Behind the end of the slowest, and each behind the other.
sed '1,/good ends/d' order >later
[ "$(sort later)" = "$(printf '%s\n' 'always begins' 'once begins' 'once ends')" ] &&
	grep -A 1 'once begins' later | grep -q 'once ends'
verdict "a second run is alone" $?
[ "$(wc -l <logs/flaky.tsv)" = 2 ] &&
	[ "$(cut -f 3,4 logs/flaky.tsv | tail -n 1)" = "plain	once" ] &&
	[ -s "$(tail -n 1 logs/flaky.tsv | cut -f 5)" ]
verdict "its row in flaky.tsv names the log" $?
check --suite unit
grep -q '^flaky:   plain: once (.*; 2 in ' out && [ "$(wc -l <logs/flaky.tsv)" = 3 ]
verdict "who is flaky again is counted" $?

check --suite sim
[ "$(tail -n 1 out)" = "0 passed, 1 failed, 0 skipped" ] && [ "$(grep -c begins order)" = 1 ]
verdict "the simulation never runs again" $?
check --suite storm
[ "$(tail -n 1 out)" = "0 passed, 9 failed, 0 skipped" ] && [ "$(grep -c begins order)" = 9 ]
verdict "if many fail, none runs again" $?
check --suite unit --repeat 2
! grep -q ^flaky out
verdict "nor does one that is repeated" $?
[ $failed = 0 ] || { cat out order && cat logs/tests-plain.log; }
exit $failed
