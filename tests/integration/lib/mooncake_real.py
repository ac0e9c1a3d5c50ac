# SPDX-License-Identifier: Apache-2.0
"""Mooncake's own transfer engine as the peer of wherry.

mooncake_real.py check
    load the engine and print its version
mooncake_real.py protocol
    print the version of the data protocol that it speaks
mooncake_real.py client HOST:PORT [CASE...]
    reads and writes the memory of `wherry serve --mooncake`
mooncake_real.py server FILE [METADATA]
    publishes FILE's bytes, prints HOST:PORT ADDRESS; when a line comes on standard input, writes
    them back to FILE; if that is "notes", prints the notifications that have come instead
mooncake_real.py named NAME ADDRESS METADATA
    writes and reads 1 MiB of the engine of that name
"""
import ctypes
import importlib.metadata
import json
import os
import socket
import struct
import sys

os.environ.setdefault("MC_FORCE_TCP", "1")
from mooncake.engine import TransferEngine  # noqa: E402


VERSION = importlib.metadata.version("mooncake-transfer-engine")
# Version 2 came with 0.3.12. In version 1 the owner answers nothing: a write that it refused looks
# like one that arrived.
PROTOCOL = 2 if tuple(int(part) for part in VERSION.split(".")[:3]) >= (0, 3, 12) else 1


def segment_of(name):
    """Ask the peer for its segment: the memory that it publishes."""
    host, port = name.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)))
    connection.sendall(struct.pack("<QB", 3, 1) + b"{}")
    reply = b""
    while part := connection.recv(1 << 16):
        reply += part
    return json.loads(reply[9:])


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def engine(metadata="P2PHANDSHAKE", host="127.0.0.1"):
    made = TransferEngine()
    assert made.initialize(host, metadata, "tcp", "") == 0, "it does not start"
    return made


def memory(made, size):
    buffer = ctypes.create_string_buffer(size)
    assert made.register_memory(ctypes.addressof(buffer), size) == 0
    return buffer, ctypes.addressof(buffer)


class Client:
    def __init__(self, name):
        self.name, self.engine = name, engine()
        self.size = 4 << 20
        self.buffer, self.local = memory(self.engine, self.size)
        self.remote = [buffer["addr"] for buffer in segment_of(name)["buffers"]]

    def fill(self):
        payload = os.urandom(self.size)
        self.buffer.raw = payload
        return payload

    def to_and_back(self):
        for remote in self.remote:
            for size in (1, 4095, 65537, 1 << 20):
                payload = self.fill()
                assert self.engine.transfer_sync_write(self.name, self.local, remote + 3, size) == 0
                self.buffer.raw = bytes(self.size)
                assert self.engine.transfer_sync_read(self.name, self.local, remote + 3, size) == 0
                assert self.buffer.raw[:size] == payload[:size] and not any(self.buffer.raw[size:size + 64])

    def in_batches(self):
        payload, count, size = self.fill(), 256, 4096
        remote = [self.remote[0] + 8192 * i for i in range(count)]
        local = [self.local + size * i for i in range(count)]
        assert self.engine.batch_transfer_sync_write(self.name, local, remote, [size] * count) == 0
        self.buffer.raw = bytes(self.size)
        assert self.engine.batch_transfer_sync_read(self.name, local[::-1], remote, [size] * count) == 0
        for i in range(count):
            at = size * (count - 1 - i)
            assert self.buffer.raw[at:at + size] == payload[size * i:size * (i + 1)], i

    def outside(self):
        status = self.engine.transfer_sync_write(self.name, self.local, self.remote[0] - 1, 16)
        assert status != 0 or PROTOCOL == 1
        assert self.engine.transfer_sync_read(self.name, self.local, 4096, 16) != 0
        # The server still serves valid requests.
        assert self.engine.transfer_sync_write(self.name, self.local, self.remote[0], 16) == 0

    def a_probe(self):
        if not hasattr(self.engine, "send_probe"):
            print("a_probe: version %s has none" % VERSION, flush=True)
            return
        assert self.engine.send_probe(self.name) == 0

    def a_notification(self):
        from mooncake.engine import TransferNotify, TransferOpcode
        for text in ("page 9", "page \u00e9 \u6e21"):
            assert self.engine.transfer_sync(self.name, self.local, self.remote[0], 4096, TransferOpcode.Write,
                                             TransferNotify("prefill", text)) == 0


def client(name, *cases):
    made, failed = Client(name), False
    for case in cases or ("to_and_back", "in_batches", "outside", "a_probe", "a_notification"):
        try:
            getattr(made, case)()
            print("[       OK ] " + case, flush=True)
        except AssertionError as error:
            print("[  FAILED  ] %s: line %d %s" % (case, error.__traceback__.tb_next.tb_lineno, error), flush=True)
            failed = True
    sys.exit(failed)


def server(path, metadata="P2PHANDSHAKE"):
    with open(path, "rb") as file:
        payload = file.read()
    host = "127.0.0.1" if metadata == "P2PHANDSHAKE" else "127.0.0.1:%d" % free_port()
    made = engine(metadata, host)
    buffer, address = memory(made, len(payload))
    buffer.raw = payload
    print(host if ":" in host else "127.0.0.1:%d" % made.get_rpc_port(), address, flush=True)
    for line in sys.stdin:
        if line == "notes\n":
            print(sorted((note.name, note.msg) for note in made.get_notifies()), flush=True)
            continue
        with open(path + ".new", "wb") as file:
            file.write(buffer.raw)
        os.rename(path + ".new", path)
        print("written", flush=True)


def named(name, address, metadata):
    """Find the peer's memory in the metadata store, without asking the peer."""
    made = engine(metadata, "127.0.0.1:%d" % free_port())
    buffer, local = memory(made, 1 << 20)
    buffer.raw = payload = os.urandom(1 << 20)
    assert made.transfer_sync_write(name, local, int(address, 0), 1 << 20) == 0
    buffer.raw = bytes(1 << 20)
    assert made.transfer_sync_read(name, local, int(address, 0), 1 << 20) == 0 and buffer.raw == payload


def main():
    verb, rest = sys.argv[1], sys.argv[2:]
    if verb == "check":
        print("mooncake-transfer-engine", VERSION)
    elif verb == "protocol":
        print(PROTOCOL)
    elif verb == "client":
        client(*rest)
    elif verb == "server":
        server(*rest)
    elif verb == "named":
        named(*rest)


main()
