#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: bench-requests fake-verbs
# What rdma asks of a NIC is what docs/rdma-speed.md counts: requests exactly; doorbells and
# completions, which depend on how fast the NIC is, within bounds.
set -u
build=${TEST_COMMAND%/tools/*}
requests=$build/bench/requests library=$build/tests/fake/verbs/libibverbs.so.1
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit

# NAME, REQUESTS, the most DOORBELLS, the least and the most COMPLETIONS, the most EVENTS; then what
# requests takes.
counts()
{
	local name=$1 wanted=$2 doorbells=$3 least=$4 most=$5 events=$6 got

	shift 6
	echo "[ RUN      ] $name"
	got=$("$requests" "$library" "$@")
	echo "$got"
	awk -v wanted="$wanted" -v doorbells="$doorbells" -v least="$least" -v most="$most" \
		-v events="$events" '
		{ good = $5 == wanted && $7 >= 1 && $7 <= doorbells && $9 >= least && $9 <= most && $11 <= events }
		END { exit !good }' <<<"$got"
	verdict "$name" $?
}

counts one_piece 20 20 20 20 40 65536 1 20
# A completion for 16 of them, and one at the end of each chain.
counts blocks 2560 160 160 320 400 4096 256 10
counts blocks__read 2560 160 160 320 400 4096 256 10 read
# Six runs of ours in each.
counts blocks__gathered 430 80 30 110 200 4096 258 10 write touching
# Whoever polls needs no events, but for the rounds in which nobody let him.
counts small_and_polled 2000 2000 2000 2000 1000 8 1 2000 write polled
counts large_pieces 160 160 160 160 400 1048576 16 10
exit "$failed"
