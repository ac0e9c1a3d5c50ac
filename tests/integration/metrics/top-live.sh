#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: fakes slow
# wherry top: as text, CSV and JSON, and on terminals of several sizes, on a machine made of files
# whose GPUs are the fake NVML's.
set -u
wherry=$TEST_COMMAND
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
export LC_ALL=C.UTF-8
unset NO_COLOR
# Other engines of this user are not this test's.
mkdir -m 700 engines && export WHERRY_OBSERVE=$directory/engines

put() # PATH TEXT
{
	mkdir -p "hgx/${1%/*}" && printf '%s\n' "$2" >"hgx/$1"
}

"$TEST_SOURCE/tests/fake/machines/make-hgx" hgx && mkdir hgx/lib &&
	ln -s "$TEST_NVML" hgx/lib/libnvidia-ml.so.1 && cat >>hgx/nvml.txt <<'NVML'
nvmlDeviceGetUtilizationRates 7 : 3
nvmlDeviceGetUtilizationRates * : 0 73 20
nvmlDeviceGetPowerUsage * : 0 412345
nvmlDeviceGetEnforcedPowerLimit * : 0 700000
nvmlDeviceGetTemperature * 0 : 0 61
nvmlDeviceGetClockInfo * 1 : 0 1755
nvmlDeviceGetPcieThroughput * 0 : 0 12500000
nvmlDeviceGetPcieThroughput * 1 : 0 250000
nvmlDeviceGetTotalEccErrors 0 1 0 : 0 2
nvmlDeviceGetTotalEccErrors * * 0 : 0 0
nvmlDeviceGetCurrentClocksEventReasons 1 : 0 0x24
nvmlDeviceGetCurrentClocksEventReasons * : 0 1
nvmlDeviceGetFieldValues * 138 4294967295 : 0 1000000
nvmlDeviceGetFieldValues * 139 4294967295 : 0 1000000
nvmlDeviceGetComputeRunningProcesses 0 : 0 4711 1073741824 4712 2147483648
nvmlDeviceGetComputeRunningProcesses 1 : 0 99999 3221225472
nvmlDeviceGetComputeRunningProcesses * : 0
NVML
stat="S 1 1 1 0 -1 4194560 100 0 0 0 500 50 0 0 20 0 1 0 100 1000000 2560 18446744073709551615"
put /proc/4711/stat "4711 (trainer (a) b) $stat"
put /proc/4712/stat "4712 (server) $stat"
put /proc/net/snmp "Ip: Forwarding
Ip: 1
Tcp: RtoAlgorithm RetransSegs InErrs
Tcp: 1 42 0"
counters=/sys/class/infiniband/mlx5_0/ports/1/counters
put $counters/port_xmit_data 1000
put $counters/port_rcv_data 1000
put $counters/port_rcv_errors 0
put $counters/port_xmit_discards 0
hw_counters=/sys/class/infiniband/mlx5_0/ports/1/hw_counters
put $hw_counters/packet_seq_err 0
put $hw_counters/local_ack_timeout_err 0
put /sys/class/net/ens1/statistics/tx_bytes 5
put /sys/class/net/ens1/statistics/rx_bytes 5

top() # ARGUMENTS...
{
	FAKE_NVML=hgx/nvml.txt timeout 200 "$wherry" top --root hgx "$@"
}

# ---- text, CSV, JSON --------------------------------------------------------------------------

top --once --interval 0.1 >out && [ "$(grep -c '^GPU[0-7] ' out)" = 8 ] &&
	grep -q 'GPU0 .* 73% ███████   .*412/700 *W *61 C *1755 MHz' out &&
	grep -q 'PCIe *12.50 *20% out *0.25 *0% in *NVLink *0.00 *0% out' out &&
	grep -q 'ECC uncorrected 2, clocks limited by idle' out &&
	grep -q 'limited by power+heat' out &&
	grep -q '^GPU7 .*  - ' out && grep -q '^mlx5_0 *ACTIVE *0.00 *0% out' out
verdict "text" $?
[ "$(grep -A9 '^ *PID' out | awk '{ print $1 }' | tr '\n' ' ')" = "PID - 4712 4711 " ] &&
	grep -q '4711 *0 *1 GiB *10 MiB *0  trainer (a) b' out &&
	grep -q -- '- *1 *3 GiB *- *- *- (in another PID namespace)' out
