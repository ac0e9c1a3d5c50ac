#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: fakes fake-nvidia slow patient
# Progress lines of commands that take long: on a terminal they show what the command does, how far
# it is and how much time is left, and disappear at its end. Without a terminal there are none.
set -u
wherry=${1:-${TEST_COMMAND:?the path of wherry}}
export wherry
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
cuda=$TEST_CUDA
unset "${!WHERRY_@}" NO_COLOR TEST_CUDA
export TERM=xterm LC_ALL=C.UTF-8

cat >terminal.py <<'PYTHON'
"""terminal.py COLUMNS ARGUMENT...: run wherry with its stderr on a terminal and its stdout in the
file out. The file drawn gets every line that the terminal showed, in order; the file left gets the
lines that remain at the end. Exits with wherry's status."""
import fcntl, os, pty, re, select, struct, subprocess, sys, termios, time

ours, theirs = pty.openpty()
fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, int(sys.argv[1]), 0, 0))
with open("out", "wb") as out:
    more = {os.environ.get("TEST_PRELOAD_BY", "LD_PRELOAD"): os.environ["preload"]} if "preload" in os.environ else {}
    process = subprocess.Popen([os.environ["wherry"]] + sys.argv[2:], stdout=out, stderr=theirs,
                               env={**os.environ, **more})
os.close(theirs)
output, end = b"", time.monotonic() + 300
while time.monotonic() < end:
    if not select.select([ours], [], [], 0.1)[0]:
        continue
    try:
        got = os.read(ours, 65536)
    except OSError:
        break
    if not got:
        break
    output += got
else:
    process.kill()
    print("it did not end")
text = output.decode()
open("raw", "w").write(text)
drawn, left, line = [], [], ""
for part in re.split(r"(\r\n|\r|\x1b\[K)", text):
    if part == "\r\n":
        left.append(line)
        line = ""
    elif part == "\r":
        drawn.append(line)
    elif part == "\x1b[K":
        pass
    else:
        line = re.sub(r"\x1b\[\d*m", "", part) if part else line
    if part == "\r":
        line = ""
left.append(line)
open("drawn", "w").write("\n".join(line for line in drawn + left if line) + "\n")
open("left", "w").write("\n".join(left).strip("\n"))
sys.exit(process.wait())
PYTHON

# A case: run wherry on a terminal. A line that matches PATTERN must be drawn, and none must remain.
shows() # NAME PATTERN COLUMNS ARGUMENT...
{
	local name=$1 pattern=$2

	shift 2
	python3 terminal.py "$@"
	status=$?
	grep -q -E -e "$pattern" drawn && ! grep -q -E -e "$pattern" left &&
		! grep -q Sanitizer raw
	verdict "$name" $?
	grep -q -E -e "$pattern" drawn || sed 's/^/    /' drawn
}

# ---- copy -------------------------------------------------------------------------------------

"$wherry" serve -m host:1GiB >url &
for ((i = 0; i < 1200; i++)); do
	[ -s url ] && break
	sleep 0.1
done
url=$(cat url)/host
# A sanitizer's library must be the first preloaded one. The thread sanitizer is slow.
sanitizer=$(ldd "$wherry" | grep -o '/[^ ]*/lib[at]san[^ ]*' | head -n 1)
case $sanitizer in
*tsan*) truncate -s 512M file ;;
*) truncate -s 1G file ;;
esac
bar='copying \[=*>? *\] +[0-9]+%  [0-9.]+ GB/s(  [0-9]+:[0-9]+ left)?'
shows "a copy: bar, share, rate, time left" "$bar" 80 copy --config connections=1 --transport tcp \
	file "$url"
grep -q -E '[0-9.]+ GB/s  [0-9]+:[0-9][0-9] left' drawn && grep -q '^copied' out
verdict "a copy: and then its result" $?
# On a slow machine part of the file takes long enough to see progress.
case $(grep -o '[0-9.]* GB/s' out) in
0.0*) truncate -s 256M file ;;
0.1*) truncate -s 512M file ;;
esac
shows "a copy: verification" '^verifying \[' 80 copy --transport tcp --verify file "$url"
shows "a copy: a narrow terminal" '^copying +[0-9]+%' 30 copy --transport tcp file "$url"
! grep -q -E '^.{30,}' drawn
verdict "a copy: nothing past its edge" $?
slowly() { head -c 50M /dev/zero && sleep 1 && head -c 50M /dev/zero; }
slowly | shows "a copy: of unknown length" '^copying [0-9.]+ MiB  [0-9.]+ GB/s' 80 copy - "$url"
truncate -s 64M file # the following cases show no progress
python3 terminal.py 80 copy --quiet file "$url"
! grep -q copying drawn
verdict "a copy: --quiet" $?
TERM=dumb python3 terminal.py 80 copy file "$url"
! grep -q copying drawn
verdict "a copy: a dumb terminal" $?
slowly | NO_COLOR=1 python3 terminal.py 80 copy --transport tcp - "$url"
grep -q -E '^copying' drawn && ! grep -q $'\x1b\[[0-9]*m' raw
verdict "a copy: NO_COLOR" $?
slowly | python3 terminal.py 80 copy --transport tcp - "$url"
grep -q $'\x1b\[32m' raw
verdict "a copy: else it has a colour" $?
"$wherry" copy file "$url" >out 2>err && [ ! -s err ]
verdict "a copy: no terminal" $?

