#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Setup: fakes
# wherry topo on machines of tests/fake/machines: recorded machines, compared with nvidia-smi
# topo -m of the same machines, and a made-up one with eight GPUs.
set -u
wherry=$TEST_COMMAND
machines=$TEST_SOURCE/tests/fake/machines
# shellcheck source=tests/cases.sh
. "${BASH_SOURCE[0]%/*}/../../cases.sh" || exit
cd "$directory" || exit 1
export LC_ALL=C.UTF-8
unset NO_COLOR

# Give a recorded machine the fake libnvidia-ml.
equip() # DIRECTORY
{
	mkdir -p "$1/lib" && ln -s "$TEST_NVML" "$1/lib/libnvidia-ml.so.1"
}

topo() # MACHINE ARGUMENTS...
{
	local machine=$1

	shift
	FAKE_NVML=$machine/nvml.txt timeout 200 "$wherry" topo --root "$machine" "$@"
}

# ---- against nvidia-smi -----------------------------------------------------------------------

# The cells of nvidia-smi topo -m, "GPU0 GPU1 NV18", "GPU0 mlx5_0 PIX", and the affinities of GPUs.
nvidia_cells() # < TABLE
{
	awk -F '\t' '
		/^#/ { next }
		/^  NIC[0-9]+: / { split($0, legend, /[: ]+/); nic[legend[2]] = legend[3] }
		!columns { for (i = columns = NF; i > 1; i--) name[i] = $i; next }
		/^(GPU|NIC)[0-9]/ {
			for (i = 2; i <= NF; i++) {
				gsub(/ /, "", $i)
				if (name[i] ~ /^(GPU|NIC)[0-9]/)
					cell[++count] = $1 " " name[i] " " $i
				else if (name[i] ~ /^(CPU|NUMA) Aff/ && $1 ~ /^GPU/)
					cell[++count] = $1 " " substr(name[i], 1, 3) " " $i
			}
		}
		END {
			for (i = 1; i <= count; i++) {
				split(cell[i], part, " ")
				print part[1] in nic ? nic[part[1]] : part[1], part[2] in nic ? nic[part[2]] : part[2], part[3]
			}
		}' | sort
}

# The same cells of wherry topo. The affinities are the last columns.
our_cells()
{
	awk '
		/^Distances/ { getline; count = split($0, name) - 3; next_row = 1; next }
		next_row && /^(GPU|mlx5_)/ {
			for (i = 1; i <= count; i++)
				if (name[i] ~ /^(GPU|mlx5_)/)
					print $1, name[i], $(i + 1)
		}
		next_row && /^GPU/ {
			print $1, "CPU", $(count + 2)
			print $1, "NUM", $(count + 3)
		}
		/^  NV#/ { next_row = 0 }' | sort
}

for machine in h200 h200x4; do
	"$machines/pack" -x "$machines/$machine.tree" $machine && equip $machine &&
		topo $machine --color never >$machine.out 2>err
	verdict "$machine: it is shown" $?
	our_cells <$machine.out >ours
	nvidia_cells <"$machines/$machine.nvidia-smi" >theirs
	[ -s theirs ] && diff theirs ours
	verdict "$machine: cell by cell as nvidia-smi topo -m" $?
	# The recordings are older than the checks lib.crypto and container.*.
	FAKE_NVML=$machine/nvml.txt "$wherry" doctor --root $machine --skip lib.crypto,container \
		--json >doctor.json &&
		! grep -q -E '"(WARN|FAIL|UNKNOWN)"' doctor.json
	verdict "$machine: all is well, as it was there" $?
done
grep -q 'L2 60 MiB' h200x4.out && grep -q '18 NVLinks of 26.6 GB/s' h200x4.out &&
	grep -q 'memory 140 GiB, BAR1 256 GiB' h200x4.out && grep -q ' 397 ' h200x4.out