verdict "processes, by GPU memory" $?
top --query index,power.draw,utilization.gpu,clocks_event_reasons -n 2 -i 0.1 >out
{
	echo "index, power.draw [W], utilization.gpu [%], clocks_event_reasons"
	for ((i = 0; i < 16; i++)); do
		busy=73 reasons=idle
		[ $((i % 8)) != 7 ] || busy=-
		[ $((i % 8)) != 1 ] || reasons=power+heat
		echo "$((i % 8)), 412.345, $busy, $reasons"
	done
} | diff - out
verdict "chosen fields" $?
top --csv -i 0.1 >out && [ "$(wc -l <out)" = 9 ] &&
	[ "$(awk -F ', ' '{ print NF }' out | sort -u)" = "$("$wherry" top --fields | wc -l)" ]
verdict "all fields" $?
top --json -n 3 -i 0.1 >out
python3 - <<'PYTHON'
import json
with open("out") as lines:
    samples = [json.loads(line) for line in lines]
assert len(samples) == 3
for sample in samples:
    assert sample["schema"] == 1 and 0.05 < sample["interval_seconds"] < 2
    assert sample["tcp_retransmits_per_s"] == 0 and sample["missing"] is None
    gpus, nics, processes = sample["gpus"], sample["nics"], sample["processes"]
    assert len(gpus) == 8 and len(nics) == 9 and len(processes) == 3
    assert gpus[0]["power_watts"] == 412.345 and gpus[0]["ecc_uncorrected"] == 2
    assert gpus[7]["gpu_busy_percent"] is None and gpus[6]["gpu_busy_percent"] == 73
    assert gpus[3]["nvlink_sent_gb_per_s"] == 0 and gpus[3]["nvlink_most_gb_per_s"] == 478.116
    assert nics[0]["sent_bytes"] == 4000 and nics[1]["sent_bytes"] is None
    assert {p["pid"] for p in processes} == {4711, 4712, None}
PYTHON
verdict "JSON" $?

# Why there is no number: NVML's word for it, where it is asked for.
sed -i '1i nvmlDeviceGetPowerUsage 7 : 4\nnvmlDeviceGetTemperature 7 0 : 999' hgx/nvml.txt
top --once -i 0.1 >out && ! grep -q -- ' -: ' out && top --once -i 0.1 --why >out &&
	sed -n '/^GPU7/,/^[^ ]*mlx/p' out |
	grep -q -- "^      -: utilization.gpu, utilization.memory, .*: not$(
	) supported; power.draw: no permission; temperature.gpu: an error of the driver$" &&
	! sed -n '/^GPU6/,/^GPU7/p' out | grep -q -- '-:.*power.draw'
verdict "--why, as text" $?
top --query index,power.draw,utilization.gpu,temperature.gpu,nvlink.max --why -i 0.1 >out &&
	grep -q '^7, \[no permission\], \[not supported\], \[an error of the driver\], 478.116$' \
	out &&
	grep -q '^6, 412.345, 73, 61, 478.116$' out
verdict "--why, in CSV" $?
top --json -i 0.1 --why >out && python3 - <<'PYTHON'
import json
with open("out") as line:
    gpus = json.loads(line.readline())["gpus"]
missing = gpus[7]["missing"]
assert missing["power_watts"] == "no permission" and missing["gpu_busy_percent"] == "not supported"
assert missing["temperature_celsius"] == "an error of the driver"
# A reason for each number that is not known, and for no other.
for gpu in gpus:
    assert set(gpu["missing"]) == {k for k, v in gpu.items() if v is None and k != "problem"}, gpu
PYTHON
verdict "--why, in JSON" $?