# ---- bench ------------------------------------------------------------------------------------

shows "bench: what, rate, how far, time left" \
	'^host -> host (read|write) 1 MiB  [0-9.]+ GB/s \[=*>? *\] +[0-9]+%  [0-9]+ of 36  [0-9]:[0-9]+ left' \
	120 bench -t shm --processes 2 -s 8,1MiB --working-set 8MiB --seconds 1 --json run.json
[ "$(grep -c '^write\|^read' out)" = 4 ] && [ -s run.json ] && [ ! -s left ]
verdict "bench: and then its table" $?
python3 - <<'PYTHON'
import re
with open("drawn") as lines:
    steps = [int(found[1]) for found in map(re.compile(r" (\d+) of 36").search, lines) if found]
assert len(steps) >= 8 and steps == sorted(steps) and steps[-1] >= 27, steps
PYTHON
verdict "bench: it does not go back" $?
"$wherry" bench -t shm --processes 2 -s 8 --seconds 0.6 >out 2>err && [ ! -s err ]
verdict "bench: no terminal" $?

cat >late.c <<'CODE'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>
int listen(int fd, int backlog)
{
	int (*next)(int, int) = (int (*)(int, int))dlsym(RTLD_NEXT, "listen");

	usleep(1800000);
	return next(fd, backlog);
}
CODE
# shellcheck disable=SC2086 # a compiler and its options
${TEST_CC:-cc} -shared -fPIC -o late.so late.c || failed=1
preload=${sanitizer:+$sanitizer:}$PWD/late.so shows "bench --footprint" \
	'^measuring the memory of an engine and its peers \[=*>? *\] +0%  0 of 5' 80 bench \
	--footprint
grep -q '^an idle engine, its whole process' out
verdict "bench --footprint: and then its sums" $?
shows "bench --handshake" '^connecting, one peer after the other  1 s' 80 bench \
	--handshake --seconds 1.8
grep -q '^connecting to a peer (key)' out
verdict "bench --handshake: and then its result" $?
"$wherry" bench --footprint --handshake --seconds 1 >out 2>err
[ ! -s err ]
verdict "bench --footprint, --handshake: no terminal" $?

# ---- calls that take long ---------------------------------------------------------------------

"$TEST_SOURCE/tests/fake/machines/make-hgx" hgx && mkdir hgx/lib &&
	ln -s "$TEST_NVML" hgx/lib/libnvidia-ml.so.1 &&
	{ echo "delay : 0 2500"; cat hgx/nvml.txt; } >slow.txt
export FAKE_NVML=slow.txt
shows "topo: a driver that is slow" '^asking the GPUs  2 s$' 80 topo --root hgx
grep -q 'GPU7' out
verdict "topo: and then the topology" $?
shows "doctor" '^asking the GPUs and NICs \[.*\] +25%  1 of 4' 80 doctor --root hgx
grep -q ' unknown$' out
verdict "doctor: and then its findings" $?
shows "top --once" '^taking a sample  1 s' 80 top --root hgx --once
grep -q '^GPU0 ' out
verdict "top --once: and then the sample" $?
unset FAKE_NVML
cat >slow.c <<'CODE'
#include <unistd.h>
__attribute__((constructor)) static void wake(void) { usleep(1800000); }
CODE
# shellcheck disable=SC2086 # a compiler and its options
${TEST_CC:-cc} -shared -fPIC -o slow.so slow.c || failed=1
shows "serve: a driver that starts slowly" '^allocating memory \[=+>? *\] +50%  1 of 2' 80 serve \
	--config cuda="$PWD/slow.so" -m host:1MiB -m cuda:0:1MiB
grep -q '^wherry serve: cannot serve 1 MiB of cuda:0' left
verdict "serve: and then what is wrong with it" $?
python3 - >silent <<'PYTHON' &
import socket, time
with socket.create_server(("127.0.0.1", 0)) as server:
    print(f"wherry://127.0.0.1:{server.getsockname()[1]}", flush=True)
    time.sleep(60)
PYTHON
for ((i = 0; i < 1200; i++)); do
	[ -s silent ] && break
	sleep 0.1