verdict "h200x4: memory, caches, links, expectation" $?
cp -r h200x4 domain && sed -i 's/^\(nvmlDeviceGetGpuFabricInfoV 0\) : .*/\1 : 0 3 0 2 0x11 0x22/' domain/nvml.txt
topo domain --color never >domain.out && topo domain --json >domain.json &&
	[ "$(grep -c NVLink.domain domain.out)" = 1 ] && ! grep -q NVLink.domain h200x4.out &&
	grep -q 'NVLink domain 00000000-0000-0011-0000-000000000022/2 (cl' domain.out &&
	grep -q '"nvlink_domain": *"00000000-0000-0011-0000-000000000022/2"' domain.json
verdict "a GPU in an NVLink domain with other hosts" $?

# ---- eight GPUs -------------------------------------------------------------------------------

"$machines/make-hgx" hgx && equip hgx && topo hgx --json >hgx.json
verdict "a machine with eight GPUs" $?
topo hgx --color never | our_cells >ours && nvidia_cells <"$machines/hgx.nvidia-smi" >theirs
[ "$(wc -l <theirs)" = $((16 * 16 + 16)) ] && diff theirs ours
verdict "eight GPUs: cell by cell as the layout that was written down by hand" $?
python3 - <<'PYTHON'
import json
with open("hgx.json") as text:
    machine = json.load(text)
cells = {(c["from"], c["to"]): c for c in machine["matrix"]}
gpus = [f"GPU{i}" for i in range(8)]
nics = [f"mlx5_{i}" for i in range(8)]
assert len(cells) == (8 + 8 + 1 + 2) ** 2


def near(one, other, same):
    return same if one == other else "NODE" if one // 4 == other // 4 else "SYS"


