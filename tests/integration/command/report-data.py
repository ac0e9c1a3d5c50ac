#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Made-up results of wherry bench, for tests of its report.

report-data.py DIRECTORY

Writes now.json and before.json, a later and an earlier run of one machine with everything that a
page can show: matrices, curves, and rows that failed, are wrong, could not be measured or are in
one of the two only; same.json, a whole run without differences; first.json, with times to the
first byte; and hostile.json, whose texts contain HTML and control characters.
"""
import copy
import json
import sys

KIB, MIB = 1 << 10, 1 << 20
LIMITS = {"cuda": "cuMemcpy", "shm": "memcpy", "tcp": "send/recv"}


def row(op, source, target, transport, size, bandwidth, ratio=0.97, **more):
    blocks = more.get("blocks", 1)
    latency = 3 + size * blocks / (bandwidth * 1e3)
    return {
        "op": op, "source": source, "target": target, "transport": transport, "processes": 2,
        "ways": 1, "size_bytes": size, "blocks": 1, "form": "single",
        "connections": 1 if transport == "tcp" else None,
        "route_detail": f"by way of {transport}", "mode": "blocking", "pinned": False,
        "in_flight": 4, "working_set_bytes": max(64 * MIB, size * blocks),
        "bandwidth_GBps": bandwidth,
        "latency_us": {"p50": latency, "p99": 2 * latency, "p999": 3 * latency},
        "samples": 1000, "rounds": 9, "submit_ns_per_transfer": 120.5, "first_byte_us": None,
        "verified": True, "limit_name": LIMITS[transport], "limit_GBps": bandwidth / ratio,
        "limit_us": latency * ratio, "ratio": ratio, "latency_ratio": 1 / ratio, **more}


def results():
    rows = []
    for op in ("write", "read"):
        for transport, top, ratio in (("shm", 14.0, 0.99), ("tcp", 6.5, 0.85)):
            for size in (8, 256, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB):
                rows.append(row(op, "host", "host", transport, size,
                                top * size / (size + 32 * KIB), ratio))
        for size, bandwidth in ((KIB, 302.0), (4 * KIB, 340.0), (16 * KIB, 347.0)):
            rows.append(row(op, "cuda:0", "cuda:1", "cuda", size, bandwidth, 0.98, blocks=16384,
                            form="blocks", limit_name="bare kernel"))
    memories = ["pageable", "pinned"] + [f"cuda:{i}" for i in (0, 1, 2, 10)]
    for i, source in enumerate(memories):
        for j, target in enumerate(memories):
            if source != target:
                gpus = source.startswith("cuda") + target.startswith("cuda")
                rows.append(row("write", source, target, "cuda" if gpus else "shm", 64 * MIB,
                                (12.0, 52.0, 380.0)[gpus] * (1 - 0.02 * (i + j)),
                                (0.99, 0.96, 0.7)[gpus], processes=1))
    return rows


def environment(date):
    return {
        "date": date, "wherry": "0.1.0", "revision": "0123456789ab", "kernel": "6.1.0",
        "architecture": "x86_64", "cpu": "A Processor", "cores": 16, "congestion_control": "bbr",
        "tcp_wmem_bytes": [4096, 16384, 4194304], "memory_bytes": 135291469824,
        "gpus": [{"number": i, "name": "NVIDIA H200", "uuid": f"GPU-{i}", "pci": f"0000:0{i}:00.0"}
                 for i in range(4)],
        "cuda_version": 13000, "cache_line_before_ns": 51.8, "cache_line_after_ns": None}


def scale(one, by, limit_too):
    """Make a row `by` times as fast; also its limit if `limit_too`."""
    one["bandwidth_GBps"] *= by
    for name in one["latency_us"]:
        one["latency_us"][name] /= by
    if limit_too:
        one["limit_GBps"] *= by
        one["limit_us"] /= by
    else:
        one["ratio"] *= by
        one["latency_ratio"] /= by


HOSTILE = [
    "</script><script>window.ran = 1</script>", "</style><style>*{display:none}</style>",
    "\"><img src=x onerror=window.ran=1>", "' onmouseover='window.ran=1", "`--><!--",
    "</title></table></main>&lt;b&gt;&#60;i&#62;", "a\u202eb\u2066c\u200ed\u0007e\u0085f",
    "<svg/onload=window.ran=1>" * 40, "é 漢字 🚀", "{{x}} ${x} %s%n",
]


def hostile():
    rows, at = [], 0
    for size in (8, MIB, 64 * MIB):
        for text in HOSTILE:
            one = row(text, text, HOSTILE[at % len(HOSTILE)], "shm", size, 10.0 + at)
            one.update(transport=text[:60], route_detail=text, form=text, mode=text,
                       limit_name=text)
            if at % 7 == 3:
                one["error"] = text
            rows.append(one)
            at += 1
    return {"schema": 1, "environment": {text: text for text in HOSTILE} |
            {"gpus": [{text: text} for text in HOSTILE], "cpu": HOSTILE[0], "date": HOSTILE[1]},
            "results": rows, "footprint": {text: text for text in HOSTILE},
            "skipped": [{**rows[i], "reason": text} for i, text in enumerate(HOSTILE)]}


def write(directory, name, value):
    with open(f"{directory}/{name}.json", "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)


def main():
    directory = sys.argv[1]
    rows = results()
    whole = {"schema": 1, "environment": environment("2026-01-02T03:04:05Z"), "results": rows,
             "skipped": [], "footprint": None}
    write(directory, "same", whole)
    first = copy.deepcopy(whole)
    first["results"][16]["first_byte_us"] = {"new": 41.25, "prepared": 17.5}
    write(directory, "first", first)

    before = copy.deepcopy(whole)
    before["environment"]["date"] = "2025-12-31T23:59:59Z"
    before["environment"]["kernel"] = "6.0.0"
    was = before["results"]
    scale(was[0], 2, False)     # latency: worse now
    scale(was[5], 0.5, False)   # bandwidth: better now
    scale(was[6], 1.5, True)    # as its limit
    scale(was[12], 1.05, False) # noise
    was[13]["size_bytes"] = 128 * MIB  # in the baseline only
    write(directory, "before", before)

    now = copy.deepcopy(whole)
    now["results"][1].update(verified=False)
    now["results"][2].update(error="the peer went away", bandwidth_GBps=None, verified=None,
                             latency_us={"p50": None, "p99": None, "p999": None})
    for key in ("limit_GBps", "limit_us", "ratio", "latency_ratio", "limit_name"):
        now["results"][3][key] = None
    now["skipped"] = [{**rows[0], "transport": "rdma", "reason": "no device"}]
    now["footprint"] = {"idle_engine_bytes": 3 << 20, "peers": 4}
    write(directory, "now", now)
    write(directory, "hostile", hostile())


main()