done
shows "explain: a peer that does not answer" '^connecting to wherry://127.0.0.1:[0-9]+  [1-9] s' \
	80 \
	explain "$(cat silent)"
[ "$status" = 69 ] && grep -q '^wherry explain: ' left
verdict "explain: and then the reason" $?

FAKE_CUDA_START=2 shows "explain: CUDA starts slowly" '^allocating memory  1 s' 80 explain \
	--config cuda="$cuda" \
	host cuda:0
[ "$status" = 0 ] && grep -q '^route    cuda' out
verdict "explain: and then the route" $?

# ---- registry ---------------------------------------------------------------------------------

# A long log: one key, written many times.
python3 - <<'PYTHON'
import struct, zlib
with open("long.log", "wb") as log:
    log.write(b"wherry registry 1\n")
    for i in range(150):
        value = b"%06d" % i * 100000
        payload = struct.pack("<5I", 1, 1, 0, len(value), 0) + b"k" + value
        log.write(struct.pack("<II", len(payload), zlib.crc32(payload)) + payload)
PYTHON
cat >ended <<'SHELL'
#!/usr/bin/env bash
"$ended" "$@" &
for ((i = 0; i < 1200; i++)); do
	[ -s out ] && break
	sleep 0.1
done
kill $! && wait $!
SHELL
chmod +x ended
export ended=$wherry
wherry=$PWD/ended shows "registry: a long log" \
	'^reading the log \[=*>? *\] +[0-9]+%  [0-9.]+ GB/s  [0-9]:[0-9]+ left' 80 registry \
	--file long.log -l 127.0.0.1:0
grep -q '^http://127.0.0.1:[0-9]*$' out && [ ! -s left ]
verdict "registry: and then its address" $?
"$wherry" registry --file long.log -l 127.0.0.1:0 >ready 2>err &
for ((i = 0; i < 1200; i++)); do
	[ -s ready ] && break
	sleep 0.1
done
kill $! && [ -s ready ] && [ ! -s err ]
verdict "registry: no terminal" $?

# ---- window -----------------------------------------------------------------------------------

fakes=${TEST_BUILD:?the build directory}/tests/fake
export WHERRY_CUDA=$fakes/libcuda.so.1 FAKE_NVIDIA_CUDA=$fakes/libcuda.so.1 FAKE_CUDA_REUSE=1
export preload=${sanitizer:+$sanitizer:}$fakes/libfake-nvidia.so
shows "window bandwidth" '^cuda:0: (write|read|recv).* \[.*\] +[0-9]+%  [0-9]+ of [0-9]+' 120 \
	window bandwidth \
	-m cuda:0 -s 1MiB -r 2 -n 1
[ $status = 0 ] && grep -q '^  1 MiB ' out && python3 - <<'PYTHON'
import re
with open("drawn") as lines:
    steps = [tuple(map(int, found.groups())) for found in map(re.compile(r" (\d+) of (\d+)").search, lines) if found]
# 16 steps: five copies and one thread count for each direction, and four of recv().
assert steps == sorted(steps) and {most for _, most in steps} == {16} and steps[-1][0] >= 4, steps
PYTHON
verdict "window bandwidth: its rows, one after the other" $?
shows "window latency" '^cuda:0: (write|write.flush|read), (warm|cold) cache \[.* of 30' 120 \
	window latency -m cuda:0 \
	-r 20000
[ $status = 0 ] && [ "$(grep -c '^  [wr].*KiB' out)" = 12 ]
verdict "window latency: and then its table" $?
shows "window api" '^cuda:0: windows of [0-9]+ [KM]iB \[.* of 16' 120 window api -m cuda:0 -r 1000
shows "window pingpong" '^cuda:0: (window|pinned), (window|pinned) \[.* of 4' 120 window pingpong \
	-m cuda:0 -r 10000
if ! heeds_madvise; then
	echo "this kernel ignores madvise(): children of a fork would inherit windows"
	echo "[  SKIPPED ] window check"
	exit $failed
fi
shows "window check" '^cuda:0: [a-z-]+ \[.* of 16' 120 window check -m cuda:0
[ $status = 0 ] && grep -q '^16 tests: ' out
verdict "window check: and then its sums" $?
# Table and progress on one terminal: no line of the table contains any progress.
shows "window check: its table on the terminal, too" '^cuda:0: [a-z-]+ \[.* of 16' 120 window \
	check -m cuda:0 --json -
[ $status = 0 ] && [ "$(grep -c -E '^  (passed|waived)  [a-z-]+ +[^[]*$' left)" = 16 ]
verdict "window check: each of its lines is whole" $?
preloaded "$preload" "$wherry" window check -m cuda:0 >out 2>err && [ ! -s err ]
verdict "window: no terminal" $?
exit $failed
