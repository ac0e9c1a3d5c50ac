#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The wherry command as users call it: wrong command lines, help, serve, copy, explain, config,
# bench. The command's path is $1 or $TEST_COMMAND.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"

# Run wherry: its exit status is stored in $status, its output in the files out and err.
run()
{
	timeout 200 "$wherry" "$@" >out 2>err
	status=$?
}

explain_failure() # TEXT
{
	echo "$1"
	echo "status $status, stdout:"
	head -n 20 out
	echo "stderr:"
	head -n 20 err
	return 1
}

# wherry ARGUMENTS must exit with STATUS. 0: stdout contains TEXT. Otherwise stdout is empty and
# stderr is one line that contains TEXT; for status 64 a second line shows the usage.
expect() # STATUS TEXT ARGUMENTS...
{
	local want=$1 text=$2 lines=1

	shift 2
	run "$@"
	[ "$status" = "$want" ] || explain_failure "wherry $*: wants status $want" || return
	if [ "$want" = 0 ]; then
		grep -q -F -e "$text" out || explain_failure "wherry $*: wants '$text'"
		return
	fi
	[ "$want" = 64 ] && lines=2
	[ "$(wc -l <err)" = "$lines" ] || explain_failure "wherry $*: not $lines lines" || return
	[ ! -s out ] || explain_failure "wherry $*: something on stdout" || return
	grep -q -F -e "$text" err || explain_failure "wherry $*: wants '$text'"
}

check() # NAME EXPECT-ARGUMENTS...
{
	local name=$1

	shift
	expect "$@"
	verdict "$name" $?
}

# Start a server: $url is its address, $server its process id.
serve() # ARGUMENTS...
{
	local i

	# The previous server's output must not be read: the shell may truncate the file late.
	rm -f serve.out
	"$wherry" serve "$@" >serve.out 2>serve.err &
	server=$!
	for ((i = 0; i < 1200; i++)); do
		[ -s serve.out ] && break
		sleep 0.05
	done
	url=$(head -n 1 serve.out)
	if [ -z "$url" ]; then
		cat serve.err
		verdict "wherry serve $*" 1
		exit 1
	fi
}

stop() # SIGNAL: returns the server's exit status
{
	kill "-$1" "$server"
	wait "$server"
}

digest() # FILE
{
	sha256sum "$1" | cut -d ' ' -f 1
}

# ---- wrong command lines ------------------------------------------------------------------------

wrong_lines()
{
	local bad=0 text line words

	while IFS='|' read -r text line; do
		read -r -a words <<<"$line"
		expect 64 "$text" "${words[@]}" || bad=1
	done <<-'LINES'
		did you mean 'wherry copy'?|coppy a b
		did you mean 'wherry serve'?|serv
		did you mean 'wherry explain'?|help explian
		no command 'frobnicate'|frobnicate
		did you mean 'wherry --version'?|--verison
		no option '--frobnicate'|--frobnicate
		one operand too many|--version now
		write man:wherry|--generate nonsense
		did you mean --memory?|serve --memroy host:1MiB
		use --memory|serve
		has no size|serve --memory host
		'gpu:1GiB' starts with no kind|serve --memory gpu:1GiB
		not a size|serve --memory host:1XB
		size of 0|serve --memory host:0
		other characters|serve --memory host:1MiB:a/b
		two regions are named 'a'|serve --memory host:1MiB:a --memory huge:2MiB:a
		needs a value|serve --memory host:1MiB --listen
		takes no value|serve --memory host:1MiB --read-only=yes
		given twice|serve --memory host:1MiB --name a --name b
		must listen|serve --memory host:1MiB --listen none
		takes no operand|serve --memory host:1MiB extra
		no setting 'conections'; did you mean 'connections'?|serve -m host:1MiB -c conections=2
		has no value|serve --memory host:1MiB --config spin
		connections=many|serve --memory host:1MiB --config connections=many
		did you mean 'shm'?|serve --memory host:1MiB --require shn
		operands are missing: write SRC... DST (only one is given)|copy a
		between files use cp|copy a b c
		which copies without an engine|copy a b
		names no region|copy a wherry://127.0.0.1:7000
		names no port|copy a wherry://127.0.0.1/host
		names no host|copy a wherry://:7000/host
		brackets|copy a wherry://::1:7000/host
		start with wherry://|copy a http://127.0.0.1:7000/host
		offset that is not a size|copy a wherry://127.0.0.1:7000/host+x
		--length: at least 1|copy a wherry://127.0.0.1:7000/host --length 0
		--length: 'x' is not a size|copy a wherry://127.0.0.1:7000/host --length x
		--chunk: 1 is not between|copy a wherry://127.0.0.1:7000/host --chunk 1
		--connections: 0 is not between 1 and 64|copy a wherry://h:1/x --connections 0
		--transport names shm|copy a wherry://127.0.0.1:7000/host -t shm --require tcp
		--verify reads the copy back|copy wherry://127.0.0.1:7000/host - --verify
		needs the address|explain
		is no address|explain 127.0.0.1:7000
		either --errno or|explain --errno 5 wherry://127.0.0.1:7000
		is no errno|explain --errno 99999
		takes no operand|config now
		no setting 'x'|config --config x=1
		write one of: read write both|bench --op sideways
		'0' is not from 1 to 1 TiB|bench --size 0
		'x' is not a size|bench --size 8,x
		did you mean 'tcp'?|bench --transport tpc
		--connections: 0 is not between|bench --connections 0
		'many' is not a number|bench --blocks many
		starts with no kind of memory|bench --memory hots
		not a number from 0.01|bench --seconds 0
		does not start with wherry://|bench --peer nowhere
		takes no operand|bench extra
		--list needs --blocks|bench --list
		--json needs a value|bench --json
	LINES
	return $bad
}
wrong_lines
verdict "wrong command lines exit 64 and say what to type" $?
run
[ "$status" = 64 ] && [ -s err ] && [ ! -s out ]
verdict "no command at all" $?

