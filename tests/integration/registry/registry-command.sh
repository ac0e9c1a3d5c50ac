#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: registry command bench-many
# wherry registry from outside: its verbs, its log over kill -9, what it refuses; and engines that
# have no registry. Takes the command's path as $1 or in $TEST_COMMAND.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
library=${TEST_LIBRARY:?the path of libwherry.so}
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"

# Start a registry; its URL goes to $url, its process to $server.
start() # OPTIONS...
{
	: >url
	"$wherry" registry --listen 127.0.0.1:0 "$@" >url 2>err &
	server=$!
	for _ in $(seq 1200); do
		url=$(cat url)
		[ -n "$url" ] && return
		kill -0 "$server" 2>/dev/null || break
		sleep 0.05
	done
	url=http://127.0.0.1:1
	cat err
}

stop() # SIGNAL
{
	kill "-$1" "$server"
	wait "$server" 2>/dev/null
}

cat >ask.py <<'PYTHON'
"""ask.py URL VERB PATH [BODY [USER:PASSWORD]]: the status, and the body of the answer."""
import base64
import sys
import urllib.error
import urllib.request

url, verb, path, body, secret = (sys.argv[1:] + ["", ""])[:5]
request = urllib.request.Request(url + path, body.encode() if verb == "PUT" else None, method=verb)
if secret:
    request.add_header("Authorization", "Basic " + base64.b64encode(secret.encode()).decode())
try:
    answer = urllib.request.urlopen(request)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode().strip())
PYTHON

# The answer to a request must match the pattern.
asks() # PATTERN VERB PATH [BODY [USER:PASSWORD]]
{
	local pattern=$1 said

	shift
	said=$(python3 ask.py "$url" "$@")
	# shellcheck disable=SC2254 # it is a pattern
	case $said in
	$pattern) ;;
	*)
		echo "$*: wanted $pattern, got $said"
		return 1
		;;
	esac
}

refused() # STATUS TEXT ARGUMENTS...
{
	local want=$1 text=$2 status

	shift 2
	timeout 200 "$wherry" "$@" >out 2>err
	status=$?
	[ "$status" = "$want" ] && grep -q -F -- "$text" err && [ "$(wc -l <err)" -le 2 ] && return
	echo "wherry $*: status $status, wanted $want with: $text"
	cat out err
	return 1
}

# ---- the verbs ---------------------------------------------------------------------------------

start
asks '404 *' GET '/?key=a' && asks '200 ok' PUT '/?key=a' one && asks '200 one' GET '/?key=a' &&
	asks '200 one' GET '/metadata?key=a' && asks '200 ok' PUT '/?key=a' two &&
	asks '200 two' GET '/?key=a' && asks '200 ok' DELETE '/?key=a' &&
	asks '404 *' DELETE '/?key=a'
verdict "put, get, delete" $?

asks '200 ok' PUT '/?key=n&lease=60000&owner=x' mine &&
	asks '409 mine' PUT '/?key=n&owner=y' other &&
	asks '409 *' DELETE '/?key=n&owner=y' && asks '409 *' DELETE '/?key=n' &&
	asks '200 ok' DELETE '/?key=n&owner=x' &&
	asks '200 ok' PUT '/?key=n&lease=300&owner=x' mine && sleep 0.4 &&
	asks '404 *' GET '/?key=n' &&
	asks '200 ok' PUT '/?key=n&lease=60000&owner=y' other
verdict "owners and leases" $?

asks '200 ok' PUT '/?key=p%2F1' 1 && asks '200 *"more": false*' GET '/?prefix=p/' &&
	python3 ask.py "$url" GET '/?prefix=p/' | cut -d ' ' -f 2- | python3 -c '
import json, sys
keys = json.load(sys.stdin)["keys"]
assert [k["key"] for k in keys] == ["p/1"] and keys[0]["bytes"] == 1, keys'
verdict "a list" $?

