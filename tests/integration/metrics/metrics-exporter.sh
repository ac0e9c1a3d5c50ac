#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: bench-scrape fakes
# wherry exporter and wherry serve --metrics: working engines, a simulated one with 1,000 peers,
# dead and silent ones, and a machine made of files with the GPUs of the fake NVML.
set -u
wherry=$TEST_COMMAND
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"
# Other engines of this user are not this test's.
places=$directory/places
mkdir -m 700 run "$places" && export WHERRY_OBSERVE=$places

# Start something that prints a line when it is ready; the line goes to $line, its process to
# $process.
start() # NAME COMMAND...
{
	local name=$1 i

	shift
	"$@" >"$name.out" 2>"$name.err" &
	process=$!
	for ((i = 0; i < 1200; i++)); do
		[ -s "$name.out" ] && break
		kill -0 "$process" 2>/dev/null || break
		sleep 0.05
	done
	line=$(head -n 1 "$name.out")
	[ -n "$line" ] || cat "$name.err"
	[ -n "$line" ]
}

stop() # PROCESS; returns its status
{
	kill -TERM "$1"
	wait "$1"
}

# Prometheus' own opinion, where there is one; metrics-prometheus wants it in any case.
lint() # FILE
{
	! command -v promtool >/dev/null || { promtool check metrics <"$1" >lint 2>&1 &&
		[ ! -s lint ]; } ||
		{ cat lint; return 1; }
}

# The value of a line that begins so, whatever the engine's labels are.
value() # FILE PATTERN
{
	grep -E -- "^$2" "$1" | awk '{ sum += $NF } END { printf "%.9g\n", sum }'
}

# ---- a made-up machine -------------------------------------------------------------------------

"$TEST_SOURCE/tests/fake/machines/make-hgx" hgx && mkdir hgx/lib &&
	ln -s "$TEST_NVML" hgx/lib/libnvidia-ml.so.1 && cat >>hgx/nvml.txt <<'NVML'
nvmlDeviceGetUtilizationRates 7 : 3
nvmlDeviceGetUtilizationRates * : 0 73 20
nvmlDeviceGetPowerUsage * : 0 412345
nvmlDeviceGetTemperature * 0 : 0 61
nvmlDeviceGetClockInfo * 1 : 0 1755
nvmlDeviceGetPcieThroughput * 0 : 0 12500000
nvmlDeviceGetTotalEccErrors 0 1 0 : 0 2
nvmlDeviceGetTotalEccErrors * * 0 : 0 0
nvmlDeviceGetFieldValues * 138 4294967295 : 0 1000000
NVML
counters=hgx/sys/class/infiniband/mlx5_0/ports/1/counters
mkdir -p $counters && echo 250 >$counters/port_xmit_data
mkdir -p hgx/proc/net && printf 'Ip: A\nIp: 1\nTcp: RtoAlgorithm RetransSegs\nTcp: 1 42\n' \
	>hgx/proc/net/snmp

FAKE_NVML=hgx/nvml.txt "$wherry" exporter --once --root hgx >out 2>err && [ ! -s err ] && lint out
verdict "the made-up machine" $?
[ "$(grep -c '^wherry_gpu_info{.* 1$' out)" = 8 ] &&
	[ "$(grep -c '^wherry_gpu_busy_ratio{.* 0.73$' out)" = 7 ] &&
	! grep -q '^wherry_gpu_busy_ratio{gpu="7"' out &&
	grep -q '^wherry_gpu_power_watts{gpu="0",uuid="GPU-.*"} 412.345$' out &&
	grep -q '^wherry_gpu_clock_hertz{gpu="3",.*,clock="sm"} 1755000000$' out &&
	grep -q '^wherry_gpu_pcie_bytes_per_second{gpu="0",.*direction="sent"} 12500000000$' out &&
	grep -q '^wherry_gpu_nvlink_bytes_total{gpu="5",.*direction="sent"} 1024000000$' out &&
	! grep -q '^wherry_gpu_nvlink_bytes_total{.*direction="received"}' out &&
	grep -q '^wherry_gpu_ecc_errors_total{gpu="0",.*corrected="no"} 2$' out &&
	grep -q '^wherry_nic_bytes_total{nic="mlx5_0",.*direction="sent"} 1000$' out &&
	! grep -q '^wherry_nic_bytes_total{nic="mlx5_0",.*direction="received"}' out &&
	grep -q '^wherry_tcp_retransmits_total 42$' out