for i in range(8):
    for k in range(8):
        assert cells[gpus[i], gpus[k]]["distance"] == ("X" if i == k else "NV18")
        assert cells[gpus[i], nics[k]]["distance"] == near(i, k, "PIX"), (i, k)
        assert cells[nics[i], nics[k]]["distance"] == near(i, k, "X")
    assert cells[gpus[i], f"MEM{i // 4}"]["distance"] == "PHB"
    assert cells[gpus[i], f"MEM{1 - i // 4}"]["distance"] == "SYS"
    assert cells[gpus[i], "ens1"]["distance"] == ("NODE" if i < 4 else "SYS")
    assert 396 < cells[gpus[i], gpus[i - 1]]["expected_gb_per_s"] < 397
    assert cells[gpus[i], nics[i]]["expected_gb_per_s"] == 47.5
    assert cells[gpus[i], nics[i]]["route"] == "GPUDirect RDMA"
    assert machine["gpu_nics"][i] == {"gpu": gpus[i], "nic": nics[i]}
    assert machine["gpus"][i]["numa_nodes"] == str(i // 4)
    assert machine["gpus"][i]["cpus"] == ["0-55,112-167", "56-111,168-223"][i // 4]
assert machine["cpu"]["model"] is None and machine["cpu"]["cores"] is None
assert any(m["what"] == "CPU" for m in machine["missing"])
assert machine["storage"][0]["size_bytes"] == 7501476528 * 512
PYTHON
verdict "its distances, routes and NICs" $?
topo hgx --color never >hgx.out && [ "$(grep -c '^NVSwitch' hgx.out)" = 4 ] &&
	grep -q -F '─[2.5 GT/s x16 of 32 GT/s x16]─ 0000:12:00.0' hgx.out &&
	grep -q 'served by mlx5_7 (PIX)' hgx.out && grep -q 'RDMA by mlx5_7 (PIX)' hgx.out &&
	awk '/^Routes/ { on = 1; getline } /^Expected/ { on = 0 } on && /^GPU3 / { print $2, $4, $5, $13, $18, $19 }' \
		hgx.out | grep -qx 'nvl nvl mem gdr tcp\* copy' &&
		grep -q 'nvl: NVLink; gdr: GPUDirect RDMA' hgx.out &&
	! awk 'length > 190' hgx.out | grep -q . && grep -A 1 '^MEM1 ' hgx.out |
	grep -q 'RDMA by mlx5_'
verdict "its links, hop by hop" $?

# The fastest of three runs is shorter than this; up to 30 runs, so that load does not count.
within() # MILLISECONDS ARGUMENT...
{
	local most=$1 start took turn best=999999

	shift
	for turn in $(seq 30); do
		[ "$turn" -le 3 ] || [ $best -ge "$most" ] || break
		start=$(date +%s%N)
		FAKE_NVML=hgx/nvml.txt "$wherry" "$@" --root hgx --json >out 2>err
		took=$((($(date +%s%N) - start) / 1000000))
		[ $took -ge $best ] || best=$took
	done
	echo "$*: $best ms"
	[ -s out ] && [ $best -lt "$most" ]
}
# Under a sanitizer or an emulator, four seconds.
within $((${TEST_SLOW:-0} ? 4000 : 1000)) topo
verdict "eight GPUs: topo within a second" $?
within 10000 doctor && grep -q '"evidence": "mlx5_0: 4096 bytes; .*mlx5_7: 4096 bytes"' out
verdict "eight GPUs: doctor within ten seconds" $?
# A driver that hangs delays doctor by its time limit only.
{ echo "delay : 0 60000"; cat hgx/nvml.txt; } >slow.txt
start=$(quiet_seconds)
FAKE_NVML=slow.txt "$wherry" doctor --root hgx --json >out 2>err
[ $(($(quiet_seconds) - start)) -lt 10 ] && grep -q 'NVML did not answer in time' out &&
	grep -q 'mlx5_7: active' out
verdict "eight GPUs and a driver that hangs: doctor within ten seconds" $?

# A value shown as '-' has its reason in the list of missing values.
cp -a hgx mute && rm -r mute/sys/devices/*/*/*/*/*/infiniband/mlx5_3/ports/1/rate &&
	printf -- '-1\n' >mute/sys/devices/pci0000:50/0000:50:01.0/0000:51:00.0/net/ens1/speed &&
	printf -- '-1\n' >mute/sys/devices/pci0000:50/0000:50:01.0/0000:51:00.0/numa_node &&
	topo mute --json >mute.json && topo mute --color never >mute.out && python3 - <<'PYTHON'
import json
with open("mute.json") as text:
    missing = {m["what"]: m["why"] for m in json.load(text)["missing"]}
assert missing["mlx5_3"] == "rate: No such file or directory", missing
assert missing["ens1"] == "rate: the driver does not say; NUMA node: the firmware does not say", missing
assert "mlx5_0" not in missing
PYTHON
verdict "a NIC's rate and node are missing, and why" $?
grep -q '^  ens1: rate: the driver does not say' mute.out
verdict "and in the text" $?

# NICs reach GPU memory by dma-buf or nvidia-peermem: with neither, bytes are staged in host memory.
# The third machine does not say which it has.
cp -a hgx staged && sed -i 's/dma_buf=9/dma_buf=95/' staged/verbs.txt &&
	topo staged --json >staged.json &&
	topo staged --color never >staged.out
grep -q '"RDMA, staged"' staged.json && ! grep -q '"GPUDirect' staged.json &&
	grep -q '95 % of a port of 400 Gbit/s, through host memory' staged.json &&
	grep -q 'rdma\*: RDMA, staged' staged.out
verdict "NICs without dma-bufs: staged" $?
mkdir -p staged/sys/module/nvidia_peermem && topo staged --json >staged.json
grep -q '"GPUDirect RDMA"' staged.json && ! grep -q '"RDMA, staged"' staged.json
verdict "nvidia-peermem: not staged" $?
cp -a hgx silent && rm silent/verbs.txt && topo silent --json >silent.json &&
	topo silent --color never >silent.out
grep -q '"GPUDirect RDMA or staged"' silent.json && ! grep -q '"GPUDirect RDMA"' silent.json &&
	grep -q 'gdr?: GPUDirect RDMA or staged' silent.out &&
	grep -q 'whether NICs register dma-bufs: ' silent.out
verdict "unknown whether NICs register dma-bufs" $?
sed -i 's/Open //' hgx/proc/driver/nvidia/version && topo hgx --json | grep -q '"RDMA, staged"' &&
	sed -i 's/UNIX Kernel/UNIX Open Kernel/' hgx/proc/driver/nvidia/version
verdict "closed kernel modules: staged" $?

# ---- a terminal ---------------------------------------------------------------------------------

cat >terminal.py <<'PYTHON'
"""terminal.py COLUMNS ARGUMENT...: run wherry on a terminal of so many columns (0: of unknown width).
The file screen gets the output; prints the length of the longest line."""
import fcntl, os, pty, struct, subprocess, sys, termios
ours, theirs = pty.openpty()
fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, int(sys.argv[1]), 0, 0))
process = subprocess.Popen([os.environ["TEST_COMMAND"]] + sys.argv[2:], stdout=theirs, stderr=subprocess.DEVNULL)
os.close(theirs)
output = b""
while True:
    try:
        output += (got := os.read(ours, 65536))
    except OSError:
        break
    if not got:
        break