# NICs, and processes.
loop=/sys/class/infiniband/mlx5_2/ports/1/counters
mkdir -p hgx$loop && ln -s port_xmit_data hgx$loop/port_xmit_data
mv hgx/proc/4712/stat kept && ln -s stat hgx/proc/4712/stat
top --once -i 0.1 --why >out && grep -A 1 '^mlx5_1 ' out |
	grep -q '^      -: out, in, errors/s, retransmits/s: the driver has no such file in sysfs$' &&
	grep -A 1 '^mlx5_2 ' out | grep \
	-q '^      -: out: Too many levels of symbolic links; in, errors/s,' &&
	! grep -A 1 '^mlx5_0 ' out | grep -q -- '-:' &&
	grep -A 1 '^ens1 ' out | grep \
	-q 'errors/s: the driver has no .*; retransmits/s: TCP counts them for all' &&
	grep -A 1 '^ *4712 ' out | grep \
	-q '^      -: name, memory, CPU: Too many levels of symbolic links$' &&
	grep -A 1 'in another PID namespace)$' out |
	grep -q '^      -: PID, name, memory, CPU: no process here has' &&
	! grep -A 1 '^ *4711 ' out | grep -q -- '-:'
verdict "--why, of NICs and processes" $?
top --json -i 0.1 --why >out && python3 - <<'PYTHON'
import json
with open("out") as line:
    sample = json.loads(line.readline())
nics = {n["name"]: n for n in sample["nics"]}
assert nics["mlx5_0"]["missing"] == {}
assert nics["mlx5_2"]["missing"]["sent_gb_per_s"] == "Too many levels of symbolic links"
for nic in nics.values():
    assert set(nic["missing"]) == {k for k in nic if nic[k] is None and k not in (
        "netdev", "sent_bytes", "received_bytes")}, nic
processes = {p["pid"]: p["missing"] for p in sample["processes"]}
assert processes[4711] is None and "symbolic" in processes[4712] and "PID" in processes[None], processes
assert sample["engines_missing"] == []
PYTHON
verdict "--why, of NICs and processes in JSON" $?
rm hgx/proc/4712/stat && mv kept hgx/proc/4712/stat && rm -r hgx$loop
sed -i 1,2d hgx/nvml.txt

# Counters that grow, between two samples, of which the first has been made.
: >out
(
	for _ in $(seq 1200); do
		[ -s out ] && break
		sleep 0.05
	done
	put $counters/port_xmit_data 250001000
	put $counters/port_xmit_discards 30
	put $hw_counters/packet_seq_err 70
	sed -i 's/ 138 4294967295 : 0 1000000/ 138 4294967295 : 0 200000000/' hgx/nvml.txt
) &
top --json -i 1 -n 4 >out
wait
python3 - <<'PYTHON'
import json
with open("out") as lines:
    samples = [json.loads(line) for line in lines]
# One of the intervals has it, whichever.
moved = max(s["nics"][0]["sent_gb_per_s"] * s["interval_seconds"] for s in samples)
assert abs(moved - 1) < 0.05, moved
for key, count in ("errors_per_s", 30), ("retransmits_per_s", 70):
    seen = max(s["nics"][0][key] * s["interval_seconds"] for s in samples)
    assert abs(seen - count) < count / 20, (key, seen)
# 199 million KiB, by the GPUs' own thread.
moved = max(s["gpus"][3]["nvlink_sent_gb_per_s"] * s["interval_seconds"] for s in samples)
assert abs(moved - 203.776) < 12, moved
PYTHON
verdict "a rate" $?

# A GPU that falls off the bus and comes back, while it is looked at. Of the fake's file the first
# line that fits counts; it is never seen half written.
edit() # SED-SCRIPT
{
	sed "$1" hgx/nvml.txt >hgx/nvml.new && mv hgx/nvml.new hgx/nvml.txt
}
for result in 15 16; do
	: >out
	top --json -i 0.2 -n 40 >>out &
	lines() # FIRST: so many samples are there
	{
		local i

		for ((i = 0; i < 1200 && $(wc -l <out) < $1; i++)); do
			sleep 0.05
		done
	}
	lines 3
	edit "1i nvmlDeviceGetUtilizationRates 3 : $result\\nnvmlDeviceGetPowerUsage 3 : $result"
	lines 14
	edit '1,2d'
	wait $!
	python3 - $result <<'PYTHON'
import itertools, json, sys
with open("out") as lines:
    samples = [json.loads(line) for line in lines]
