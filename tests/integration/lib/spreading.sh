# SPDX-License-Identifier: Apache-2.0
# For tests of wherry spread, which source this behind tests/serving.sh: receivers, and what they
# have.
# shellcheck shell=bash disable=SC2034,SC2154

# A value of the JSON in `out`: value .receivers[0].engine
value()
{
	python3 -c 'import json, sys
at = json.load(open("out"))
for key in sys.argv[1:]:
    at = at[int(key) if key.isdigit() else key]
print(at)' "$@"
}

# Wait up to two minutes until a command succeeds.
until_so() # COMMAND...
{
	for _ in $(seq 1200); do
		"$@" && return
		sleep 0.1
	done
	echo "not so in time: $*"
	return 1
}

# All of these regions are FILE.
all_have() # FILE URL...
{
	local file=$1 at

	shift
	for at; do
		rm -f back
		timeout 200 "$wherry" copy --quiet "$at" back && cmp "$file" back || return 1
	done
}

# Start receivers with these names: ${urls[@]}, ${receivers[@]}.
start() # ARGUMENTS... -- NAME...
{
	local arguments=() name

	while [ "$1" != -- ]; do
		arguments+=("$1")
		shift
	done
	shift
	urls=() receivers=()
	for name; do
		serve --name "$name" "${arguments[@]}"
		mv serve.err "$name.err"
		urls+=("$url")
		receivers+=("$server")
	done
}

end() # they end well
{
	local process ended status=0

	kill -TERM "${receivers[@]}" 2>/dev/null
	for process in "${receivers[@]}"; do
		wait "$process"
		ended=$?
		[ $ended = 0 ] && continue
		echo "receiver $process ended with $ended"
		status=1
	done
	return $status
}

# So small pieces that a file of some MB has many.
spread()
{
	timeout 200 "$wherry" spread "$@" >out 2>err
}
hand_on=(--separate-hosts --chunk 512KiB --piece 128KiB)
