#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wherry top: as text, CSV and JSON, and on terminals of several sizes, on a machine made of files
# whose GPUs are the fake NVML's.
set -u
wherry=$TEST_COMMAND
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../cases.sh" || exit
cd "$directory" || exit 1
export LC_ALL=C.UTF-8
unset NO_COLOR

put() # PATH TEXT
{
	mkdir -p "hgx/${1%/*}" && printf '%s\n' "$2" >"hgx/$1"
}

"$TEST_SOURCE/tests/machines/make-hgx" hgx && mkdir hgx/lib &&
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
put /sys/class/net/ens1/statistics/tx_bytes 5
put /sys/class/net/ens1/statistics/rx_bytes 5

top() # ARGUMENTS...
{
	FAKE_NVML=hgx/nvml.txt timeout 60 "$wherry" top --root hgx "$@"
}

# ---- text, CSV, JSON --------------------------------------------------------------------------

top --once --interval 0.1 >out && [ "$(grep -c '^GPU[0-7] ' out)" = 8 ] &&
	grep -q 'GPU0 .* 73% ███████   .*412/700 *W *61 C *1755 MHz' out &&
	grep -q 'PCIe *12.50 *20% out *0.25 *0% in *NVLink *0.00 *0% out' out &&
	grep -q 'ECC uncorrected 2, clocks held by idle' out && grep -q 'held by power+heat' out &&
	grep -q '^GPU7 .*  - ' out && grep -q '^mlx5_0 *ACTIVE *0.00 *0% out' out
verdict "text" $?
[ "$(grep -A9 '^ *PID' out | awk '{ print $1 }' | tr '\n' ' ')" = "PID - 4712 4711 " ] &&
	grep -q '4711 *0 *1 GiB *10 MiB *0  trainer (a) b' out &&
	grep -q -- '- *1 *3 GiB *- *- *- (of another PID namespace)' out
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

# Counters that grow, between two samples.
(
	sleep 0.7
	put $counters/port_xmit_data 250001000
	sed -i 's/ 138 4294967295 : 0 1000000/ 138 4294967295 : 0 2000000/' hgx/nvml.txt
) &
top --json -i 1 >out
wait
python3 - <<'PYTHON'
import json
with open("out") as line:
    sample = json.loads(line.readline())
seconds = sample["interval_seconds"]
assert abs(sample["nics"][0]["sent_gb_per_s"] * seconds - 1) < 0.05, sample["nics"][0]
PYTHON
verdict "a rate" $?

broken=$TEST_SOURCE/tests/fake/nvml/broken.txt
FAKE_NVML=$broken "$wherry" top --root hgx --once -i 0.1 >out && grep -q 'GPU1 .*GPU is lost' out &&
	grep -q 'GPU2 .*no permission' out
verdict "a GPU that is lost" $?
FAKE_NVML=/nonexistent "$wherry" top --root hgx --once -i 0.1 >out &&
	grep -q 'no GPU: nvmlInit: driver not loaded' out && grep -q '^mlx5_7' out
verdict "no driver" $?
printf 'delay : 0 60000\n' >slow.txt
SECONDS=0
FAKE_NVML=slow.txt "$wherry" top --root hgx --once -i 0.1 >out && [ $SECONDS -le 15 ] &&
	grep -q 'has not answered' out && grep -q '^mlx5_7' out
verdict "a driver that hangs" $?
for words in "--query pink|no field 'pink'" "--query=|no field" "--interval 0|between 0.1" \
	"--interval x|between 0.1" "--count 0|--count" "--json --csv|without --csv" \
	"--root nowhere|No such file"; do
	read -r -a arguments <<<"${words%|*}"
	! "$wherry" top "${arguments[@]}" >out 2>err && grep -q -F -e "${words#*|}" err &&
		[ ! -s out ]
	verdict "${words%|*}" $?
done

# ---- on a terminal ----------------------------------------------------------------------------

cat >terminal.py <<'PYTHON'
"""terminal.py ROWS COLUMNS KEYS [OPTION...]: run wherry top on a terminal, press keys, one each
0.25 s ('W' makes it one column narrower, so that all is drawn anew), and print
all that it wrote; ends as it ended."""
import fcntl, os, pty, select, signal, struct, sys, termios, time

rows, columns = int(sys.argv[1]), int(sys.argv[2])
keys = sys.argv[3].encode().decode("unicode_escape")
pid, terminal = pty.fork()
if pid == 0:
    time.sleep(0.1)
    os.environ["TERM"] = os.environ.get("TEST_TERM", "xterm-256color")
    wherry = os.environ["TEST_COMMAND"]
    os.execv(wherry, [wherry, "top", "--root", "hgx", "--interval", "0.1"] + sys.argv[4:])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
said = b""


def listen(seconds):
    global said
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                said += os.read(terminal, 65536)
            except OSError:
                return


listen(0.8)
for key in keys:
    if key == "W":
        columns -= 1
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.kill(pid, signal.SIGWINCH)
    else:
        try:
            os.write(terminal, key.encode())
        except OSError:
            break
    listen(0.25)
end = time.monotonic() + 5
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
}

live 60 120 q && grep -q -a 'GPU0 .*73%' words && grep -q -a 'q quit' words &&
	grep -q -a 'trainer (a) b' words && grep -q -a $'\x1b\[3[13]m' screen
verdict "live, with colours" $?
live 60 120 q --color never && ! grep -q -a $'\x1b\[3[0-7]m' screen
verdict "live, without" $?
live 60 120 q --ascii && grep -q -a '#######' words &&
	! LC_ALL=C grep -q -a '[^[:print:][:cntrl:]]' words
verdict "live, in ASCII" $?
live 60 120 hq && grep -q -a 'sort processes by the next column' words
verdict "help" $?
live 60 120 srWq && grep -q -a 'by CPU, reversed' words
verdict "sorting" $?
live 60 120 '/serv\rWq' && grep -q -a 'only serv' words
verdict "a filter" $?
live 60 120 '/zzzW\x1bq' && grep -q -a 'none of that name' words
verdict "a filter that is given up" $?
live 60 120 ' +-- q' && grep -q -a HELD words
verdict "held, and slower" $?
for size in "24 80" "5 20" "2 10" "1 1"; do
	read -r rows columns <<<"$size"
	live "$rows" "$columns" '\x1b[B\x1b[B\x1b[A?sq'
	verdict "$rows rows of $columns" $?
done
live 40 120 WWq && grep -q -a 'GPU0' words
verdict "a terminal that changes its size" $?
! TEST_TERM=nonsense live 24 80 '' >unknown && grep -q -a 'try --once' screen
verdict "a terminal that is not known" $?
exit $failed