says = {"15": "GPU is lost (NVML 15)", "16": "reset required (NVML 16)"}[sys.argv[1]]
gpus = [sample["gpus"][3] for sample in samples]
# Well, lost, well: nothing in between, and nothing of the one when it is the other.
turns = [lost for lost, _ in itertools.groupby(gpu["problem"] is not None for gpu in gpus)]
assert turns == [False, True, False], turns
for gpu in gpus:
    numbers = [v for k, v in gpu.items() if k not in
               ("index", "name", "uuid", "pci_address", "problem", "pcie_most_gb_per_s",
                "nvlink_most_gb_per_s")]
    if gpu["problem"]:
        assert says in gpu["problem"] and not any(v is not None for v in numbers), gpu
    else:
        assert gpu["gpu_busy_percent"] == 73 and gpu["power_limit_watts"] == 700, gpu
    assert gpu["uuid"] and gpu["pcie_most_gb_per_s"]
assert all(s["gpus"][i]["problem"] is None for s in samples for i in (0, 7))
PYTHON
	verdict "a GPU that says $result while it is looked at, and comes back" $?
done

# ---- engines ----------------------------------------------------------------------------------

top --once -i 0.1 >out && grep -q 'no engine of this user' out
verdict "no engine" $?
top --json -i 0.1 --observe off >out && grep -q '"engines": *null' out
verdict "engines that are not asked for" $?

made() # NAME PEERS HOW
{
	local i

	python3 "$TEST_SOURCE/tests/integration/lib/metrics_engine.py" "engines/$1.observe" "$2" \
		"$3" >"$1.out" &
	for ((i = 0; i < 1200; i++)); do
		[ -s "$1.out" ] && break
		sleep 0.05
	done
}
made 1-made 20 grow
top --json -n 3 -i 0.2 >out
python3 - <<'PYTHON'
import json
with open("out") as lines:
    samples = [json.loads(line) for line in lines]
assert len(samples) == 3
for sample in samples:
    assert sample["engines_silent"] == 0 and sample["left_out"] == 0
    (engine,) = sample["engines"]
    assert engine["name"] == "made" and engine["epoch"] == "0000000000001234"
    assert engine["uptime_seconds"] == 1e-9 and engine["region_bytes"] == 9, engine
    assert engine["inflight_bytes"] == 7000 and engine["attempts"] == 200
    assert engine["unfinished"] == 18 and engine["errors"] == 12, engine
    assert abs(engine["small_p50_us"] - 6.144) < 1e-3 and abs(engine["small_p99_us"] - 8.151) < 1e-3
    assert engine["large_p50_us"] is None and engine["served_read_gb_per_s"] == 0
    peers = engine["peers"]
    assert len(peers) == 20 and {p["name"] for p in peers} == {f"peer-{i}" for i in range(20)}
    for peer in peers:
        i = int(peer["name"][5:])
        assert peer["state"] == "connected" and peer["batches"] == 100 + i and peer["failed"] == 2
        routes = {r["transport"]: r for r in peer["routes"]}
        assert list(routes) == ["self", "cuda", "shm", "tcp"]
        assert routes["shm"]["read_bytes"] == 1000000 + i and routes["shm"]["written_gb_per_s"] == 0
        # 0.25 GB in an interval of about 0.2 s.
        assert 0.05 < routes["tcp"]["written_gb_per_s"] <= 1.4, routes["tcp"]
        assert peer["written_gb_per_s"] == routes["tcp"]["written_gb_per_s"]
        assert peer["errors"] == 12 and peer["reroutes"] == 16
        assert peer["attempts"] == 4 * (50 + i) and routes["shm"]["attempts"] == 50 + i
        assert peer["inflight_bytes"] == 7000 + i
