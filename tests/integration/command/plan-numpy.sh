#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wherry plan: its steps, carried out on numpy's arrays, give what numpy's own slicing gives.
set -u
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
for python in python3 /usr/bin/python3 ''; do
	[ -n "$python" ] || { echo "numpy is not installed" && exit 77; }
	! "$python" -c 'import numpy' 2>/dev/null || break
done
timeout 500 "$python" "${BASH_SOURCE[0]%.sh}.py" "$TEST_COMMAND" "$directory"
verdict "60 random pairs of layouts" $?
exit $failed
