#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: fakes
# Scrapes of wherry exporter and wherry serve --metrics while other clients send a byte now and
# then, or never read their answers.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"
places=$directory/places
mkdir -m 700 "$places" && export WHERRY_OBSERVE=$places

# Its first line, on stdout or stderr, that has a pattern.
first_line() # FILE PATTERN
{
	: >>"$1"
	for _ in $(seq 1200); do
		grep -m 1 -o -- "$2" "$1" && return
		sleep 0.05
	done
	cat "$1" >&2
	return 1
}

cat >crowd.py <<'PYTHON'
"""crowd.py URL HOW COUNT ADDRESSES: COUNT clients, from so many addresses, and scrapes meanwhile."""
import contextlib, os, socket, sys, time, urllib.parse, urllib.request

url, how, count, addresses = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
place = urllib.parse.urlsplit(url)


def dial(i):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.bind((f"127.0.0.{1 + i % addresses}", 0))
    s.settimeout(20)
    s.connect((place.hostname, place.port))
    s.sendall(b"GET /metrics HTTP/1.1\r\n" if how == "trickle" else b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    return s


crowd = [dial(i) for i in range(count)]
worst = 0
for turn in range(20):
    started = time.monotonic()
    # A sanitizer takes several times as long to write 40 answers of 3 MB.
    with urllib.request.urlopen(url, timeout=30 if "TEST_SLOW" in os.environ else 8) as answer:
        text = answer.read().decode()
    assert "wherry_engine_info" in text and text.endswith("\n"), text[-200:]
    worst = max(worst, time.monotonic() - started)
    for i, s in enumerate(crowd):
        try:
            if how == "trickle":
                s.sendall(b"X")
        except OSError:
            # As those do who mean it, it comes again.
            s.close()
            crowd[i] = dial(i)
    time.sleep(0.1)
print(f"the longest scrape took {worst * 1000:.0f} ms")
PYTHON

"$wherry" serve -m host:64KiB -l 127.0.0.1:0 -n node7 --metrics 127.0.0.1:0 >serve.out 2>serve.err &
server=$!
own=$(first_line serve.err 'http://.*/metrics') || exit 1
# An answer of 3 MB, more than the kernel takes for somebody who does not read it.
cp "$TEST_SOURCE/tests/integration/lib/metrics_engine.py" . || exit 1
python3 metrics_engine.py "$places/1-made.observe" 1000 answer >made.out &
first_line made.out ready || exit 1
mkdir root
"$wherry" exporter --metrics 127.0.0.1:0 --interval 5 --root root >exporter.out 2>exporter.err &
all=$(first_line exporter.out 'http://.*/metrics') || exit 1

for addresses in 1 40; do
	python3 crowd.py "$own" trickle 32 $addresses
	verdict "serve --metrics, and 32 clients from $addresses addresses that trickle" $?
	python3 crowd.py "$all" trickle 32 $addresses
	verdict "exporter, and 32 clients from $addresses addresses that trickle" $?
	python3 crowd.py "$all" ask 40 $addresses
	verdict "exporter, and 40 clients from $addresses addresses that do not read" $?
done

# Without a descriptor for it a scrape waits, and costs no processor.
cat >short.py <<'PYTHON'
import os, resource, sys, time, urllib.parse, socket

place, process = urllib.parse.urlsplit(sys.argv[1]), int(sys.argv[2])
limit = resource.prlimit(process, resource.RLIMIT_NOFILE)
resource.prlimit(process, resource.RLIMIT_NOFILE, (0, limit[1]))


def used():
    with open(f"/proc/{process}/stat") as stat:
        return sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


s = socket.create_connection((place.hostname, place.port), 20)
s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
before = used()
time.sleep(1)
spent = used() - before
resource.prlimit(process, resource.RLIMIT_NOFILE, limit)
assert spent < 0.2, f"{spent:.2f} s of processor in a second"
assert s.makefile("rb").readline().split()[1] == b"200"
PYTHON
python3 short.py "$own" "$server"
verdict "serve --metrics without descriptors" $?
exit "$failed"
