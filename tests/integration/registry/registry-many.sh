#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: registry command bench-many
# Forty engines in eight processes that find each other in a registry, and a restart of all of them,
# one process after the other, every second by kill -9, while the others go on: what was reported
# complete is in the memory of those that are gone, and what was not has been reported failed.
# bench/record does the same with 1,000.
set -u
many=${TEST_BUILD:?the build directory}/bench/many
wherry=${TEST_COMMAND:?the path of wherry}
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"
unset MALLOC_PERTURB_ # it touches pages that a peer never does, and these are counted

"$wherry" registry --listen 127.0.0.1:0 --file log >url 2>err &
for _ in $(seq 1200); do
	url=$(cat url)
	[ -n "$url" ] && break
	sleep 0.05
done

# A condition on the figures, in python.
holds() # CONDITION
{
	python3 - "$1" <<'PYTHON'
import json, sys
r = json.load(open("figures.json"))
t, cost = r["transfers"], r["cost"]
assert eval("(" + sys.argv[1] + ")"), (sys.argv[1], r)
PYTHON
}

small()
{
	[ -n "${TEST_SLOW:-}" ] ||
		holds 'cost["idle_peer_initiator_bytes"] < cost["idle_peer_limit_bytes"] and
			cost["idle_peer_owner_bytes"] < cost["idle_peer_limit_bytes"]'
}

# Over tcp, and as the engines of one host find each other: process_vm, for the memory is not
# Wherry's.
for transport in tcp shm; do
	timeout 120 "$many" --registry "$url" --engines 40 --processes 8 --degree 6 --peers 200 \
		--idle 0 \
		--rate 4000 --config lease=500ms --config "transports=$transport,tcp" \
		--json figures.json >out 2>&1
	status=$?
	[ "$status" = 0 ] || cat out
	verdict "$transport: forty engines, all restarted" "$status"
	holds 't["wrong"] == 0 and t["without_end"] == 0 and r["restart"]["engines"] == 40'
	verdict "$transport: all of them, and no transfer was not what it said" $?
	# A killed engine has at most one transfer to each peer in flight.
	holds 't["completed"] > 1000 and 0 < t["failed"] and t["of_killed_engines"] <= 20 * 6 and
		t["submitted"] == t["completed"] + t["failed"] + t["of_killed_engines"]'
	verdict "$transport: every transfer has ended well, or was reported failed" $?
	small
	verdict "$transport: an idle peer takes less than 32 KiB on either side" $?
done

rm figures.json
timeout 120 "$many" --registry "$url" --engines 8 --processes 2 --degree 2 --peers 200 --idle 0 \
	--no-restart \
	--config transports=tcp --config tls=1 --json figures.json >out 2>&1
status=$?
[ "$status" = 0 ] || cat out
[ "$status" = 0 ] && small
verdict "tls: an idle peer takes less than 32 KiB on either side" $?

refused() # TEXT ARGUMENTS...
{
	local text=$1

	shift
	"$many" "$@" >out 2>err
	[ $? = 64 ] && grep -q -F -- "$text" err && return
	cat out err
	return 1
}
refused "--registry is missing" --engines 3 && refused '--engines cannot be "1"' --engines 1 &&
	refused "more processes" --registry "$url" --engines 3 --processes 5 &&
	refused '--bytes cannot be "12"' --bytes 12 && refused "options only" --registry "$url" more
verdict "wrong command lines" $?
exit "$failed"
