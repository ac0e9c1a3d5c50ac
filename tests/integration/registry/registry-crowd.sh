#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: registry command bench-many
# wherry registry among clients that do not read, do not finish what they begin, and come by the
# hundred: its memory stays bounded and an engine keeps its name. And engines whose registry says
# 503 for a while.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"

wait_for() # FILE PATTERN
{
	: >>"$1"
	for _ in $(seq 1200); do
		grep -q -- "$2" "$1" && return
		sleep 0.05
	done
	cat "$1"
	return 1
}

: >url
"$wherry" registry --listen 127.0.0.1:0 >url 2>err &
registry=$!
wait_for url http || exit 1
url=$(cat url)

cat >clients.py <<'PYTHON'
"""Clients of a registry, and what they want to see."""
import contextlib, http.client, json, os, select, socket, sys, time, urllib.parse

PLACE = urllib.parse.urlsplit(sys.argv[1])
REGISTRY = int(sys.argv[2])
MIB = 1 << 20
SLOW = "TEST_SLOW" in os.environ


def call(verb, path, body=None, address=None):
    connection = http.client.HTTPConnection(PLACE.hostname, PLACE.port, timeout=30,
                                            source_address=(address, 0) if address else None)
    with contextlib.closing(connection):
        connection.request(verb, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers


def memory(kind):
    with open(f"/proc/{REGISTRY}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(kind))


def bounded(before, room, what):
    grown = memory("VmHWM:") - before
    print(f"{what}: {grown / MIB:.1f} MiB more")
    assert SLOW or grown < room, f"{what} took {grown / MIB:.1f} MiB"


def send(text, address="127.0.0.1"):
    s = socket.socket()
    # So that little of the answer is taken for it.
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(30)
    s.bind((address, 0))
    s.connect((PLACE.hostname, PLACE.port))
    s.sendall(text.encode())
    return s


def statuses(sockets):
    """What the answers, of which no more is read, begin with."""
    found = {}
    for s in sockets:
        status = s.recv(12).decode().split()[1:]
        status = status[0] if status else "closed"
        found[status] = found.get(status, 0) + 1
    return found


def keeps_its_name(seconds):
    """For as long, the engine's record is there whenever somebody looks, and nobody waits for it."""
    until, worst = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        started = time.monotonic()
        status, body, _ = call("GET", "/?key=wherry%2Fengine%2Fnode7")
        worst = max(worst, time.monotonic() - started)
        assert status == 200 and json.loads(body)["epoch"] == EPOCH, (status, body)
        time.sleep(0.05)
    print(f"the longest look took {worst * 1000:.0f} ms")


EPOCH = json.loads(call("GET", "/?key=wherry%2Fengine%2Fnode7")[1])["epoch"]
PYTHON

"$wherry" serve -v -m host:64KiB -n node7 -l 127.0.0.1:0 -c "registry=$url" -c lease=1500ms \
	>serve.out 2>serve.err &
wait_for serve.out wherry:// || exit 1

# ---- lists -------------------------------------------------------------------------------------

cat >lists.py <<'PYTHON'
from clients import *

# A list of 10 MiB: each key has 500 characters of which JSON makes two.
connection = http.client.HTTPConnection(PLACE.hostname, PLACE.port)
for i in range(9999):
    connection.request("PUT", "/?key=" + "%22" * 500 + "%d" % i, b"")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200
connection.close()
before = memory("VmRSS:")
unread = [send("GET /?prefix= HTTP/1.1\r\nHost: x\r\n\r\n", f"127.0.0.{1 + i % 4}") for i in range(200)]
keeps_its_name(4)
found = statuses(unread)
print(found)
assert set(found) == {"200", "503"} and 32 <= found["200"] <= 199, found
bounded(before, 16 * MIB, "200 lists that are not read")
status, body, headers = call("GET", "/?prefix=")
assert status == 503 and headers["Retry-After"] == "1", (status, body)
for s in unread:
    s.close()
# As soon as they have gone there are lists again, and whole ones.
until = time.monotonic() + 30
while status == 503 and time.monotonic() < until:
    status, body, _ = call("GET", "/?prefix=")
keys = json.loads(body)
assert status == 200 and len(keys["keys"]) == 10000 and not keys["more"], (status, len(body))
assert len({key["key"] for key in keys["keys"]}) == 10000
assert len(body) > 10 * MIB
bounded(before, 16 * MIB, "one that is")
PYTHON
python3 lists.py "$url" "$registry"
verdict "lists that are not read" $?

# ---- values ------------------------------------------------------------------------------------

cat >values.py <<'PYTHON'
from clients import *

assert call("PUT", "/?key=big", b"v" * MIB)[0] == 200
before = memory("VmRSS:")
unread = [send("GET /?key=big HTTP/1.1\r\nHost: x\r\n\r\n", f"127.0.0.{1 + i % 4}") for i in range(400)]
keeps_its_name(3)
found = statuses(unread)
print(found)
assert set(found) == {"200", "503"} and found["200"] == 64, found
bounded(before, 96 * MIB, "400 values that are not read")
# Nor by those who want a name that is taken by somebody with a large record.
assert call("PUT", "/?key=big2&lease=60000&owner=a", b"w" * MIB)[0] == 200
assert call("PUT", "/?key=big2&owner=b", b"")[0] == 503
# What is small is answered.
assert call("PUT", "/?key=small", b"s" * 4096)[0] == 200
assert call("GET", "/?key=small")[:2] == (200, b"s" * 4096)
for s in unread:
    s.close()
status, until = 503, time.monotonic() + 30
while status == 503 and time.monotonic() < until:
    status, body, _ = call("GET", "/?key=big")
assert status == 200 and body == b"v" * MIB, status
assert call("PUT", "/?key=big2&owner=b", b"")[:2] == (409, b"w" * MIB)
PYTHON
python3 values.py "$url" "$registry"
verdict "values that are not read" $?

# ---- requests that do not end ------------------------------------------------------------------

cat >stalled.py <<'PYTHON'
from clients import *

before = memory("VmRSS:")
head = "PUT /?key=stalled HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % MIB
stalled = [send(head, f"127.0.0.{1 + i % 4}") for i in range(150)]
for s in stalled:
    s.sendall(b"v" * (MIB - 1))
keeps_its_name(3)
# As soon as they have come as far as that. The server may have refused several at the same time, and
# more than it had to: then there is room for another one.
more = []
status, until = 200, time.monotonic() + 30
while status != 503 and time.monotonic() < until:
    status = call("PUT", "/?key=large", b"l" * 100000)[0]
    if status != 503:
        more.append(send(head, "127.0.0.5"))
        more[-1].sendall(b"v" * (MIB - 1))
assert status == 503, status
bounded(before, 96 * MIB, "150 bodies that do not end")
# One that ends after all is told.
stalled[-1].sendall(b"v")
assert statuses(stalled[-1:]) == {"503": 1}
for s in stalled + more:
    s.close()
status, until = 503, time.monotonic() + 30
while status == 503 and time.monotonic() < until:
    status = call("PUT", "/?key=large", b"l" * 100000)[0]
assert status == 200, status
PYTHON
python3 stalled.py "$url" "$registry"
verdict "bodies that do not end" $?

cat >silent.py <<'PYTHON'
from clients import *
import resource

# More than it has room for, of one address and of many; they go on trickling while others ask.
files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
many = min(5000, files - 100)
silent = []
for i in range(many):
    silent.append(send("GET / HTTP/1.1\r\n", "127.0.0.1" if i % 2 else f"127.0.{1 + i % 100}.{1 + i // 200}"))
    if i % 500 == 0:
        keeps_its_name(0.2)
    if i % 50 == 0:
        for s in silent[::97]:
            with contextlib.suppress(OSError):
                s.sendall(b"X")
keeps_its_name(3)
PYTHON
python3 silent.py "$url" "$registry"
verdict "connections that ask nothing" $?

# All the while.
kill -0 "$registry" && ! grep -q registry serve.err && ! grep -q . err
verdict "the engine has noticed nothing" $?
cat serve.err err
end_all TERM

# ---- a registry that is busy -------------------------------------------------------------------

cat >busy.py <<'PYTHON'
"""busy.py COUNT: a registry of three verbs that says 503 to the first COUNT requests, and to those that come
while there is a file named busy."""
import http.server, os, sys, threading, urllib.parse

left, values = int(sys.argv[1]), {}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=b"", more=()):
        self.send_response(status)
        for name, value in more:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def any(self):
        global left
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        key = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["key"][0]
        # Each request has a thread: one at a time counts and prints.
        with lock:
            busy = left > 0 or os.path.exists("busy")
            left -= busy
            if busy:
                print("busy", flush=True)
        if busy:
            self.answer(503, b"too much to do", [("Retry-After", "1")])
        elif self.command == "PUT":
            values[key] = body
            print("put", flush=True)
            self.answer(200)
        elif key not in values:
            self.answer(404)
        elif self.command == "GET":
            self.answer(200, values[key])
        else:
            del values[key]
            self.answer(200)

    do_GET = do_PUT = do_DELETE = any

    def log_message(self, *arguments):
        pass


lock = threading.Lock()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
PYTHON

busy() # COUNT
{
	: >busy.out
	python3 busy.py "$1" >busy.out &
	wait_for busy.out . && url=http://127.0.0.1:$(head -n 1 busy.out)
}

busy 2
: >serve.out # the other server's URL is still in it
timeout 200 "$wherry" serve -v -m host:64KiB -n node7 -l 127.0.0.1:0 -c "registry=$url" \
	-c lease=1500ms >serve.out 2>serve.err &
wait_for serve.out wherry:// && { [ "$(grep -c busy busy.out)" = 2 ] || { cat busy.out serve.err &&
	false; }; }
verdict "an engine asks again when its registry is busy" $?
head -c 1000 /dev/urandom >file
{
	touch busy
	(sleep 1; rm busy) &
	timeout 200 "$wherry" copy file wherry://node7/host -c "registry=$url"
}
verdict "and so does who looks for it" $?
# For longer than a lease: it is said once, and later that it answers again.
touch busy
wait_for serve.err '503' && grep -q 'busy' serve.err && before=$(grep -c put busy.out) && rm busy &&
	wait_for serve.err 'answers again' && [ "$(grep -c put busy.out)" -gt "$before" ] &&
	[ "$(grep -c 503 serve.err)" = 1 ]
verdict "a lease is renewed once it is not busy any more" $?
touch busy
timeout 200 "$wherry" serve -m host:64KiB -n node8 -l 127.0.0.1:0 -c "registry=$url" \
	-c timeout=1500 >out 2>late.err
[ $? = 69 ] && grep -q 'busy (HTTP status 503)' late.err && [ "$(wc -l <late.err)" = 1 ]
verdict "one that is busy for ever is named" $?
exit "$failed"
