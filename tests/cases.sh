# SPDX-License-Identifier: Apache-2.0
# For tests that are scripts, which source this: their cases, as scripts/tally counts them, and a
# directory of their own, which goes in the end, and with it what still runs in the background.
# shellcheck shell=bash disable=SC2034
directory=$(mktemp -d) || exit 1
failed=0

# shellcheck disable=SC2317 # called by the trap
clean_up()
{
	local job

	for job in $(jobs -p); do
		kill -CONT "$job" 2>/dev/null
		kill -KILL "$job" 2>/dev/null
		wait "$job" 2>/dev/null
	done
	rm -rf "$directory"
}
trap clean_up EXIT

verdict() # NAME STATUS
{
	if [ "$2" = 0 ]; then
		echo "[       OK ] $1"
	else
		echo "[  FAILED  ] $1"
		failed=1
	fi
}