verdict "its numbers, and none where there is none" $?
FAKE_NVML=$TEST_SOURCE/tests/fake/nvml/broken.txt "$wherry" exporter --once --root hgx >out &&
	lint out &&
	grep -q '^wherry_gpu_info{gpu="1",.*} 0$' out &&
	! grep -q '^wherry_gpu_power_watts{gpu="1"' out
verdict "a GPU that is lost" $?
FAKE_NVML=/nonexistent "$wherry" exporter --once --root hgx >out && lint out &&
	! grep -q '^wherry_gpu' out &&
	grep -q '^wherry_nic_up{nic="mlx5_0",.*} 1$' out
verdict "no driver" $?
printf 'delay : 0 60000\n' >slow.txt
begun=$(quiet_seconds)
FAKE_NVML=slow.txt "$wherry" exporter --once --root hgx >out &&
	[ $(($(quiet_seconds) - begun)) -le 12 ] && lint out &&
	grep -q '^wherry_nic_up' out
verdict "a driver that hangs" $?

# ---- wrong command lines -----------------------------------------------------------------------

while IFS='|' read -r words text; do
	read -r -a arguments <<<"$words"
	! "$wherry" "${arguments[@]}" >out 2>err && [ ! -s out ] && grep -q -F -e "$text" err
	verdict "wherry $words" $?
done <<'LINES'
exporter --interval 0|between 0.1 and 3600
exporter --root nowhere|No such file
exporter extra|extra
exporter --metrics|--metrics
LINES

# Without libmicrohttpd there is nothing to ask.
if "$wherry" exporter --metrics 127.0.0.1:0x 2>&1 | grep -q 'without libmicrohttpd'; then
	[ $failed = 0 ] || exit 1
	exit 77
fi
while IFS='|' read -r words text; do
	read -r -a arguments <<<"$words"
	! timeout 200 "$wherry" "${arguments[@]}" >out 2>err && grep -q -F -e "$text" err
	verdict "wherry $words" $?
done <<'LINES'
exporter --metrics 127.0.0.1|is not ADDR:PORT
exporter --metrics :9411|is not ADDR:PORT
exporter --metrics localhost:9411|not an address and a port
exporter --metrics 127.0.0.1:http|not an address and a port
exporter --metrics 127.0.0.1:65536|not an address and a port
exporter --metrics 127.0.0.1:4294967296|not an address and a port
exporter --metrics 192.0.2.1:9411|Cannot assign
serve --memory host:64KiB --listen 127.0.0.1:0 --metrics 127.0.0.1:|is not ADDR:PORT
LINES

# ---- a machine that changes -------------------------------------------------------------------

cat >fetch.py <<'PYTHON'
"""fetch.py URL FILE: the answer to GET, or the status."""
import sys, urllib.error, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], timeout=20) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        with open(sys.argv[2], "wb") as out:
            out.write(answer.read())
except urllib.error.HTTPError as error:
    sys.exit(str(error.code))
PYTHON
fetch() # URL FILE
{
	python3 fetch.py "$1" "$2"
}

# Scrape until it says so, for up to 10 s.
told() # PATTERN
{
	local i

	for ((i = 0; i < 1200; i++)); do
		fetch "$machine" out && lint out && grep -q -- "$1" out && return
		sleep 0.1
	done
	return 1
}

start machine env FAKE_NVML=hgx/nvml.txt "$wherry" exporter --root hgx --observe off \
	--interval 0.2 \
	--metrics 127.0.0.1:0 || exit 1