PYTHON
verdict "engines as JSON" $?
for table in engines:1 peers:20 routes:80; do
	top --csv --of "${table%:*}" -i 0.1 >out && [ "$(wc -l <out)" = $((${table#*:} + 1)) ] &&
		[ "$(awk -F ', ' '{ print NF }' out | sort -u)" = \
			"$("$wherry" top --fields --of "${table%:*}" | wc -l)" ]
	verdict "${table%:*} as CSV" $?
done
top --query peer,transport,reads,read.total --of routes -i 0.1 >out &&
	grep -q '^peer-7, shm, 10007, 1000007$' out &&
	[ "$(head -n 1 out)" = "peer, transport, reads, read.total [B]" ]
verdict "chosen fields of routes" $?
top --once -i 0.2 >out && grep -q '^made  *pid [0-9]* *read 0.00, written [0-9.]* GB/s$' out &&
	grep -q '^      <=64 KiB: p50 6.1, p99 8.2 us; larger: p50 -, p99 - us$' out &&
	grep -q '^      in flight 18, [^;]*; sessions [0-9]*; lost [0-9]*; regions [0-9]*, [^;]*$' \
	out &&
	[ "$(grep -c '^  peer-[0-9]* .* connected failed 2; errors 12$' out)" = 8 ] &&
	[ "$(grep -c '^      self 0.00/0.00; .*; tcp 0.00/[0-9.]*; 0 batches/s$' out)" = 8 ] &&
	[ "$(grep -c 'p50 6, p99 8 us; lost [0-9]*; rerouted 16$' out)" = 8 ] &&
	grep -q 'and 12 more peers' out
verdict "engines as text" $?
[ "$(sed -n '/^made /,/more peers/p' out | wc -L)" -le 80 ]
verdict "engines and peers in 80 columns" $?
made 2-silent 1 silent
begun=$(quiet_seconds)
top --once -i 0.1 >out && [ $(($(quiet_seconds) - begun)) -le 6 ] &&
	grep -q '1 engine did not answer' out && grep -q '^made ' out
verdict "an engine that does not answer" $?
made 3-old 1 old
made 4-cut 1 cut
made 5-garbage 1 garbage
top --once -i 0.1 --why >out && grep -A 4 '^4 engines did not answer$' out | tail -n 4 |
	sort >why && diff - why <<'TEXT'
      pid 2: no answer within 0.5 s
      pid 3: it answers in version 1, this command reads version 2
      pid 4: its answer ends too early
      pid 5: its answer is malformed
TEXT
verdict "--why, of engines" $?
top --json -i 0.1 --why >out && python3 - <<'PYTHON'
import json
with open("out") as line:
    sample = json.loads(line.readline())
why = {e["pid"]: e["why"] for e in sample["engines_missing"]}
assert sample["engines_silent"] == 4 and set(why) == {2, 3, 4, 5} and "version 1" in why[3], sample
PYTHON
verdict "--why, of engines in JSON" $?
end_all KILL
top --once -i 0.1 --why --observe "$directory/none" >out &&
	grep -q "none: No such file or directory$" out
verdict "--why, of a directory that is not there" $?
top --once -i 0.1 >out && grep -q 'no engine of this user' out && ! ls engines/*.observe 2>/dev/null
verdict "engines that are dead" $?
"$wherry" bench -t tcp -o write -s 1MiB --seconds 8 >bench.out 2>&1 &
for ((i = 0; i < 40; i++)); do
	top --json -i 0.2 >out
	python3 - 2>real.err <<'PYTHON' && break
import json
with open("out") as line:
    sample = json.loads(line.readline())
one = {e["name"]: e for e in sample["engines"]}
mover = next(e for e in one.values() if e["peers"])
(peer,) = [p for p in mover["peers"] if p["name"] in one]
other = one[peer["name"]]
(route,) = peer["routes"]
assert route["transport"] == "tcp" and route["written_gb_per_s"] > 0 and route["errors"] == 0
assert other["served_written_gb_per_s"] > 0 and other["sessions"] == 1
assert mover["large_p50_us"] > 1 and mover["large_p99_us"] >= mover["large_p50_us"]
assert mover["batches_per_s"] > 0 and mover["read_gb_per_s"] == 0
PYTHON
	false
done
verdict "engines at work" $?
end_all KILL

broken=$TEST_SOURCE/tests/fake/nvml/broken.txt
FAKE_NVML=$broken "$wherry" top --root hgx --once -i 0.1 >out && grep -q 'GPU1 .*GPU is lost' out &&
	grep -q 'GPU2 .*no permission' out
verdict "a GPU that is lost" $?
FAKE_NVML=/nonexistent "$wherry" top --root hgx --once -i 0.1 >out &&
	grep -q 'no GPU: nvmlInit: driver not loaded' out && grep -q '^mlx5_7' out
verdict "no driver" $?
printf 'delay : 0 60000\n' >slow.txt
begun=$(quiet_seconds)
FAKE_NVML=slow.txt "$wherry" top --root hgx --once -i 0.1 >out &&
	[ $(($(quiet_seconds) - begun)) -le 15 ] &&
	grep -q 'has not answered' out && grep -q '^mlx5_7' out
verdict "a driver that hangs" $?
for words in "--query pink|no field 'pink'" "--query=|no field" "--interval 0|between 0.1" \
	"--interval x|between 0.1" "--count 0|--count" "--json --csv|without --csv" \
	"--root nowhere|No such file" "--of pink --csv|none of gpus" \
	"--of peers|the table of --csv" \
	"--query power.draw --of peers|no field 'power.draw'"; do
	read -r -a arguments <<<"${words%|*}"
	! "$wherry" top "${arguments[@]}" >out 2>err && grep -q -F -e "${words#*|}" err &&
		[ ! -s out ]
	verdict "${words%|*}" $?
done

# ---- on a terminal ----------------------------------------------------------------------------

cat >terminal.py <<'PYTHON'
"""terminal.py ROWS COLUMNS KEYS [OPTION...]: run wherry top on a terminal, press keys, one each
0.25 s ('W' makes it one column narrower, so that all is drawn anew, behind a form feed; 'D', 'U' and 'T' are
the arrows down and up and Home), and print all that it wrote; ends as it ended."""
import fcntl, os, pty, select, signal, struct, sys, termios, time

# As terminals send them while ncurses has them in its keypad mode.
ARROWS = {"D": "\x1bOB", "U": "\x1bOA", "T": "\x1bOH"}
rows, columns = int(sys.argv[1]), int(sys.argv[2])
keys = sys.argv[3].encode().decode("unicode_escape")
pid, terminal = pty.fork()
if pid == 0:
    time.sleep(0.1)
    os.environ["TERM"] = os.environ.get("TEST_TERM", "xterm-256color")
    wherry = os.environ["TEST_COMMAND"]
    os.execv(wherry, [wherry, "top", "--root", "hgx", "--interval", os.environ.get("TEST_INTERVAL", "0.1")] +
             sys.argv[4:])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
said = b""
ended = False


def listen(seconds):
    global said, ended
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                said += os.read(terminal, 65536)
            except OSError:
                ended = True
                return


# Where it has room for them, the first picture is complete once there are GPUs.
end = time.monotonic() + 20
while rows > 10 and columns > 60 and b"GPU0" not in said and time.monotonic() < end and not ended:
    listen(0.1)
listen(0.8)
for key in keys:
    if key == "W":
        columns -= 1
        said += b"\f"
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.kill(pid, signal.SIGWINCH)
    else:
        try:
            os.write(terminal, ARROWS.get(key, key).encode())
        except OSError:
            break
    listen(0.25)
end = time.monotonic() + 30
while time.monotonic() < end:
    listen(0.1)
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        sys.stdout.buffer.write(said)
        sys.exit(os.waitstatus_to_exitcode(status) % 256)
os.kill(pid, signal.SIGKILL)
sys.stdout.buffer.write(said)
sys.exit("it did not end")
PYTHON

live() # ROWS COLUMNS KEYS OPTION...
{
	FAKE_NVML=hgx/nvml.txt python3 terminal.py "$@" >screen 2>err || { cat err; return 1; }
	# Without the sequences that move the cursor.
	sed 's/\x1b[][()][0-9;?]*[a-zA-Z0-9]//g' screen >words
	# What has been drawn since the last time that it was all drawn anew.
	awk 'BEGIN { RS = "\f" } { last = $0 } END { print last }' words >last
}

live 60 120 q && grep -q -a 'GPU0 .*73%' words && grep -q -a 'q quit' words &&
	grep -q -a 'trainer (a) b' words && grep -q -a $'\x1b\[3[13]m' screen
verdict "live, with colours" $?
live 60 120 q --color never && ! grep -q -a $'\x1b\[3[0-7]m' screen
verdict "live, without" $?
live 60 120 q --ascii && grep -q -a '#######' words &&
	! LC_ALL=C grep -q -a '[^[:print:][:cntrl:]]' words
verdict "live, in ASCII" $?
live 60 120 wq && grep -q -a -- '-: utilization.gpu, utilization.memory' words && live 60 120 q &&
	! grep -q -a -- '-: utilization.gpu' words
verdict "why, on a key" $?
live 60 120 hq && grep -q -a 'sort processes by the next column' words
verdict "help" $?
made 3-made 20 answer
live 140 140 eWq && grep -q -a '12 more peers (key e)' words && grep -q -a 'peer-19' words &&
	grep -q -a 'shm 0.00/0.00' words
verdict "engines, all their peers" $?
# By name, and those of one name: the first and the last eight of 20, of which peer-9 is the last.
live 140 140 pppWq && grep -q -a 'more peers (key e), by name' last && grep -q -a 'peer-10' last &&
	! grep -q -a 'peer-9' last && live 140 140 ppprWq && grep -q -a 'by name, reversed' last &&
	grep -q -a 'peer-9' last && ! grep -q -a 'peer-10' last
verdict "peers in another order" $?
live 140 140 '/peer-1\rWq' && grep -q -a 'peer-19' last && grep -q -a 'and 3 more peers' last &&
	! grep -q -a 'peer-2' last
verdict "peers of a name" $?
[ "$(grep -o -a 'connected failed 2; errors 12' last | wc -l)" = 8 ] && top --once -i 0.1 >out &&
	grep -A 1 '^made ' out | grep -q '; failed 2; errors 12$'
verdict "errors of peers" $?
end_all KILL
live 60 120 srWq && grep -q -a 'by CPU, reversed' words
verdict "sorting" $?
live 60 120 '/serv\rWq' && grep -q -a 'only serv' words
verdict "a filter" $?
live 60 120 '/zzzW\x1bq' && grep -q -a 'none of that name' words
verdict "a filter that is given up" $?
live 60 120 ' +-- q' && grep -q -a PAUSED words
verdict "held, and slower" $?
# 11 lines of a picture of 39: the last ones, a line more, the first ones.
live 12 120 "$(printf 'D%.0s' {1..35})Wq" && grep -q -a 'trainer (a) b' last &&
	grep -q -a 'mlx5_7' last &&
	! grep -q -a 'GPU[0-7]' last
verdict "arrows: down to the end" $?
live 12 120 "DDWq" && ! grep -q -a 'driver 580' last && grep -q -a 'GPU3' last &&
	! grep -q -a 'GPU4' last
verdict "arrows: two lines down" $?
live 12 120 "DDDDUWq" && grep -q -a 'GPU4' last && ! grep -q -a 'GPU0' last &&
	live 12 120 "DDDDTWq" &&
	grep -q -a 'driver 580' last && grep -q -a 'GPU0' last
verdict "arrows: up again, and Home" $?

# Counters that grow all the time, and what the screen makes of them.
cat >grow.py <<'PYTHON'
import itertools, os, time

with open("hgx/nvml.txt") as text:
    nvml = text.read()


def put(path, text):
    with open("hgx/new", "w") as out:
        out.write(text)
    os.rename("hgx/new", "hgx/" + path)


ports = "sys/class/infiniband/mlx5_0/ports/1/"
for turn in itertools.count(1):
    put("nvml.txt", "".join(f"nvmlDeviceGetFieldValues * {field} 4294967295 : 0 {turn * 2000000 + 1000000}\n"
                            for field in (138, 139)) + nvml)
    put(ports + "counters/port_xmit_discards", f"{turn * 50}\n")
    put(ports + "hw_counters/local_ack_timeout_err", f"{turn * 500}\n")
    time.sleep(0.05)
PYTHON
python3 grow.py &
growing=$!
# Of a second, in which they have grown on a machine that is busy, too.
TEST_INTERVAL=1 live 60 150 WWWWWWWWWWWWq && python3 - <<'PYTHON'
import re
with open("last", errors="replace") as text:
    last = text.read()
# Up to 20 times a second 2,000,000 KiB, of 478 GB/s.
links = re.findall(r"NVLink +([0-9.]+) +([0-9]+)% out +([0-9.]+) +([0-9]+)% in", last)
assert len(links) == 8, last
for out, share, into, also in links:
    assert 4 < float(out) < 50 and 1 <= int(share) < 11 and 1 <= int(also) < 11, links
    assert abs(float(out) / 4.78116 - int(share)) < 0.6, links
errors, again = map(float, re.search(r"mlx5_0 .* errors/s ([0-9]+), retransmits/s ([0-9]+)", last).groups())
assert 100 <= errors <= 1100 and 1000 <= again <= 11000, (errors, again)
PYTHON
verdict "counters that grow, on the screen" $?
kill $growing
wait $growing 2>/dev/null
sed -i 1,2d hgx/nvml.txt
for size in "24 80" "5 20" "2 10" "1 1"; do
	read -r rows columns <<<"$size"
	live "$rows" "$columns" 'DDU?sq'
	verdict "$rows rows of $columns" $?
done
live 40 120 WWq && grep -q -a 'GPU0' words
verdict "a terminal that changes its size" $?
! TEST_TERM=nonsense live 24 80 '' >unknown && grep -q -a 'try --once' screen
verdict "a terminal that is not known" $?

# ---- what it takes ----------------------------------------------------------------------------

# Of a core, at one sample a second. As JSON from what 20 samples more take of the CPU, in whatever
# time; of the live view, which runs until a key is pressed, from what 11 s more take. Other work on
# the machine makes the times longer, hardly the CPU's part of it.
if [ -z "${TEST_SLOW-}" ]; then
	FAKE_NVML=hgx/nvml.txt timeout 200 python3 - "$wherry" <<'PYTHON'
import fcntl, itertools, os, pty, select, struct, subprocess, sys, termios, time

COMMAND = [sys.argv[1], "top", "--root", "hgx"]
with open("hgx/nvml.txt") as text:
    NVML = text.read()


def cpu(process):
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, status
    return usage.ru_utime + usage.ru_stime


def as_json(count):
    return cpu(subprocess.Popen(COMMAND + ["-i", "0.1", "-n", str(count), "--json"],
                                stdout=subprocess.DEVNULL))


def live(seconds):
    """What so many seconds of the live view take, and how much it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 140, 0, 0))
    process = subprocess.Popen(COMMAND + ["-i", "1"], stdin=theirs, stdout=theirs, stderr=theirs,
                               env={**os.environ, "TERM": "xterm-256color"}, start_new_session=True)
    os.close(theirs)
    said, end = b"", time.monotonic() + seconds
    for turn in itertools.count():
        if time.monotonic() > end:
            break
        if select.select([ours], [], [], 0.1)[0]:
            said += os.read(ours, 65536)
        # Each sample has other numbers, all of which are drawn.
        if turn % 5 == 0:
            with open("hgx/nvml.new", "w") as text:
                text.write(f"nvmlDeviceGetUtilizationRates * : 0 {turn % 100} 20\n"
                           f"nvmlDeviceGetPowerUsage * : 0 {300000 + turn * 1000}\n"
                           f"nvmlDeviceGetFieldValues * 138 4294967295 : 0 {1000000 + turn * 9999999}\n"
                           + NVML)
            os.rename("hgx/nvml.new", "hgx/nvml.txt")
    # It is the live one: drawn by ncurses, with all GPUs.
    assert b"q quit" in said and b"\x1b[?1049h" in said and b"GPU7" in said, said[-300:]
    os.write(ours, b"q")
    try:
        while os.read(ours, 65536):
            pass
    except OSError:
        pass
    return cpu(process), len(said)


share = (as_json(22) - as_json(2)) / 20
print(f"JSON: {share * 100:.2f} % of a core at 1 Hz, 8 GPUs")
assert share < 0.02
(short, few), (long, many) = live(2), live(13)
share = (long - short) / 11
print(f"live: {share * 100:.2f} % of a core at 1 Hz, 8 GPUs, {(many - few) / 11:.0f} bytes a second to the terminal")
assert many - few > 1000
assert share < 0.02
PYTHON
	verdict "less than 2 % of a core at 1 Hz with 8 GPUs" $?
fi
exit $failed
