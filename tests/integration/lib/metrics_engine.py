# SPDX-License-Identifier: Apache-2.0
"""Imitates an engine for observers.

metrics_engine.py SOCKET PEERS answer|grow|silent|cut|garbage|endless|old

It answers as docs/metrics.md specifies, implemented from that document alone, or as no engine
would. With grow, each answer counts 250 MB more written to each peer by tcp, and 100 more batches
in latency bucket 5. Prints a line when it listens."""
import os, socket, struct, sys, time

path, peers, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
answers = 0
TRANSPORTS = "self", "cuda", "shm", "tcp"


def text(value):
    data = value.encode()
    return bytes([len(data)]) + data


def numbers(*values):
    return struct.pack(f"<{len(values)}Q", *values)


def latency(buckets):
    out = numbers(sum(buckets.values()), 1000 * sum(buckets.values())) + bytes([len(buckets)])
    for bucket, count in buckets.items():
        out += bytes([bucket]) + numbers(count)
    return out


def counters(i):
    more = answers if how == "grow" else 0
    out = numbers(100 + i, 2, 1) + bytes([len(TRANSPORTS)])
    for name in TRANSPORTS:
        written = 2000000 + i + (250000000 * more if name == "tcp" else 0)
        out += text(name) + numbers(1000000 + i, written, 10000 + i, 20000 + i, 3, 4, 50 + i)
    out += numbers(7000 + i)
    return out + latency({2: 1, 5: 2 + 100 * more, 27: 3}) + latency({k: k + 1 for k in range(28)})


def observation():
    body = struct.pack("<I", os.getpid()) + numbers(0x1234) + text("made") + text("wherry://127.0.0.1:1")
    body += numbers(*range(1, 20)) + counters(0)
    for i in range(peers):
        body += text(f"peer-{i}") + text(f"192.0.2.{i % 250}:{10000 + i}") + struct.pack("<I", 1)
        body += numbers(i, 0) + counters(i)
    body += text("client") + numbers(9, 5, 6, 7)
    return struct.pack("<IIIIII", 0x4F524857, 2, 24 + len(body), peers, 1, 0) + body


os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(16)
answer = observation()
print("ready", flush=True)
kept = []
while True:
    client = listener.accept()[0]
    if how == "silent":
        kept.append(client)
        continue
    question = client.recv(8, socket.MSG_WAITALL)
    assert question == b"wherry?\x02", question
    try:
        if how in ("answer", "grow"):
            client.sendall(answer)
            answers += 1
            answer = observation() if how == "grow" else answer
        elif how == "old":
            client.sendall(answer[:4] + struct.pack("<I", 1) + answer[8:])
        elif how == "cut":
            client.sendall(answer[:-3])
        elif how == "garbage":
            client.sendall(bytes(b ^ 0x5A for b in answer))
        else:
            client.sendall(answer[:40])
            time.sleep(30)
    except OSError:
        pass
    client.close()
