#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: unsanitized patient
# The page of wherry bench --report in a headless Chromium: as wide as a phone and as a monitor,
# light and dark, on paper, and with the keyboard alone. If $TEST_PICTURES is set, pictures of the
# page are copied there.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
here=$TEST_SOURCE/tests/integration/command
if ! command -v chromium >/dev/null; then
	echo "there is no chromium (scripts/packages)"
	exit 77
fi
directory=$(mktemp -d) || exit 1
# The browser's helper processes may write after its end.
trap 'rm -rf "$directory" 2>/dev/null || { sleep 1; rm -rf "$directory"; }' EXIT
cd "$directory" || exit 1
failed=0
unset "${!WHERRY_@}"

python3 "$here/report-data.py" . || exit

page() # NOW BASELINE OPTION...
{
	local now=$1 before=$2

	shift 2
	"$wherry" bench --from "$now.json" --baseline "$before.json" --report "$now.html" >out 2>err
	if [ $? -gt 2 ] || ! mkdir "$now"; then
		cat err
		failed=1
		return
	fi
	python3 "$here/report-page.py" "$now.html" "$now" "$@" ||
		{ failed=1; tail "$now/chromium.log"; }
	[ -z "${TEST_PICTURES:-}" ] || cp "$now".html "$now"/*.png "$now"/page.pdf "$TEST_PICTURES"
}

page now before --broken
page hostile now
page first same
exit $failed
