# SPDX-License-Identifier: Apache-2.0
# For tests of wherry serve that are scripts, which source this after cases.sh and name the command
# in $wherry.
# shellcheck shell=bash

# Start a server: $url is its address, $server its process id.
serve() # ARGUMENTS...
{
	rm -f ready
	mkfifo ready
	"$wherry" serve "$@" >ready 2>serve.err &
	server=$!
	read -r url <ready
	rm ready
	if [ -z "$url" ]; then
		cat serve.err
		verdict "wherry serve $*" 1
		exit 1
	fi
}

stop()
{
	kill -TERM "$server"
	wait "$server"
}

# The command fails with STATUS, and stderr contains TEXT.
refused() # STATUS TEXT ARGUMENTS...
{
	local want=$1 text=$2 status

	shift 2
	timeout 60 "$wherry" "$@" >out 2>err
	status=$?
	[ "$status" = "$want" ] && grep -q -F -e "$text" err && return
	echo "wherry $*: status $status"
	cat err
	return 1
}
