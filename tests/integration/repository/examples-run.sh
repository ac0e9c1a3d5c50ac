#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The programs of examples/, run as their comments say, and the README's first program.
set -u
examples=$TEST_BUILD/examples
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit

# The line that a process prints when it is ready, from a file that it writes.
url() # FILE PROCESS
{
	while kill -0 "$2"; do
		if grep -m 1 '^wherry://' "$1"; then
			return 0
		fi
		sleep 0.05
	done
	return 1
}

awk '/^```c$/ { on = 1; next } /^```$/ { if (on) exit } on' "$TEST_SOURCE/README.md" |
	diff - <(grep -v SPDX "$TEST_SOURCE/examples/hello.c")
verdict "the README shows examples/hello.c" $?

"$examples/example-hello" | tee "$directory/hello" &&
	grep -q '^across the river, by' "$directory/hello"
verdict "hello" $?

"$TEST_COMMAND" serve --memory host:64MiB --memory pageable:64MiB >"$directory/serve" &
server=$!
if address=$(url "$directory/serve" "$server"); then
	for region in host pageable; do
		"$examples/example-write" "$address" "$region" "across the river"
		verdict "write to $region" $?
		"$examples/example-blocks" "$address" "$region"
		verdict "blocks to $region" $?
	done
	WHERRY_REQUIRE=tcp "$examples/example-blocks" "$address" host
	verdict "blocks by tcp" $?
	for route in shm tcp; do
		printf 'one\ntwo\n' | WHERRY_REQUIRE=$route \
			"$examples/example-event-loop" "$address" host >"$directory/loop" &&
			[ "$(head -2 "$directory/loop")" = $'1: one\n2: two' ] &&
			grep -q "$route" "$directory/loop"
		verdict "an event loop by $route" $?
	done
	"$examples/example-write" "$address" host "into a file" >"$directory/out" &&
		"$examples/example-file" "$address" host "$directory/saved" >"$directory/out" &&
		grep -q 'tcp\|shm\|self' "$directory/out" &&
		[ "$(stat -c %s "$directory/saved")" = $((64 << 20)) ] &&
		[ "$(head -c 11 "$directory/saved")" = "into a file" ]
	verdict "a region into a file and back" $?
	"$examples/example-write" "$address" nowhere "text"
	[ $? = 1 ]
	verdict "write to a region that is not there" $?
else
	verdict "serve" 1
fi
kill "$server" && wait "$server"
verdict "serve ends well" $?

"$examples/example-notify" receive >"$directory/notify" &
receiver=$!
if address=$(url "$directory/notify" "$receiver"); then
	"$examples/example-notify" send "$address"
	verdict "notify send" $?
	wait "$receiver"
	verdict "notify receive" $?
	grep -x 'from sender: 8 MiB for you' "$directory/notify"
	verdict "the notification is what was sent" $?
else
	verdict "notify receive" 1
fi

if [ -x "$examples/example-mooncake" ]; then
	: >"$directory/offer"
	"$examples/example-mooncake" offer >"$directory/offer" &
	offering=$!
	while kill -0 "$offering" && [ "$(wc -l <"$directory/offer")" = 0 ]; do
		sleep 0.05
	done
	read -r name address <"$directory/offer"
	"$examples/example-mooncake" write "$name" "$address" "across the river" |
		tee "$directory/links"
	grep -q "$name by Wherry's routes" "$directory/links"
	verdict "mooncake write" $?
	wait "$offering" && grep -x 'the writer says it is there: across the river' \
		"$directory/offer"
	verdict "mooncake offer" $?
fi
exit $failed
