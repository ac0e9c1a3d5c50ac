#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The library and its headers are as tests/abi/recorded says. Else this says whether something was
# added, or programs that were compiled before would break; tests/abi/record records the change.
set -u
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../cases.sh" || exit
# shellcheck source=tests/abi/dump.sh
. "$TEST_SOURCE/tests/abi/dump.sh" || exit
recorded=$TEST_SOURCE/tests/abi/recorded

if ! command -v abidw >/dev/null; then
	echo "abidw is missing (Debian package abigail-tools)" >&2
	exit 77
fi
if [ "$(uname -m)" != x86_64 ]; then
	echo "the interface was recorded on x86_64" >&2
	exit 77
fi

# Compare one file of the new dump with the recorded one.
unchanged() # NAME FILE
{
	local change

	change=$(interface_change "$recorded/$2" "$directory/$2")
	[ "$change" = same ] ||
		echo "$1: $change. If that is meant: tests/abi/record, and commit the result" >&2
	[ "$change" = same ]
	verdict "$1 are as recorded" $?
}

dump_interface "$TEST_LIBRARY" "$TEST_SOURCE/include" "$directory"
verdict "abidw reads the library" $?
unchanged functions functions.abi
unchanged types types.abi

# That it notices: the headers with one line more.
planted() # NAME EXPECTED HEADER SED_PROGRAM
{
	rm -rf "$directory/planted"
	cp -R "$TEST_SOURCE/include" "$directory/planted"
	sed -i "$4" "$directory/planted/wherry/$3"
	! cmp -s "$TEST_SOURCE/include/wherry/$3" "$directory/planted/wherry/$3" &&
		dump_types "$directory/planted" "$directory/planted.abi" &&
		[ "$(interface_change "$directory/types.abi" "$directory/planted.abi")" = "$2" ]
	verdict "planted: $1" $?
}
planted "a field in the middle breaks" broken transfer.h \
	'/^struct wh_transfer {/a\	uint64_t planted;'
planted "an enum value that changes breaks" broken transfer.h \
	's/WH_WRITE = 2/WH_WRITE = 3/'
planted "a type more is added" added transfer.h \
	'/^struct wh_transfer {/i\enum wh_planted { WH_PLANTED = 1 };'
exit $failed