long=$(printf '%0513d' 0)
asks '400 *missing*' GET / && asks '404 *' GET '/other?key=a' && asks '405 *' POST '/?key=a' &&
	asks '400 *lease*' PUT '/?key=a&lease=0' &&
	asks '400 *lease*' PUT '/?key=a&lease=3600001' &&
	asks '400 *lease*' PUT '/?key=a&lease=1x' && asks '400 *512*' GET "/?key=$long" &&
	asks '400 *' GET '/?key=a%00b' && asks '400 *missing*' PUT '/?key=' x
verdict "wrong requests" $?

python3 - "$url" <<'PYTHON'
import http.client, sys, urllib.parse
host = urllib.parse.urlsplit(sys.argv[1]).netloc
def put(size):
    connection = http.client.HTTPConnection(host)
    connection.request("PUT", "/?key=big", b"v" * size)
    return connection.getresponse().status
assert put(1 << 20) == 200
assert put((1 << 20) + 1) == 413
PYTHON
verdict "a value of 1 MiB, and of one byte more" $?
stop TERM
verdict "it ends with status 0" $?

# ---- the log -----------------------------------------------------------------------------------

# What was confirmed before kill -9 is there afterwards, and what was deleted is not.
cat >writer.py <<'PYTHON'
import http.client, sys, urllib.parse
host, file = urllib.parse.urlsplit(sys.argv[1]).netloc, open(sys.argv[2], "a", buffering=1)
connection, first = http.client.HTTPConnection(host), int(sys.argv[3])
try:
    for i in range(first, first + 1000000):
        verb = "DELETE" if i % 7 == 6 else "PUT"
        key = i - 3 if verb == "DELETE" else i
        connection.request(verb, "/?key=%d" % key, b"%d" % i * (1 + i % 50) if verb == "PUT" else None)
        answer = connection.getresponse()
        answer.read()
        if answer.status == 200:
            file.write("%s %d %d\n" % (verb, key, i))
except (OSError, http.client.HTTPException):
    pass
PYTHON
cat >reader.py <<'PYTHON'
import http.client, sys, urllib.parse
connection = http.client.HTTPConnection(urllib.parse.urlsplit(sys.argv[1]).netloc)
expected = {}
for line in open(sys.argv[2]):
    verb, key, i = line.split()
    expected[int(key)] = (b"%d" % int(i) * (1 + int(i) % 50)) if verb == "PUT" else None
