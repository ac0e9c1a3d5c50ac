#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: fakes
# A real Prometheus on loopback scrapes wherry exporter and wherry serve --metrics; promtool accepts
# the metrics, docs/metrics.md lists all of them, and the dashboard uses no other.
set -u
if ! command -v prometheus >/dev/null || ! command -v promtool >/dev/null; then
	echo "no prometheus: apt-get install prometheus"
	exit 77
fi
wherry=$TEST_COMMAND
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
unset "${!WHERRY_@}"
mkdir -m 700 run && export WHERRY_OBSERVE=$directory/run

# Start something that prints a line when it is ready, which goes to $line.
start() # NAME COMMAND...
{
	local name=$1 i

	shift
	"$@" >"$name.out" 2>"$name.err" &
	for ((i = 0; i < 1200; i++)); do
		[ -s "$name.out" ] && break
		sleep 0.05
	done
	line=$(head -n 1 "$name.out")
	[ -n "$line" ] || { cat "$name.err"; exit 1; }
}

# ---- every metric there is, once -----------------------------------------------------------------

"$TEST_SOURCE/tests/fake/machines/make-hgx" hgx && mkdir hgx/lib &&
	ln -s "$TEST_NVML" hgx/lib/libnvidia-ml.so.1 && cat >>hgx/nvml.txt <<'NVML'
nvmlDeviceGetUtilizationRates * : 0 73 20
nvmlDeviceGetPowerUsage * : 0 412345
nvmlDeviceGetEnforcedPowerLimit * : 0 700000
nvmlDeviceGetTemperature * 0 : 0 61
nvmlDeviceGetClockInfo * * : 0 1755
nvmlDeviceGetPcieThroughput * * : 0 12500000
nvmlDeviceGetPcieReplayCounter * : 0 0
nvmlDeviceGetTotalEccErrors * * 0 : 0 0
nvmlDeviceGetFieldValues * 138 4294967295 : 0 1000000
nvmlDeviceGetFieldValues * 139 4294967295 : 0 1000000
NVML
verdict "a made-up machine" $?
put() # PATH TEXT
{
	mkdir -p "hgx/${1%/*}" && printf '%s\n' "$2" >"hgx/$1"
}
nic=/sys/class/infiniband/mlx5_0/ports/1
for counter in port_xmit_data port_rcv_data port_rcv_errors port_xmit_discards; do
	put $nic/counters/$counter 1000
done
put $nic/hw_counters/packet_seq_err 1
put $nic/hw_counters/local_ack_timeout_err 1
put /proc/net/snmp $'Ip: A\nIp: 1\nTcp: RtoAlgorithm RetransSegs\nTcp: 1 42'
start made python3 "$TEST_SOURCE/tests/integration/lib/metrics_engine.py" run/1-made.observe 3 \
	answer
start all env FAKE_NVML=hgx/nvml.txt "$wherry" exporter --root hgx --metrics 127.0.0.1:0
all=$line
start serve "$wherry" serve --memory host:1MiB --listen 127.0.0.1:0 --metrics 127.0.0.1:0
url=$line own=$(sed -n 's/^wherry serve: metrics at //p' serve.err)

# ---- Prometheus ----------------------------------------------------------------------------------

target() # URL
{
	sed 's,^http://,,; s,/metrics$,,' <<<"$1"
}
cat >prometheus.yml <<YAML
global:
  scrape_interval: 1s
  scrape_timeout: 1s
scrape_configs:
  - job_name: machine
    static_configs: [{targets: ["$(target "$all")"]}]
  - job_name: engine
    static_configs: [{targets: ["$(target "$own")"]}]
YAML
port=$(free_port 0)
prometheus --config.file prometheus.yml --storage.tsdb.path data \
	--web.listen-address "127.0.0.1:$port" \
	--log.level warn >prometheus.out 2>&1 &
head -c 300000 /dev/urandom >file
WHERRY_TRANSPORTS=tcp "$wherry" copy file "$url/host" >copy.out || cat copy.out

cat >ask.py <<'PYTHON'
"""ask.py PORT: ask Prometheus until it has seen both, for up to 40 s."""
import json, sys, time, urllib.error, urllib.parse, urllib.request


def ask(path, **arguments):
    query = urllib.parse.urlencode(arguments)
    with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/api/v1/{path}?{query}", timeout=5) as a:
        return json.load(a)["data"]


def value(query):
    result = ask("query", query=query)["result"]
    return float(result[0]["value"][1]) if result else None


WANTED = {
    'sum(up)': 2,
    'sum(wherry_engine_served_bytes_total{job="engine",op="write"})': 300000,
    'sum(wherry_engine_served_bytes_total{job="machine",op="write",engine!="made"})': 300000,
    'count(wherry_peer_connected{job="machine"})': 3,
    'count(wherry_gpu_info == 1)': 8,
    'sum(wherry_engines{state="answered"})': 2,
    'min(scrape_samples_scraped) > bool 50': 1,
}
end = time.monotonic() + 40
while True:
    try:
        got = {query: value(query) for query in WANTED}
    except (urllib.error.URLError, ConnectionError):
        got = None
    if got == WANTED or time.monotonic() > end:
        break
    time.sleep(0.3)