text = output.decode().replace("\r\n", "\n")
open("screen", "w").write(text)
print(max(len(line) for line in text.splitlines()))
sys.exit(process.wait() > 2)
PYTHON
wide() # MOST COLUMNS ARGUMENT...: the longest line has at most MOST columns, and at least MOST - 12
{
	local most=$1 got

	shift
	got=$(FAKE_NVML=hgx/nvml.txt TERM=xterm python3 terminal.py "$@" --root hgx \
		--color never) &&
		echo "$*: $got of $most" && [ "$got" -le "$most" ] && [ "$got" -ge $((most - 12)) ]
}
for columns in 20 40 79 80 132; do
	wide $columns $columns topo && tr -s ' \n' ' ' <screen |
		grep -q 'Expected GB/s one way, large transfers' &&
		[ "$(grep -c '^ens1 ' screen)" -ge 4 ]
	verdict "topo on $columns columns" $?
	wide $columns $columns doctor && tr -s ' \n' ' ' <screen |
		grep -q 'UNKNOWN lib.crypto the recorded tree has no crypto.txt'
	verdict "doctor on $columns columns" $?
done
COLUMNS=50 wide 50 0 topo && wide 80 0 doctor
verdict "a terminal that does not say, and COLUMNS" $?
[ "$(topo hgx --color never | awk 'length > most { most = length } END { print most }')" -gt 150 ]
verdict "a file has room for every line" $?

# ---- saved and shown again --------------------------------------------------------------------

"$wherry" topo --load hgx.json --json | diff hgx.json - &&
	"$wherry" topo --load hgx.json >one && "$wherry" topo --load - <hgx.json >two &&
	diff one two
verdict "saved, and shown elsewhere" $?
refused() # TEXT NAME-OF-WHAT
{
	! "$wherry" topo --load bad >out 2>err && [ ! -s out ] && [ "$(wc -l <err)" = 1 ] &&
		grep -q -F -e "$1" err
	verdict "$2 is refused" $?
}
head -c 5000 hgx.json >bad
refused "not JSON" "half a file"
echo '{"schema": 9}' >bad
refused 'schema' "another schema"
sed 's/"parent": 0,/"parent": 4000,/' hgx.json >bad
refused "pci: parent is 4000" "an index of nothing"
rm bad
refused "No such file" "no file"
mkdir bad
refused "Is a directory" "a folder"
rmdir bad
ln -s / bad
refused "bad" "a folder"

# ---- other forms ------------------------------------------------------------------------------