# A secret on a command line is refused before it is used, and the error does not repeat it.
secrets()
{
	local key line text words bad=0

	key=$(printf 'beef%.0s' {1..16})
	while IFS='|' read -r text line; do
		read -r -a words <<<"$line"
		expect 64 "$text" "${words[@]}" || bad=1
		! grep -e beef -e sesame err || bad=1
	done <<-LINES
		use --config keyfile=FILE, or set WHERRY_KEY|serve -m host:4KiB -c key=$key
		use --config keyfile=FILE|serve -m host:4KiB -ckey=$key
		use --config keyfile=FILE|copy a wherry://127.0.0.1:1/host --config=key=$key
		use --config keyfile=FILE|bench --config key=sesame
		use --config keyfile=FILE|explain wherry://127.0.0.1:1 -c spin=1 -c key=$key
		use --config keyfile=FILE|window check -c key=$key
		use --config keyfile=FILE|config -c key=$key
		set WHERRY_REGISTRY instead|config -c registry=http://me:sesame@127.0.0.1:1
		set WHERRY_REGISTRY instead|serve -m host:4KiB -n a -c registry=redis://:sesame@127.0.0.1:1
		set WHERRY_REGISTRY instead|copy a wherry://a/b -c registry=etcd://me:ses/sesame@127.0.0.1:1
		set WHERRY_REGISTRY instead|explain wherry://a -c registry=me:sesame@127.0.0.1
		--mooncake-metadata @FILE|serve -m host:4KiB --mooncake-metadata http://me:sesame@127.0.0.1:1/m
		--mooncake-metadata @FILE|copy a mooncake://b/1 --mooncake-metadata redis://:sesame@127.0.0.1:1
	LINES
	return $bad
}
secrets
verdict "no secret is taken from a command line" $?
expect 0 WHERRY_KEY config -c key= -c registry=http://127.0.0.1:1 -c keyfile=
verdict "what is no secret is taken" $?

# ---- help, man pages, completion -----------------------------------------------------------------

mapfile -t commands < <("$wherry" --help | sed -n '/^Commands:/,/^$/ s/^  \([a-z]*\) .*/\1/p')
[ "${#commands[@]}" -ge 5 ]
verdict "help lists the commands" $?
check "version" 0 "wherry " --version

fits() # LINES COMMAND...
{
	local most=$1

	shift
	run "$@"
	if [ "$status" != 0 ] || [ ! -s out ] || [ -s err ] ||
		[ "$(wc -l <out)" -gt "$most" ] || [ "$(wc -L <out)" -ge 80 ]; then
		explain_failure "wherry $*: $(wc -l <out) lines of $(wc -L <out)"
	fi
}
fits 24 --help
verdict "help fits on a screen" $?
for command in "${commands[@]}"; do
	fits 24 help "$command" && cp out help && fits 24 "$command" --help && cmp out help &&
		grep -q '^Examples:' help
	verdict "help of $command fits on a screen" $?
