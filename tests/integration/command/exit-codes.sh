#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Commands exit with the codes of the table in the README and the man pages: 69 if something does
# not exist or cannot be reached, 2 if it is reached and refuses or fails, 64 for a wrong command
# line.
set -u
wherry=$TEST_COMMAND
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"
mkdir -m 700 run
export WHERRY_OBSERVE=off WHERRY_CUDA=/nowhere.so XDG_RUNTIME_DIR=$directory/run

# COMMAND must exit with STATUS, print one line with TEXT on stderr (status 64: two lines, with the
# usage), and nothing on stdout.
ends() # STATUS TEXT COMMAND...
{
	local want=$1 text=$2 status lines=1

	shift 2
	timeout 200 "$@" >out 2>err
	status=$?
	[ "$want" = 64 ] && lines=2
	[ $status = "$want" ] && [ "$(wc -l <err)" = $lines ] && [ ! -s out ] &&
		grep -q -F -e "$text" err && return
	echo "$*: status $status, wanted $want with '$text'"
	cat out err
	return 1
}

# Every command that connects to an engine must exit in the same way.
all_end() # STATUS TEXT URL OPTIONS...
{
	local want=$1 text=$2 url=$3

	shift 3
	ends "$want" "$text" "$wherry" explain "$url" "$@" &&
		ends "$want" "$text" "$wherry" copy data "$url/host" "$@" &&
		ends "$want" "$text" "$wherry" copy "$url/host" back "$@" &&
		ends "$want" "$text" "$wherry" bench -s 8 --seconds 0.01 --peer "$url" "$@"
}

# Start a server: $url is its address, $server its process id.
start() # COMMAND...
{
	rm -f served
	"$@" >served 2>log &
	server=$!
	for _ in $(seq 1200); do
		[ -s served ] && break
		sleep 0.05
	done
	url=$(head -n 1 served)
	[ -n "$url" ] || { cat log; verdict "start: $*" 1; exit 1; }
}

head -c 4096 /dev/urandom >data
"$wherry" key make key >/dev/null && "$wherry" key make other >/dev/null || exit 1

# ---- the table -----------------------------------------------------------------------------------

"$wherry" --generate man:wherry | sed -n '/^\.SH EXIT STATUS/,/^\.SH ENV/p' |
	awk '/^\.TP/ { getline code; getline text; print code "|" text }' >table
[ "$(wc -l <table)" = 5 ] && sed -n 's/^| \([0-9]*\) | \(.*\) |$/\1|\2/p' "$TEST_SOURCE/README.md" |
	diff - table
verdict "README and man page have the same table" $?

# ---- 69: not there -------------------------------------------------------------------------------

all_end 69 "nowhere.invalid" wherry://nowhere.invalid:7000
verdict "69: an unknown host" $?
all_end 69 "refused" wherry://127.0.0.1:1
verdict "69: a refused connection" $?
start "$wherry" registry --listen 127.0.0.1:0
registry=$url
all_end 69 'no engine has the name "node9"' wherry://node9 -c "registry=$registry"
verdict "69: an unknown name" $?
all_end 69 "connect to 127.0.0.1 port 1" wherry://node9 -c registry=http://127.0.0.1:1
verdict "69: no registry" $?
start "$wherry" serve -m host:1MiB -n node1 -c "registry=$registry" -c keyfile=key -c lease=1s
plain=$url
all_end 69 "does not speak TLS" "$plain" -c keyfile=key -c tls=1
verdict "69: TLS on this side only" $?
start "$wherry" serve -m host:1MiB -c keyfile=key -c tls=1
all_end 69 "speaks TLS only" "$url" -c keyfile=key
verdict "69: TLS on the other side only" $?
ends 69 nowhere.so "$wherry" serve -m cuda:0:1MiB &&
	ends 69 nowhere.so "$wherry" explain cuda:0 host &&
	ends 69 nowhere.so "$wherry" bench --source cuda:0 &&
	ends 69 nowhere.so "$wherry" window check
verdict "69: no GPU" $?
# Refused at once: no memory is touched, no table printed, and the kernel kills no process.
kib=$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)
kib=$((kib + $(sed -n 's/^SwapTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)))
much=$((kib * 1025 / 1024 + 1048576))KiB
half=$((kib / 2 + 1048576))KiB
SECONDS=0
ends 69 "of memory, and there are" "$wherry" serve -m "host:$much" &&
	ends 69 "of memory, and there are" "$wherry" serve -m "host:$half" -m "pageable:$half" &&
	{ [ $kib -gt 1000000000 ] || ends 69 "of memory, and there are" "$wherry" bench \
	-s 1TiB; } &&
	ends 69 "of memory, and there are" "$wherry" bench -s 512MiB -w "$half" &&
	[ $SECONDS -lt 20 ]
verdict "69: not as much memory" $?
ends 69 "self" "$wherry" copy data "$plain/host" -c keyfile=key --require self
verdict "69: a route that is not available" $?
start "$wherry" serve -m host:1MiB
ended=$url
kill -KILL "$server"
wait "$server" 2>/dev/null
all_end 69 "refused" "$ended"
verdict "69: no more there" $?

# ---- 2: reached and refused, or failed -----------------------------------------------------------

all_end 2 "does not hold this engine's key" "$plain" -c keyfile=other
verdict "2: another key" $?
all_end 2 "does not hold this engine's key" wherry://node1 -c "registry=$registry" -c keyfile=other
verdict "2: another key, by name" $?
start "$wherry" serve -m host:1MiB -c keyfile=key -c tls=1
all_end 2 "key" "$url" -c keyfile=other -c tls=1
verdict "2: another key, by TLS" $?
ends 2 "no region 'hots'" "$wherry" explain "$plain/hots" -c keyfile=key &&
	ends 2 "no region 'hots'" "$wherry" copy data "$plain/hots" -c keyfile=key
verdict "2: no such region" $?
start "$wherry" serve -m host:1MiB -c keyfile=key --read-only
ends 2 "may not be written" "$wherry" copy data "$url/host" -c keyfile=key
verdict "2: a right that is not granted" $?
# The name could belong to a dead engine, so serve waits for the lease to end, and says so.
timeout 200 "$wherry" serve -m host:1MiB -n node1 -c "registry=$registry" >out 2>err
[ $? = 2 ] && [ ! -s out ] && grep -q "at most [0-9]* s more" err && tail -n 1 err |
	grep -q "is taken by a live engine"
verdict "2: a name that is taken" $?
all_end 2 "No such file" "$plain" -c keyfile=nowhere
verdict "2: a key file that is not there" $?
ends 2 "No such file" "$wherry" copy nowhere "$plain/host" -c keyfile=key
verdict "2: a file that is not there" $?

# ---- 64, and 0 -----------------------------------------------------------------------------------

all_end 64 "did you mean 'timeout'?" "$plain" -c tiemout=1s &&
	all_end 64 "brackets" wherry://::1:7000
verdict "64: a wrong line" $?
WHERRY_TIEMOUT=1s all_end 64 "did you mean WHERRY_TIMEOUT?" "$plain"
verdict "64: a wrong variable" $?
for command in "copy data $plain/host" "explain $plain" \
	"bench -s 8 --seconds 0.01 --peer $plain"; do
	# shellcheck disable=SC2086 # words
	timeout 200 "$wherry" $command -c keyfile=key >out 2>err ||
		{ cat err; verdict "0: $command" 1; }
done
verdict "0: done" 0
exit $failed