topo hgx --svg >hgx.svg && python3 - <<'PYTHON'
import xml.dom.minidom
svg = xml.dom.minidom.parse("hgx.svg").documentElement
_, _, width, height = map(float, svg.getAttribute("viewBox").split())
words = {t.firstChild.data for t in svg.getElementsByTagName("text")}
assert {"GPU7", "mlx5_0", "MEM1", "NV18 397", "hgx", "nvl", "gdr", "tcp*"} <= words, words
for box in svg.getElementsByTagName("rect")[1:]:
    x, y, w, h = (float(box.getAttribute(a)) for a in ("x", "y", "width", "height"))
    assert 0 <= x and x + w <= width and 0 <= y and y + h <= height
assert not svg.getElementsByTagName("script") and "http" not in svg.toxml().replace(
    "http://www.w3.org/2000/svg", "")
PYTHON
verdict "SVG" $?
topo hgx --dot >hgx.dot && python3 - <<'PYTHON'
import re
lines = open("hgx.dot").read().splitlines()
assert lines[0] == "graph topology {" and lines[-1] == "}"
nodes = {m[1] for m in (re.match(r'\t"([^"]*)" \[', line) for line in lines) if m}
edges = [m.groups() for m in (re.match(r'\t"([^"]*)" -- "([^"]*)" \[label="([^"]*)"\]$', line)
                              for line in lines) if m]
assert {f"GPU{i}" for i in range(8)} | {"mlx5_0", "MEM1", "nvme0n1"} <= nodes
assert ("GPU3", "NVSwitch", "NV18") in edges and ("0000:13:00.0", "GPU0", "") in edges
assert ("0000:12:00.0", "0000:13:00.0", "2.5 GT/s x16 of 32 GT/s x16") in edges
assert ("0000:12:01.0", "0000:14:00.0", "32 GT/s x16") in edges
assert ("0000:11:00.0", "0000:12:00.0", "") in edges # inside a switch there is no link
assert ("0000:10:01.0", "0000:11:00.0", "32 GT/s x16") in edges
assert len(lines) == 5 + len(nodes) + len(edges)
PYTHON
verdict "DOT" $?
# A device whose NUMA node is unknown is drawn near no node.
cp -a hgx lost && find lost/sys/devices/pci0000:10 -name numa_node -exec sed -i 's/.*/-1/' {} + &&
	topo lost --dot >lost.dot &&
	topo lost --svg >lost.svg && ! grep -q '"MEM[01]" -- "pci0000:10"' lost.dot &&
	grep -q '"MEM0" -- "pci0000:20"' lost.dot && grep -q 'NUMA node: -' lost.svg &&
	! grep -q 'NUMA node: -' hgx.svg
verdict "a device of no NUMA node that is known" $?
topo hgx --ascii --color never | LC_ALL=C grep -q -v -P '^[\x20-\x7e]*$'
[ $? = 1 ]
verdict "--ascii has nothing else" $?
LC_ALL=C topo hgx --color never | LC_ALL=C grep -q -P '[^\x20-\x7e]'
[ $? = 1 ]
verdict "no other letters where the locale has none" $?
topo hgx | grep -q $'\033'
[ $? = 1 ] && topo hgx --color always | grep -q $'\033\[32mNV18\|\033\[32m *NV18' &&
	! NO_COLOR=1 topo hgx --color auto | grep -q $'\033'
verdict "colours" $?
for words in "--json --svg|choose one" "--load x --root hgx|without --root" \
	"--color pink|one of: auto always never" "--root nowhere|No such file" \
	"--record|needs a value"; do
	read -r -a arguments <<<"${words%|*}"
	! "$wherry" topo "${arguments[@]}" >out 2>err && grep -q -F -e "${words#*|}" err &&
		[ ! -s out ]
	verdict "${words%|*}" $?
done
mkdir empty && topo empty >out && grep -q '^GPU *none' out && grep -q 'NUMA nodes: ' out
verdict "a machine of which nothing is known" $?
exit $failed
