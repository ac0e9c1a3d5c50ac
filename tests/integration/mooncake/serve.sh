# SPDX-License-Identifier: Apache-2.0
# For scripts that talk to a server of peer.c's, which source this: $peer is its path.
# shellcheck shell=bash disable=SC2154,SC2034

# Start a server with a pipe to it; what it prints is in `said`, its first line in $name, $address,
# $length.
serve() # METADATA NAME PLACE
{
	rm -f order said
	mkfifo order || exit
	: >said
	# What the client wrote by one connection it reads by another: that it came before is known
	# to the client, and not to two threads of the server, which the thread sanitizer looks at.
	[ "${TEST_FEWER-}" = 1 ] && local -x WHERRY_THREADS=1
	"$peer" serve "$1" "$2" "$3" <order >said 2>server.err &
	server=$!
	exec 8>order
	line=0
	answer
	read -r name address length <<<"$reply"
}

# Its next line.
answer()
{
	line=$((line + 1))
	for _ in $(seq 1200); do
		[ "$(wc -l <said)" -ge "$line" ] && break
		kill -0 "$server" 2>/dev/null || break
		sleep 0.05
	done
	reply=$(sed -n "${line}p" said)
}

ask() # COMMAND
{
	echo "$1" >&8
	answer
}

finish() # NAME
{
	exec 8>&-
	wait "$server"
	verdict "$1: the server ends with status 0" $?
	cat server.err
}