for target in ask("targets")["activeTargets"]:
    print(target["labels"]["job"], target["health"], target["lastError"])
    assert target["health"] == "up" and not target["lastError"]
assert got == WANTED, got
types = {name: rows[0]["type"] for name, rows in ask("metadata").items() if name.startswith("wherry")}
assert types["wherry_batch_duration_seconds"] == "histogram", types
assert types["wherry_transfer_bytes_total"] == "counter", types
# Over all batches that were timed: as the histogram says, between two of its bounds.
middle = value('histogram_quantile(0.5, sum by (le) (wherry_batch_duration_seconds_bucket{engine="made",'
               'size="small"}))')
assert 2e-6 < middle < 40, middle
PYTHON
python3 ask.py "$port"
verdict "a real Prometheus scrapes both" $?
! grep -q . prometheus.out
verdict "and has nothing to complain of" $?
[ $failed = 0 ] || cat prometheus.out

# ---- the names -----------------------------------------------------------------------------------

python3 - "$all" "$own" <<'PYTHON'
"""What was told, for promtool and for the names below."""
import sys, urllib.request
for url, name in zip(sys.argv[1:], ("all.txt", "own.txt")):
    with urllib.request.urlopen(url, timeout=20) as answer, open(name, "wb") as out:
        out.write(answer.read())
PYTHON
for file in all own; do
	promtool check metrics <$file.txt >lint 2>&1 && [ ! -s lint ]
	verdict "promtool check metrics, $file" $?
	cat lint
done
python3 - <<'PYTHON'
"""docs/metrics.md has every metric, and no other."""
import os, re
source = os.environ["TEST_SOURCE"]
with open("all.txt") as text:
    told = set(re.findall(r"^# TYPE (\S+)", text.read(), re.M))
with open(f"{source}/docs/metrics.md") as text:
    described = re.findall(r"^\| `(wherry_\w+)` \|", text.read(), re.M)
assert len(described) == len(set(described)), "one is described twice"
assert told == set(described), told ^ set(described)
with open("own.txt") as text:
    own = set(re.findall(r"^# TYPE (\S+)", text.read(), re.M))
assert own < told and "wherry_transfer_bytes_total" in own, own - told
print(len(told), "metrics")
PYTHON
verdict "docs/metrics.md has all of them" $?

# ---- the dashboard -------------------------------------------------------------------------------

python3 - "$port" <<'PYTHON'
"""docs/grafana.json: its queries name only metrics that exist, and labels that these have; Prometheus
takes each of them and has an answer to it."""
import json, os, re, sys, time, urllib.error, urllib.parse, urllib.request


def ask(query):
    address = f"http://127.0.0.1:{sys.argv[1]}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(address, timeout=10) as answer:
        return json.load(answer)["data"]["result"]


with open("all.txt") as text:
    told = text.read()
types = dict(re.findall(r"^# TYPE (\S+) (\S+)", told, re.M))
labels = {}
for name, inside in re.findall(r"^(wherry_\w+)\{(.*)\} \S+$", told, re.M):
    labels.setdefault(name, set()).update(re.findall(r'(\w+)="', inside))
with open(os.environ["TEST_SOURCE"] + "/docs/grafana.json") as text:
    dashboard = json.load(text)
queries, wrong = [], []
# There are rates after two scrapes of both.
end = time.monotonic() + 20
while not ask("min(count_over_time(up[1m])) > 2") and time.monotonic() < end:
    time.sleep(0.3)
for panel in dashboard["panels"]:
    assert panel["type"] == "row" or panel["targets"], panel["title"]
    queries += [(panel["title"], t["expr"], t["legendFormat"]) for t in panel.get("targets", [])]
assert len({p["id"] for p in dashboard["panels"]}) == len(dashboard["panels"])
for variable in dashboard["templating"]["list"]:
    asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable.get("definition", ""))
    if asked and asked[2] not in labels.get(asked[1], ()):
        wrong.append((variable["name"], asked[0]))
for title, query, legend in queries:
    names = set(re.findall(r"wherry_\w+", query))
    for name in names:
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        if name not in types and types.get(base) not in ("histogram", "summary"):
            wrong.append((title, "no metric " + name))
    known = set().union(*(labels.get(n, set()) for n in names)) | {"instance"}
    used = set(re.findall(r"\{\{(\w+)\}\}", legend)) | set(re.findall(r'(\w+)=~?"', query))
    for words in re.findall(r"(?:by|on) \(([^)]*)\)", query):
        used |= set(re.split(r", *", words))
    if used - known:
        wrong.append((title, f"no label {used - known}"))
    query = query.replace("$__rate_interval", "1m").replace("$engine", ".*")
    try:
        if not ask(query):
            wrong.append((title, "no answer to " + query))
    except urllib.error.HTTPError as error:
        wrong.append((title, query, error.read().decode()))
for line in wrong:
    print(*line)
assert not wrong and len(queries) > 20
print(len(queries), "queries")
PYTHON
verdict "the dashboard asks for what there is" $?
exit $failed