assert len(expected) > 10, "too few were written: %d" % len(expected)
last = {key // 1000000: key for key in sorted(expected)}
for key, value in expected.items():
    connection.request("GET", "/?key=%d" % key)
    answer = connection.getresponse()
    got = answer.read() if answer.status == 200 else (answer.read(), None)[1]
    # The last deletion before a kill may have been done without having been confirmed.
    assert got == value or (got is None and key > last[key // 1000000] - 7), (key, value, got)
PYTHON
code=0
: >written
for round in 1 2 3 4; do
	start --file log || code=1
	[ "$round" = 1 ] || python3 reader.py "$url" written || code=1
	python3 writer.py "$url" written "${round}000000" &
	writer=$!
	for _ in $(seq 1200); do
		[ "$(wc -l <written)" -ge $((round * 60)) ] && break
		sleep 0.05
	done
	sleep "0.0$round"
	stop KILL
	wait "$writer"
	# The end of it is what a power cut may leave.
	printf 'half an entry' >>log
	rm -f log.damaged
done
start --file log
[ -s log.damaged ] && grep -q 'warning: log was damaged' err && python3 reader.py "$url" written ||
	code=1
[ $code = 0 ]
verdict "the log over kill -9, and with a torn end" $?

refused 2 "another registry uses it" registry --listen 127.0.0.1:0 --file log
verdict "one log, one registry" $?
stop TERM

# ---- a name whose engine has died ----------------------------------------------------------------

started() # FILE
{
	for _ in $(seq 1200); do
		grep -q wherry:// "$1" && return
		sleep 0.05
	done
	return 1
}

# Its successor takes the name at once where it sees that the process has ended.
start
"$wherry" serve -m host:4KiB -n node7 -c "registry=$url" -c lease=300s >first 2>first.err &
first=$!
started first && kill -KILL $first
wait $first 2>/dev/null
"$wherry" serve -m host:4KiB -n node7 -c "registry=$url" >second 2>second.err &
second=$!
started second && [ ! -s second.err ]
verdict "a server takes the name of one that was killed on this host" $?
kill -TERM $second
wait $second

# Elsewhere it waits for the lease, and says so, without having been asked to.
asks '200 ok' PUT '/?key=wherry%2Fengine%2Fnode7&lease=3000&owner=0123456789abcdef' \
	'{"schema": 1, "name": "node7", "epoch": "0123456789abcdef", "address": "10.0.0.7:7000",
	"lease_ms": 3000}'
"$wherry" serve -m host:4KiB -n node7 -c "registry=$url" >second 2>second.err &
second=$!
started second && grep \
	-q -E "^wherry serve: warning: registry: $url: node7 is registered for an earlier engine, at $(
	)10.0.0.7:7000: waiting for its lease to end, at most [1-4] s more$" \
		second.err &&
	[ "$(wc -l <second.err)" = 1 ]
code=$?
[ $code = 0 ] || cat second second.err
verdict "a server that waits for an earlier one's lease says so, with the seconds left" $code
kill $second
wait $second 2>/dev/null
stop TERM

# ---- passwords ---------------------------------------------------------------------------------

echo me:sesame >auth
chmod 0644 auth
refused 2 "mode 0600" registry --listen 127.0.0.1:0 --auth auth
verdict "a password that others can read" $?
chmod 0600 auth
start --auth auth
asks '401 *' GET '/?key=a' && asks '401 *' PUT '/?key=a' x me:open &&
	asks '401 *' GET '/?key=a' '' me: &&
	asks '404 *' GET '/?key=a' '' me:sesame
verdict "a password" $?
refused 2 "a user and a password" serve -m host:4KiB -n node7 -c "registry=$url" &&
	! grep -q -F '?' err
verdict "an engine without it is told one line" $?
stop TERM

# ---- engines and registries that are not there -------------------------------------------------

refused 69 "connect to 127.0.0.1 port 1" serve -m host:4KiB -n node7 -c registry=http://127.0.0.1:1
verdict "no registry there" $?
! WHERRY_REGISTRY=redis://:sesame@127.0.0.1:1 "$wherry" serve -m host:4KiB -n node7 >out 2>&1 &&
	! grep sesame out && ! WHERRY_REGISTRY=http://me:sesame@h:1 "$wherry" config 2>&1 |
	grep sesame &&
	WHERRY_REGISTRY=http://me:sesame@h:1 "$wherry" config | grep -q -F 'http://***@h:1'
verdict "passwords are not shown" $?

# What explains itself, with a registry that takes the password and with one that does not answer.
start --auth auth
for registry in "${url/:\/\//://me:sesame@}" http://me:sesame@127.0.0.1:1 \
	redis://:sesame@127.0.0.1:1; do
	for line in "explain wherry://node7" "explain --json wherry://node7" \
		"explain wherry://127.0.0.1:1" \
		"copy wherry://node7/host out" "config" "config --json"; do
		# shellcheck disable=SC2086 # words
		WHERRY_REGISTRY=$registry "$wherry" $line
	done
done >out 2>&1
WHERRY_REGISTRY=${url/:\/\//://me:sesame@} "$wherry" serve -m host:4KiB -n node7 >name 2>&1 &
other=$!
for _ in $(seq 1200); do
	grep -q wherry:// name && break
	sleep 0.05
done
WHERRY_REGISTRY=${url/:\/\//://me:sesame@} "$wherry" explain wherry://node7 >found 2>&1 &&
	cat name found >>out && [ -s found ] && grep -q registry out &&
	! grep -i -e sesame -e bWU6c2VzYW1l out
verdict "nor explained" $?
grep -q "^peer *node7 at $(sed -n "s,^wherry://,,p" name), " found
verdict "explain by name tells the address" $?
kill "$other"
wait "$other" 2>/dev/null
stop TERM

# Servers that say what they were asked: what is there with a password may be it.
cat >echo.py <<'PYTHON'
"""echo.py STATUS FORM: answers each request with its headers and its body, in one of three forms."""
import http.server
import json
import sys

status, form = int(sys.argv[1]), sys.argv[2]


class Handler(http.server.BaseHTTPRequestHandler):
    def any(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode().replace('"', "")
        # The newest first, for only some of it is shown.
        said = f"{body} {self.headers['Authorization']}"
        said = {"text": said, "error": json.dumps({"error": said, "message": said, "code": 2}),
                "token": json.dumps({"token": "a\n" + said}), "cut": '{"token": "' + said}[form].encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_PUT = do_POST = do_DELETE = any

    def log_message(self, *arguments):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
PYTHON
told=0
for status in 200 400 401 500; do
	for form in text error token cut; do
		python3 echo.py "$status" "$form" >port &
		server=$!
		for _ in $(seq 1200); do
			[ -s port ] && break
			sleep 0.05
		done
		for kind in etcd http; do
			[ "$kind $status" = "http 200" ] && continue # that says that it is done
			timeout 200 "$wherry" serve -m host:4KiB -n node7 -c timeout=1000 \
				-c "registry=$kind://me:sesame@127.0.0.1:$(cat port)" >out 2>&1
			if ! grep -q registry out || grep -e sesame -e bWU6c2VzYW1l out; then
				echo "$kind, status $status, $form: $(cat out)"
				told=1
			fi
		done
		stop KILL
		rm port
	done
done
verdict "nor what servers answer to them" "$told"
refused 64 "\"ftp\"" serve -m host:4KiB -n node7 -c registry=ftp://127.0.0.1:1
verdict "a kind that there is not" $?
refused 64 "has no port" serve -m host:4KiB -n node7 -c registry=http://127.0.0.1
verdict "a URL without its port" $?
refused 64 "node 7" serve -m host:4KiB -n "node 7" -c registry=http://127.0.0.1:1
verdict "a name that cannot be registered" $?
refused 64 "not an IPv4 address" serve -m host:4KiB -n 10.0.0.1 -c registry=http://127.0.0.1:1
verdict "nor an address" $?
refused 2 "to use names, set registry=URL" copy wherry://node7/host out
verdict "a name and no registry" $?

# The library without its module. A sanitizer's library wants to come first, and the command finds
# its library by a path of its own.
mkdir alone && cp -L "$library" alone/libwherry.so.0
cat >alone.c <<'PROGRAM'
#include <stdio.h>
#include <errno.h>
#include <wherry/wherry.h>

int main(void)
{
	struct wh_engine_options options = { .size = sizeof(options), .registry = "http://127.0.0.1:1" };
	struct wh_engine *engine;
	int error = wh_engine_open(&options, &engine);

	puts(wh_error_text());
	return error != -ELIBACC;
}
PROGRAM
if nm -D alone/libwherry.so.0 | grep -q '__[at]san_'; then
	echo "the library is one of a sanitizer's: without its module it is not tried"
else
	# shellcheck disable=SC2086 # a compiler and its options
	${TEST_CC:-cc} -I "${TEST_SOURCE:?}/include" -I "${TEST_BUILD:?}/include" \
		alone.c alone/libwherry.so.0 -o alone/program &&
		LD_LIBRARY_PATH=alone ${TEST_START-} alone/program >out && grep -q 'libcurl4' out
	verdict "without the module it is said which packages are missing" $?
fi

exit $failed