changing=$process machine=$line
told '^wherry_gpu_info{gpu="3",.*} 1$'
verdict "a machine that is well" $?
sed '1i nvmlDeviceGetUtilizationRates 3 : 15' hgx/nvml.txt >hgx/nvml.new &&
	mv hgx/nvml.new hgx/nvml.txt
told '^wherry_gpu_info{gpu="3",.*} 0$' && ! grep -q '^wherry_gpu_power_watts{gpu="3"' out &&
	grep -q '^wherry_gpu_info{gpu="2",.*} 1$' out
verdict "a GPU falls off the bus" $?
sed 1d hgx/nvml.txt >hgx/nvml.new && mv hgx/nvml.new hgx/nvml.txt
told '^wherry_gpu_info{gpu="3",.*} 1$' && grep -q '^wherry_gpu_power_watts{gpu="3"' out
verdict "and comes back" $?
ports=hgx/sys/class/infiniband/mlx5_0/ports/1
told '^wherry_nic_up{nic="mlx5_0",.*} 1$' && echo '1: DOWN' >$ports/state &&
	echo '100 Gb/sec (4X EDR)' >$ports/rate && told '^wherry_nic_up{nic="mlx5_0",.*} 0$' &&
	told '^wherry_nic_capacity_bytes_per_second{nic="mlx5_0",.*} 12500000000$' &&
	grep -q '^wherry_nic_up{nic="mlx5_1",.*} 1$' out
verdict "a port goes down" $?
: >$ports/state && mkdir -p hgx/sys/class/infiniband/late/ports/1 &&
	echo '4: ACTIVE' >hgx/sys/class/infiniband/late/ports/1/state &&
	told '^wherry_nic_up{nic="late",.*} 1$' && told '^wherry_nic_bytes_total{nic="mlx5_0"' &&
	! grep -q '^wherry_nic_up{nic="mlx5_0"' out
verdict "a NIC comes, and a state that is not known is not told" $?
rm -r hgx/sys/class/infiniband/late && echo '4: ACTIVE' >$ports/state &&
	told '^wherry_nic_up{nic="mlx5_0",.*} 1$' && ! grep -q 'nic="late"' out
verdict "a NIC goes" $?
stop "$changing"

# ---- engines that work -------------------------------------------------------------------------

start exporter "$wherry" exporter --metrics 127.0.0.1:0 --interval 1 || exit 1
exporter=$process all=$line
start serve "$wherry" serve --memory host:1MiB --listen 127.0.0.1:0 --metrics '[::1]:0' \
	--name "ä \"b\\" ||
	exit 1
server=$process url=$line
own=$(sed -n 's/^wherry serve: metrics at //p' serve.err)
! "$wherry" exporter --metrics "$(sed 's,^http://,,; s,/metrics$,,' <<<"$all")" 2>err &&
	grep -q 'in use; choose another port' err
verdict "a port that is taken" $?

head -c 300000 /dev/urandom >file
WHERRY_TRANSPORTS=tcp "$wherry" copy file "$url/host" && fetch "$own" out && lint out &&
	[ "$(value out 'wherry_engine_served_bytes_total.*op="write"')" = 300000 ] &&
	[ "$(value out 'wherry_engine_registered_bytes')" = 1048576 ] &&
	grep -q -F 'wherry_engine_info{engine="ä \"b\\",epoch="' out
verdict "wherry serve --metrics" $?
fetch "$all" out && lint out && grep -q '^wherry_engines{state="answered"} 1$' out &&
	[ "$(value out 'wherry_engine_served_bytes_total.*op="write"')" = 300000 ]
verdict "wherry exporter tells the same" $?
{
	WHERRY_TRANSPORTS=tcp "$wherry" bench -t tcp -o write -s 64KiB,1MiB --seconds 2 >bench.out \
		2>&1 &
	process=$!
	for ((i = 0; i < 1200; i++)); do
		sleep 0.1
		fetch "$all" out
		[ "$(value out 'wherry_peer_transfer_bytes_total.*transport="tcp",op="write"')" != \
			0 ] && break
	done
	wait "$process"
}
lint out && grep -q '^wherry_peer_connected{.*} 1$' out &&
	[ "$(value out 'wherry_transfers_total.*transport="tcp",op="write"')" != 0 ] &&
	[ "$(value out 'wherry_batch_duration_seconds_count')" != 0 ]