done

pages()
{
	local page bad=0

	for page in wherry "${commands[@]}"; do
		run --generate "man:$page"
		[ "$status" = 0 ] && [ -s out ] || explain_failure "man:$page" || bad=1
		if command -v mandoc >/dev/null; then
			mandoc -T lint -W warning out || bad=1
		fi
	done
	return $bad
}
pages
verdict "man pages" $?

# Bash splits --transport=t into the words --transport = t.
completes() # WORDS... WANTED: the completions of the last word, separated by spaces
{
	local wanted=${*: -1}

	COMP_WORDS=("${@:1:$#-1}")
	COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
	_wherry
	[ "${COMPREPLY[*]}" = "$wanted" ] && return
	echo "${COMP_WORDS[*]}: ${COMPREPLY[*]}"
	return 1
}

completion()
{
	run --generate completion
	[ "$status" = 0 ] || explain_failure completion || return
	bash -n out || return
	# shellcheck source=/dev/null
	. ./out
	complete -p wherry >/dev/null &&
		completes wherry ser serve &&
		completes wherry help con config &&
		completes wherry serve --re '--read-only --require' &&
		completes wherry copy --transport t tcp &&
		completes wherry copy --transport = t tcp &&
		completes wherry copy --transport = 'self cuda shm rdma tcp local' &&
		completes wherry serve --config connecti connections= &&
		completes wherry copy o out &&
		completes wherry window ch check &&
		completes wherry serve --listen x ''
}
completion
verdict "completion" $?

# ---- config, errno -------------------------------------------------------------------------------

check "config shows the settings" 0 WHERRY_CONNECTIONS config
WHERRY_CONNECTIONS=7 check "config shows the environment" 0 "7 (environment)" config
check "config shows the command line" 0 "9 (command line)" config --config connections=9
narrow()
{
	WHERRY_REGISTRY=http://a-host-with-a-long-name.example:12345 expect 0 "(environment)" \
		config \
		--config transports=self,cuda,shm,rdma,tcp && [ "$(wc -L <out)" -le 80 ] &&
		grep -q '^KNOB  *ENVIRONMENT  *TYPE  *VALUE$' out &&
		grep -q '^connections  *WHERRY_CONNECTIONS  *count  *4$' out &&
		grep -q '^    self,cuda,shm,rdma,tcp (command line)$' out &&
		grep -q 'by default p2p$' out
}
narrow
verdict "config can be read at 80 columns" $?
check "config as JSON" 0 '"schema": 1' config --json
refused_value()
{
	WHERRY_CONNECTIONS=many run config
	if [ "$status" != 64 ] || ! grep -q WHERRY_CONNECTIONS=many err; then
		explain_failure "WHERRY_CONNECTIONS=many"
	fi
}
refused_value
verdict "config names a wrong value" $?
check "an errno by number" 0 "ECONNREFUSED (111)" explain --errno -111
check "an errno by name" 0 "In Wherry" explain --errno estale
full_output()
{
	[ -e /dev/full ] || return 0
	"$wherry" config >/dev/full 2>err
	[ $? = 2 ] && [ "$(wc -l <err)" = 1 ]
}
full_output
verdict "a full standard output is an error" $?

# ---- serve ---------------------------------------------------------------------------------------

