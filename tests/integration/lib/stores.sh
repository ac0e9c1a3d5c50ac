# SPDX-License-Identifier: Apache-2.0
# Metadata stores for scripts that have sourced cases.sh. Both servers run in the background, in the
# current directory, and end with the script.
# shellcheck shell=bash

# Start a Redis server with a password and wait until it is ready.
start_redis() # PORT PASSWORD
{
	redis-server --bind 127.0.0.1 --port "$1" --requirepass "$2" --save '' --dir . \
		>redis.log 2>&1 &
	for _ in $(seq 1200); do
		grep -q 'Ready to accept' redis.log && return
		sleep 0.05
	done
	return 1
}

# Start an etcd server and wait until it answers.
start_etcd() # PORT
{
	etcd --data-dir etcd.data --listen-client-urls "http://127.0.0.1:$1" --log-level error \
		--advertise-client-urls "http://127.0.0.1:$1" \
		--listen-peer-urls http://127.0.0.1:0 >etcd.log 2>&1 &
	for _ in $(seq 1200); do
		python3 -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=5)' \
			"http://127.0.0.1:$1/version" >/dev/null 2>&1 && return
		sleep 0.1
	done
	return 1
}