verdict "an engine at work, with its peer" $?

python3 - "$all" <<'PYTHON'
"""Other methods and paths, and clients that never ask, or never read."""
import os, socket, sys, time, urllib.request
from urllib.parse import urlsplit
place = urlsplit(sys.argv[1])


def ask(text):
    with socket.create_connection((place.hostname, place.port), 20) as s:
        s.sendall(text.encode())
        return s.makefile("rb").readline().decode().strip()


def status(method, path, more=""):
    return ask(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\r\n").split()[1]


assert status("HEAD", "/metrics") == "200"
assert status("GET", "/") == "200"
assert status("GET", "/nothing") == "404"
assert status("PUT", "/metrics", "Content-Length: 0\r\n") == "405"
silent = [socket.create_connection((place.hostname, place.port)) for _ in range(8)]
for s in silent[:4]:
    s.sendall(b"GET /metrics HTTP/1.1\r\n")


def quiet():
    """As quiet_seconds of cases.sh."""
    waited = 0
    if os.path.exists("/proc/pressure/cpu"):
        with open("/proc/pressure/cpu") as text:
            waited = int(text.readline().rpartition("total=")[2]) / 1e6
    return time.monotonic() - waited


started = quiet()
urllib.request.urlopen(sys.argv[1], timeout=20).read()
assert quiet() - started < 2
PYTHON
verdict "other requests, and clients that hang" $?

# ---- made-up engines ---------------------------------------------------------------------------

cp "$TEST_SOURCE/tests/integration/lib/metrics_engine.py" .
start made python3 metrics_engine.py "$places/1-made.observe" 1000 answer || exit 1
made=$process
python3 - "$all" <<'PYTHON'
"""How long a scrape takes. The shortest of nine counts, or of more: others may be busy here as well."""
import os, statistics, sys, time, urllib.request
times = []
# Sanitizers are not what is measured.
most = 1 if "TEST_SLOW" in os.environ else 0.05
while len(times) < 9 or (min(times) >= most and len(times) < 200):
    started = time.monotonic()
    text = urllib.request.urlopen(sys.argv[1], timeout=20).read().decode()
    times.append(time.monotonic() - started)
peers = sum(line.startswith("wherry_peer_connected{") for line in text.split("\n"))
print(f"{peers} peers, {len(text)} bytes, {min(times) * 1000:.1f} ms, "
      f"half of them within {statistics.median(times) * 1000:.1f} ms")
assert peers == 1000
assert min(times) < most, "too slow"
PYTHON
verdict "1,000 peers in less than 50 ms" $?
fetch "$all" out && lint out &&
	grep -q '^wherry_peer_transfers_total{engine="made",.*peer="peer-7",.*transport="shm",op="read"} 10007$' \
		out &&
	[ "$(value out 'wherry_peer_transfer_bytes_total.*op="write"')" = \
		"$(python3 -c 'print("%.9g" % (4 * sum(2000000 + i for i in range(1000))))')" ] &&
	grep -q '^wherry_batch_duration_seconds_bucket{engine="made",.*size="small",le="+Inf"} 6$' \
	out &&
	grep -q '^wherry_inflight_batches{engine="made",.*} 18$' out &&
	grep -q '^wherry_inflight_bytes{engine="made",.*,size="large"} 7000$' out &&
	grep -q '^wherry_peer_inflight_bytes{engine="made",.*peer="peer-7",.*,size="large"} 7007$' \
	out &&
	grep -q '^wherry_peer_attempts_total{engine="made",.*peer="peer-7",.*transport="shm"} 57$' \
	out &&
	grep -q '^wherry_session_served_bytes_total{engine="made",.*session="client",op="read"} 5$' out
verdict "what it told, from the layout in docs/metrics.md" $?
stop "$made"
[ -S "$places/1-made.observe" ] && "$wherry" exporter --once >out &&
	[ ! -e "$places/1-made.observe" ] && grep -q '^wherry_engines{state="silent"} 0$' out
verdict "the socket of a dead engine is swept" $?
# A scrape in which it is told so, and which takes no longer than an engine that does not answer is
# waited for. Beside load one that works may not answer in time, either: then once more.
in_time() # PATTERN
{
	local begun

	for _ in $(seq 20); do
		begun=$(quiet_seconds)
		fetch "$all" out && [ $(($(quiet_seconds) - begun)) -le 3 ] || return
		! grep -q "$1" out || return 0
	done
	return 1
}

for how in silent cut garbage endless old; do
	start "$how" python3 metrics_engine.py "$places/2-$how.observe" 3 "$how" || exit 1
	in_time '^wherry_engines{state="answered"} 1$' && lint out &&
		grep -q '^wherry_engines{state="silent"} 1$' out && ! grep -q made out
	verdict "an engine that answers: $how" $?
	kill -KILL "$process"
	wait "$process" 2>/dev/null
done
# Where others may write, anybody could pretend to be an engine.
chmod 777 "$places" && "$wherry" exporter --once >out &&
	grep -q '^wherry_engines{state="answered"} 0$' out
verdict "a directory that others may write to is not looked into" $?
chmod 700 "$places"

# The benchmark of a scrape, with few peers: that it measures what it says. Its 50 ms are not what
# is tested.
"$TEST_BUILD/bench/scrape" --wherry "$wherry" --peers 40 --json scrape.json >out 2>err
if grep -q 'process_vm: the kernel lacks it' err; then
	cat err
	echo "[  SKIPPED ] the benchmark of a scrape"
else
	python3 - <<'PYTHON'
import json
with open("scrape.json") as text:
    result = json.load(text)
assert result["schema"] == 1 and result["peers"] == 40 and result["answer_bytes"] > 40 * 1000, result
assert result["environment"]["cores"] > 0
idle, moving = result["rows"]
assert not idle["while_moving"] and moving["while_moving"] and moving["batches_per_second"] > 0
for row in idle, moving:
    assert 0 < row["limit_ms"] < row["scrape_ms"] <= row["scrape_worst_set_ms"] <= row["scrape_most_ms"]
    assert row["asked_ms"] == 50 and row["within"] == (row["scrape_ms"] < 50)
PYTHON
	verdict "the benchmark of a scrape" $?
fi

# The usual places, where there may be others.
export XDG_RUNTIME_DIR=$directory/run
ln -s wherry run/around
unset WHERRY_OBSERVE
start usual "$wherry" serve --memory host:64KiB --listen 127.0.0.1:0 --name usual-one &&
	ls run/wherry/"$process"-*.observe >/dev/null && [ "$(stat -c %a run/wherry)" = 700 ]
verdict "XDG_RUNTIME_DIR" $?
"$wherry" exporter --once >out && lint out &&
	[ "$(grep -c '^wherry_engine_info{engine="usual-one"' out)" = 1 ]
verdict "is looked into" $?
XDG_RUNTIME_DIR=$directory/run/around/.. "$wherry" exporter --once >out && lint out &&
	[ "$(grep -c '^wherry_engine_info{engine="usual-one"' out)" = 1 ]
verdict "by another of its names" $?
"$wherry" exporter --once --observe off >out && ! grep -q usual-one out &&
	"$wherry" exporter --once --observe "$places" >out && ! grep -q usual-one out
verdict "--observe" $?
stop "$process"
export WHERRY_OBSERVE=$places

kill -STOP "$server"
in_time '^wherry_engines{state="silent"} 1$'
verdict "an engine that is stopped" $?
kill -CONT "$server"
stop "$server" && ! ls "$places"/*.observe >/dev/null 2>&1
verdict "nothing is left by an engine that ends" $?
stop "$exporter"
verdict "wherry exporter ends" $?
exit $failed