for signal in TERM INT; do
	serve --memory host:1MiB
	[[ $url =~ ^wherry://127\.0\.0\.1:[0-9]+$ ]]
	verdict "serve prints its address" $?
	stop $signal
	verdict "serve ends well at SIG$signal" $?
	[ "$(wc -l <serve.out)" = 1 ] && [ ! -s serve.err ]
	verdict "serve prints one line ($signal)" $?
done

notify=${TEST_BUILD:-.}/examples/example-notify
if [ -x "$notify" ]; then
	serve --memory host:8MiB:mailbox --notifications
	"$notify" send "$url"
	for _ in $(seq 1200); do # it has arrived, but another thread prints it
		[ "$(wc -l <serve.out)" = 1 ] || break
		sleep 0.05
	done
	stop TERM && [ "$(wc -l <serve.out)" = 2 ] &&
		grep -q -x 'sender 0x1 13 8 MiB for you' serve.out
	verdict "serve prints notifications" $?
fi

# ---- copy ----------------------------------------------------------------------------------------

head -c 20000003 /dev/urandom >data
data=$(digest data)
serve --memory host:32MiB --memory pageable:32MiB:plain --memory huge:32MiB --memory host:32MiB
host=$url/host

round_trip() # REGION COPY-OPTIONS...
{
	local region=$1

	shift
	rm -f back
	expect 0 "$data" copy "$@" --verify data "$url/$region+5" &&
		expect 0 "copied" copy "$@" --length 20000003 "$url/$region+5" back &&
		[ "$(digest back)" = "$data" ]
}
for transport in shm tcp; do
	round_trip host1 --transport $transport
	verdict "round trip by $transport" $?
	grep -q "^read by $transport" out
	verdict "copy says that it went by $transport" $?
	round_trip host --require $transport --chunk 64KiB --connections 2
	verdict "round trip by $transport in small chunks" $?
done
for region in plain huge; do
	round_trip $region --transport tcp && round_trip $region
	verdict "round trip through $region memory" $?
done
# Only --verbose, --json and explain report refusals of transports that never apply.
plain_routes()
{
	expect 0 "by shm" copy data "$host" && ! grep -q '^not by' out &&
		expect 0 "by tcp" copy data "$host" -t tcp && ! grep -q '^not by' out &&
		expect 0 "not by self: " copy data "$host" -v && grep -q 'is another engine' out &&
		expect 0 "not by shm: another transport is required" copy data "$host" -t tcp -v &&
		expect 0 '"inapplicable": true' copy data "$host" --json &&
		expect 0 "is another engine" explain "$host"
}
plain_routes
verdict "refusals that surprise nobody are for --verbose" $?
check "a route that cannot be" 69 "self" copy data "$host" --transport self
"$wherry" copy - "$host" --verify <data >out 2>err && grep -q "$data" out
verdict "from standard input" $?
"$wherry" copy "$host" - --length 20000003 2>err | cmp - data && grep -q '^copied' err
verdict "to standard output" $?
expect 0 "copied" copy "$host" "$url/host1" && expect 0 copied copy "$url/host1" back &&
	cmp <(head -c 20000003 back) data
verdict "from region to region" $?

# Copy between overlapping ranges of one region: the result is as if the source had been copied to
# a buffer first.
overlaps() # FROM TO OPTIONS...
{
	local from=$1 to=$2 length=9000001

	shift 2
	expect 0 copied copy data "$host" &&
		expect 0 copied copy "$host+$from" "$host+$to" --length $length "$@" &&
		expect 0 copied copy "$host" back --length 20000003 || return
	cp data wanted
	tail -c "+$((from + 1))" data | head -c $length |
		dd of=wanted bs=64K seek="$to" oflag=seek_bytes conv=notrunc status=none
	cmp back wanted
}
for transport in shm tcp; do
	overlaps 0 1000 --transport $transport && overlaps 1000 0 --transport $transport &&
		overlaps 5 4500000 --transport $transport --chunk 64KiB &&
		overlaps 4500000 5 --transport $transport --chunk 64KiB &&
		overlaps 7 7 --transport $transport --verify &&
		overlaps 0 9000001 --transport $transport --verify
	verdict "from a region onto itself by $transport" $?
done
check "... with nothing to compare" 2 "overwrites its source" copy "$host" "$host+1" --length 10 \
	--verify
: >empty
check "an empty file" 0 "copied 0 bytes" copy empty "$host"
check "as JSON" 0 '"verified": true' copy data "$host" --verify --json
quiet()
{
	run copy data "$host" --quiet
	if [ "$status" != 0 ] || [ -s out ] || [ -s err ]; then
		explain_failure "copy --quiet"
	fi
}
quiet
verdict "quiet" $?

parts()
{
	local options=(--offset 3000 --length 1000)

	head -c 8000 /dev/zero | tr '\0' z >target
	{ head -c 3000 target; tail -c +5001 data | head -c 1000; tail -c 4000 target; } >wanted
	expect 0 "copied 1000 bytes" copy data "$host" --offset 5000 --length 1000 &&
		expect 0 copied copy "$host" target --verify "${options[@]}" && cmp target wanted
}
parts
verdict "part of a file into the middle of a file" $?

links()
{
	echo old >real && chmod 640 real && ln -s real link &&
		expect 0 copied copy "$host" link --length 10 && [ -L link ] &&
		[ "$(stat -c %s:%a real)" = 10:640 ]
}
links
verdict "a link stays, and so does the mode" $?

# Another process writes into the region during the copy: --verify must notice.
spoilt()
{
	local copy i

	mkfifo spoilt
	"$wherry" copy spoilt "$host" --verify >out 2>err &
	copy=$!
	exec 8>spoilt
	head -c 8M data >&8
	for ((i = 0; i < 200; i++)); do
		"$wherry" copy "$host+4000000" - --length 1000 2>/dev/null |
			cmp -s - <(tail -c +4000001 data | head -c 1000) && break
	done
	"$wherry" copy data "$host" --offset 9 --length 5 >/dev/null
	exec 8>&-
	wait $copy
	status=$?
	if [ $status != 2 ] || ! grep -q 'the copy is wrong' err; then
		explain_failure "a spoilt copy"
	fi
}
spoilt
verdict "verify sees a wrong copy" $?

# ---- copy that fails -----------------------------------------------------------------------------

check "a file that is not there" 2 "No such file" copy nowhere "$host"
check "a directory as the source" 2 "is a directory" copy . "$host"
check "a directory as the target" 2 "is a directory" copy "$host" .
check "a directory that is not there" 2 "No such file" copy "$host" nowhere/file
check "a region that is not there" 2 "no region 'hots'; the peer lists host" copy data "$url/hots"
check "an offset outside the region" 2 "33554432 bytes" copy data "$host+64MiB"
check "a file larger than the region" 2 "has room for 1048576 bytes" copy data "$host+31MiB"
check "an offset outside the file" 2 "nothing at offset" copy data "$host" --offset 30000000
check "more than the file has" 2 "has 20000003 bytes" copy data "$host" --length 20000004
check "more than the region has" 2 "not 33554433" copy "$host" back --length 33554433
run copy - "$host+31MiB" < <(yes)
[ "$status" = 2 ] && grep -q "is full" err
verdict "a stream larger than the region" $?
[ ! -e /dev/full ] || check "a full device" 2 "No space left" copy "$host" /dev/full

too_large()
{
	local files

	echo precious >target
	files=$(ls -A)
	(ulimit -f 1000 && expect 2 "File too large" copy "$host" target) || return
	[ "$(cat target)" = precious ] && [ "$files" = "$(ls -A)" ]
}
too_large
verdict "a file that cannot grow leaves the old one" $?

# Nobody listens on the port of a server that has ended.
serve --memory host:1MiB
gone=$url
stop TERM
for command in "copy data $gone/host" "explain $gone"; do
	read -r -a words <<<"$command"
	check "refused: ${words[0]}" 69 "refused" "${words[@]}"
done
check "a name that does not exist" 69 "nowhere.invalid" explain wherry://nowhere.invalid:7000

# An engine of another protocol version, which refuses (ANSWER refused) or answers in its own
# version.
other_version() # TEXT ANSWER
{
	local port command

	: >port
	python3 -c 'import socket, struct, sys
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
while True:
    c = s.accept()[0]
    c.recv(4096)
    body = struct.pack("<I", 93) + b"this engine speaks 9" if sys.argv[1] == "refused" else \
        struct.pack("<IHH", 0x59524857, 9, 9) + b"more"
    c.sendall(struct.pack("<IHH", len(body), 3 if sys.argv[1] == "refused" else 2, 0) + body)
    c.close()' "$2" >port 2>/dev/null &
	server=$!
	for _ in $(seq 1200); do
		[ -s port ] && break
		sleep 0.05
	done
	port=$(cat port)
	for command in "copy data wherry://127.0.0.1:$port/host" \
		"explain wherry://127.0.0.1:$port" \
		"bench ${quick[*]} --peer wherry://127.0.0.1:$port"; do
		read -r -a words <<<"$command"
		expect 69 "$1" "${words[@]}" && [ "$(wc -l <err)" = 1 ]
		verdict "another version ($2): ${words[0]}" $?
	done
	kill "$server"
	wait "$server" 2>/dev/null
}
quick=(--size 8 --seconds 0.05 --working-set 64KiB)
other_version "refuses: this engine speaks 9" refused
other_version "answers in protocol version 9, this engine speaks 5: one of them is newer" welcome

# A process of this host that shm does not reach is no silent slow path.
unreached()
{
	expect 0 "not by shm: " copy data "$url/host" --length 1000 && grep -q 'switched off' out &&
		grep -q '^wherry copy: warning: peer: .* is on this host, but shm does not' err &&
		[ "$(wc -l <err)" = 1 ]
}
serve --memory host:1MiB -c transports=tcp
unreached
verdict "a server without shm: a warning, and the reason" $?
expect 0 " is on this host, but shm does not" explain "$url" && grep -q '^warning: ' out &&
	expect 0 '"warnings"' explain "$url" --json &&
	python3 -c 'import json; found = json.load(open("out"))["warnings"]
assert len(found) == 1 and "is on this host, but shm does not" in found[0], found'
verdict "explain repeats the warning" $?
stop TERM

serve --memory host:1MiB --verbose
python3 -c 'import socket, struct, sys
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
body = struct.pack("<IHH", 0x59524857, 9, 9) + b"more"
c.sendall(struct.pack("<IHH", len(body), 1, 0) + body)
assert b"versions 9 to 9 requested" in c.recv(500)' "${url##*:}" &&
	grep -q "connection refused: protocol versions 9 to 9 requested, this engine speaks" serve.err
verdict "another version asks serve" $?
stop TERM

serve --memory host:32MiB --read-only
check "a read-only region" 2 "may not be written" copy data "$url/host"
expect 0 copied copy "$url/host" back
verdict "a read-only region can be read" $?

# A stopped server keeps the copy waiting, with its temporary file.
interrupted()
{
	local copy i temporary=(.stuck.*)

	kill -STOP "$server"
	"$wherry" copy "$url/host" stuck --transport tcp --config timeout=60s >out 2>err &
	copy=$!
	for ((i = 0; i < 60 && ${#temporary[@]} == 0; i++)); do
		sleep 0.05
		temporary=(.stuck.*)
	done
	kill -TERM $copy
	wait $copy
	[ $? = 143 ] && [ ! -e stuck ] && temporary=(.stuck.*) && [ ${#temporary[@]} = 0 ]
}
shopt -s nullglob
interrupted
verdict "an interrupted copy leaves nothing" $?

killed()
{
	local copy begun pipe=feed

	kill -CONT "$server"
	stop TERM
	serve --memory host:64MiB
	mkfifo $pipe
	"$wherry" copy $pipe "$url/host" --transport tcp >out 2>err &
	copy=$!
	exec 9>$pipe
	head -c 16M /dev/zero >&9
	kill -KILL "$server"
	wait "$server"
	begun=$(quiet_seconds)
	head -c 40M /dev/zero 2>/dev/null >&9
	exec 9>&-
	wait $copy
	status=$?
	if [ $status != 69 ] || [ $(($(quiet_seconds) - begun)) -ge 10 ] ||
		[ "$(wc -l <err)" != 1 ]; then
		explain_failure "a killed server"
	fi
}
trap '' PIPE
killed 2>/dev/null
verdict "a killed server is an error" $?
trap - PIPE

leftovers=(.[a-z]*)
[ "${#leftovers[@]}" = 0 ]
verdict "no temporary file is left" $?

# ---- explain -------------------------------------------------------------------------------------

serve --memory host:32MiB --memory pageable:1MiB:plain --name friend
check "explain names the peer" 0 "friend" explain "$url"
for word in plain "32 MiB" shm routes "self:"; do
	grep -q -F -e "$word" out
	verdict "explain says $word" $?
done
grep -q "^regions  2$" out
verdict "explain counts the regions" $?
check "explain one region" 0 "plain" explain "$url/plain"
check "explain a region that is not there" 2 "no region" explain "$url/hots"
check "explain as JSON" 0 '"transport": "shm"' explain "$url" --json
grep -q '"schema": 1' out
verdict "explain's JSON has a schema" $?
check "explain with a requirement" 0 "tcp" explain "$url" --require tcp

# ---- ls ------------------------------------------------------------------------------------------

check "ls lists the regions" 0 "plain" ls "$url"
grep -q -E "^0x[0-9a-f]{16} 0x[0-9a-f]{16} 1 MiB +pageable  rw +plain$" out
verdict "ls shows id, address, size, kind, rights and name" $?
check "ls as JSON" 0 '"name": "plain"' ls "$url" --json
check "ls of a region" 2 "is a region, not a directory" ls "$url/plain"
check "ls of nobody" 69 "cannot reach" ls wherry://127.0.0.1:1

# ---- bench ---------------------------------------------------------------------------------------

# The JSON has rows for exactly the requested values, and every key that docs and tools use.
measured()
{
	python3 - "$1" "$2" <<'END'
import json, sys

rows = json.load(open(sys.argv[1]))
asked = json.loads(sys.argv[2])
keys = {"op", "source", "target", "transport", "size_bytes", "blocks", "connections", "bandwidth_GBps",
        "latency_us", "verified", "limit_name", "limit_GBps", "limit_us", "ratio"}
assert rows["schema"] == 1 and rows["environment"] and rows["results"]
for row in rows["results"]:
    assert keys <= row.keys(), keys - row.keys()
    assert {"p50", "p99", "p999"} == row["latency_us"].keys()
    assert row["bandwidth_GBps"] > 0 and row["latency_us"]["p50"] > 0, row
    for key, values in asked.items():
        assert row[key] in values, (key, row[key])
for key, values in asked.items():
    assert {row[key] for row in rows["results"]} == set(values), key
END
}
quick=(--seconds 0.02 --size '8,4KiB')
check "bench both ways, over several connections" 0 "verified" bench "${quick[@]}" --transport tcp \
	--op both \
	--connections 1,2 --spin --pin --limits --verify --json bench.json
measured bench.json '{"op": ["read", "write"], "size_bytes": [8, 4096], "connections": [1, 2],
	"transport": ["tcp"], "blocks": [1], "verified": [true], "limit_name": ["send/recv"], "mode": ["spinning"]}'
verdict "... and its JSON" $?
check "bench of another process" 0 "tcp" bench "${quick[@]}" --peer "$url" --transport tcp \
	--op write \
	--blocks 16 --json bench.json
measured bench.json '{"op": ["write"], "size_bytes": [8, 4096], "blocks": [16], "transport": ["tcp"]}'
verdict "... and its JSON" $?
check "bench against memcpy" 0 "shm" bench "${quick[@]}" --transport shm --op write --limits \
	--json bench.json
measured bench.json '{"op": ["write"], "size_bytes": [8, 4096], "transport": ["shm"],
	"limit_name": ["memcpy"], "limit_threads": ['"$(nproc)"'], "limit_copy_GBps": [null]}'
verdict "... by a thread on each CPU" $?
# A thread on each CPU: on four of a machine that is pretended (meson test --setup machine), as the
# threads of 64 would keep the CPUs that there are busy for minutes.
pretended=${FAKE_CPUS-}
[ -z "$pretended" ] || export FAKE_CPUS=4
check "bench beside other work" 0 "beside compute: it has" bench --seconds 0.2 -s 64KiB -t shm \
	--op write --beside cpu --json bench.json
python3 - <<'END'
import json, os
row, = json.load(open("bench.json"))["results"]
assert [b["load"] for b in row["beside"]] == ["memory", "compute"], row
for b in row["beside"]:
    assert b["threads"] == len(os.sched_getaffinity(0)) and b["alone"] > 0 and b["beside"] > 0, b
    assert b["share"] > 0 and b["transfer_alone_GBps"] > 0 and b["transfer_beside_GBps"] > 0, b
END
verdict "... and its JSON" $?
[ -z "$pretended" ] || export FAKE_CPUS=$pretended
check "bench beside what it does not know" 64 "no 'disk'" bench --beside cpu,disk
check "bench beside a library that it does not need" 64 "no 'cpu=x'" bench --beside cpu=x
check "bench beside too much" 64 "each load once" bench --beside cpu,cpu,cpu
check "bench of a process that is not there" 69 "refused" bench "${quick[@]}" \
	--peer wherry://127.0.0.1:1
if [ -e /dev/full ]; then
	run bench "${quick[@]}" --transport self --json /dev/full
	[ "$status" = 2 ] && [ "$(cat err)" = \
		"wherry bench: cannot write /dev/full: No space left on device" ]
	verdict "bench into a full disk" $?
fi

# ---- IPv6 ----------------------------------------------------------------------------------------

if [ -e /proc/net/if_inet6 ] && grep -q ' lo$' /proc/net/if_inet6; then
	serve --memory host:32MiB --listen '[::1]:0'
	[[ $url == wherry://\[::1\]:* ]] && round_trip host --transport tcp
	verdict "round trip over IPv6" $?
fi
check "a port that is taken" 2 "use" serve --memory host:1MiB --listen "${url#wherry://}"
exit $failed
