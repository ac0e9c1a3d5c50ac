# SPDX-License-Identifier: Apache-2.0
"""A peer that speaks Mooncake's protocol, implemented from what its engines send.

mooncake_peer.py server VERSION MANNER FILE
    an engine with 4 MiB at 0x700000000000, filled from FILE and written back there after each
    request. Prints its HOST:PORT.
mooncake_peer.py store USER PASSWORD
    a web server that stores what is PUT with this user and password. Prints its HOST:PORT.
mooncake_peer.py lock HOST:PORT USER PASSWORD
    make the etcd there require this user and password
mooncake_peer.py client HOST:PORT CASE...
    send `wherry serve --mooncake` valid and invalid requests
"""
import base64
import http.server
import json
import os
import socket
import struct
import sys
import threading
import time
import urllib.parse
import urllib.request

ADDRESS, SIZE = 0x700000000000, 4 << 20
ELSEWHERE = ("127.0.0.2", 0)
OK, REJECTED = 0x4D43545600000000, 0x4D43545600000001


def receive(connection, length):
    """Read exactly `length` bytes. None: the stream has ended."""
    parts = []
    while length:
        part = connection.recv(min(length, 1 << 20))
        if not part:
            return None
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


# ---- an engine -----------------------------------------------------------------------------------

class Engine:
    """MANNER: good; once (a connection for each request); refuse; short, status, reset (of data); type,
    long, json, rdma, nothing, nowhere (of the control port)."""

    def __init__(self, version, manner, path):
        self.version, self.manner, self.path = version, manner, path
        self.lock = threading.Lock()
        with open(path, "rb") as file:
            self.memory = bytearray(file.read().ljust(SIZE, b"\0"))
        self.control = socket.create_server(("127.0.0.1", 0))
        self.data = socket.create_server(("127.0.0.1", 0))

    def serve(self):
        threading.Thread(target=self.take, args=(self.data, self.move), daemon=True).start()
        print("127.0.0.1:%d" % self.control.getsockname()[1], flush=True)
        self.take(self.control, self.answer)

    @staticmethod
    def take(listener, then):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=then, args=(connection,), daemon=True).start()

    def describe(self):
        segment = {"name": "a peer", "protocol": "tcp", "timestamp": "",
                   "tcp_data_port": self.data.getsockname()[1],
                   "buffers": [{"name": "cpu:0", "addr": ADDRESS, "length": SIZE}]}
        if self.version > 1:
            segment["tcp_proto_version"] = self.version
        if self.manner == "rdma":
            segment["protocol"] = "rdma"
        if self.manner == "nothing":
            segment["buffers"] = []
        if self.manner == "nowhere":
            segment["tcp_data_port"] = 0
        return json.dumps(segment).encode() if self.manner != "json" else b"{\"name\":"

    def answer(self, connection):
        frame = receive(connection, struct.unpack("<Q", receive(connection, 8))[0])
        assert frame[0] == 1 and json.loads(frame[1:])["protocol"] == "tcp", frame
        reply = bytes([3 if self.manner == "type" else 1]) + self.describe()
        length = 1 << 40 if self.manner == "long" else len(reply)
        connection.sendall(struct.pack("<Q", length) + reply)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        connection.close()

    def move(self, connection):
        while self.one(connection) and self.manner != "once":
            pass
        connection.close()

    def one(self, connection):
        header = receive(connection, 24)
        if header is None:
            return False
        size, address, op = struct.unpack("<QQB", header[:17])
        confirmed, offset = op & 0x80, address - ADDRESS
        assert bool(confirmed) == (self.version > 1), op
        inside = 0 <= offset and size and offset + size <= SIZE
        if self.manner == "reset" or not inside or self.manner == "refuse":
            if confirmed and self.manner != "reset":
                connection.sendall(struct.pack("<Q", REJECTED))
            return False
        status = struct.pack("<Q", 0x1234 if self.manner == "status" else OK) if confirmed else b""
        if op & 1:
            payload = receive(connection, size)
            with self.lock:
                self.memory[offset:offset + size] = payload
                with open(self.path, "wb") as file:
                    file.write(self.memory)
            connection.sendall(status)
        else:
            connection.sendall(status + self.memory[offset:offset + size // (2 if self.manner == "short" else 1)])
        return self.manner != "short"


# ---- stores of metadata --------------------------------------------------------------------------

class Store(http.server.BaseHTTPRequestHandler):
    secret, values = "", {}

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def serve(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urllib.parse.urlsplit(self.path)
        key = urllib.parse.parse_qs(url.query).get("key", [""])[0]
        if self.headers.get("Authorization") != self.secret:
            self.answer(401)
        elif self.command == "PUT":
            self.values[key] = body
            self.answer(200)
        elif key not in self.values:
            self.answer(404)
        else:
            self.answer(200, self.values[key] if self.command == "GET" else b"")
            if self.command == "DELETE":
                del self.values[key]

    do_GET = do_PUT = do_DELETE = serve

    def log_message(self, *_):
        pass


def store(user, password):
    Store.secret = "Basic " + base64.b64encode(("%s:%s" % (user, password)).encode()).decode()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
    print("127.0.0.1:%d" % server.server_address[1], flush=True)
    server.serve_forever()


def lock(where, user, password):
    for path, body in (("user/add", {"name": user, "password": password}), ("role/add", {"name": "root"}),
                       ("user/grant", {"user": user, "role": "root"}), ("enable", {})):
        request = urllib.request.Request("http://%s/v3/auth/%s" % (where, path), json.dumps(body).encode())
        urllib.request.urlopen(request, timeout=10).read()


# ---- requests to wherry serve --------------------------------------------------------------------

def ask(where, kind, body):
    """Send a control message and read the answer up to the end of the stream."""
    connection = socket.create_connection(where)
    connection.sendall(struct.pack("<QB", len(body) + 1, kind) + body)
    head = receive(connection, 8)
    reply = head and receive(connection, struct.unpack("<Q", head)[0])
    assert connection.recv(1) == b"", "something behind the answer"
    connection.close()
    return reply


class Data:
    """A data connection."""

    def __init__(self, where, source=None):
        self.connection = socket.create_connection(where, timeout=10 if source else 60,
                                                   source_address=source)

    def send(self, size, address, op, payload=b"", padding=b"\x5a" * 7):
        self.connection.sendall(struct.pack("<QQB", size, address, op) + padding + payload)

    def read(self, address, size, version=2):
        self.send(size, address, 0x80 if version == 2 else 0)
        if version == 2:
            assert self.status() == OK
        return receive(self.connection, size)

    def write(self, address, payload, version=2):
        self.send(len(payload), address, 0x81 if version == 2 else 1, payload)
        return self.status() if version == 2 else None

    def status(self):
        return struct.unpack("<Q", receive(self.connection, 8))[0]

    def ended(self):
        try:
            return self.connection.recv(1) == b""
        except ConnectionResetError:
            return True


class Client:
    def __init__(self, control):
        host, port = control.rsplit(":", 1)
        self.control = (host, int(port))
        self.segment = json.loads(ask(self.control, 1, b"{}")[1:])
        self.where = (self.segment["tcp_data_host"], self.segment["tcp_data_port"])
        self.buffer = self.segment["buffers"][0]
        self.address, self.length = self.buffer["addr"], self.buffer["length"]

    def data(self, source=None):
        return Data(self.where, source)

    def the_segment(self):
        segment = self.segment
        assert segment["name"] == "%s:%d" % self.control and segment["protocol"] == "tcp", segment
        assert segment["tcp_proto_version"] == 2 and len(segment["buffers"]) == 2, segment
        assert self.length == 8 << 20, segment

    def both_versions(self):
        for version in (1, 2):
            data = self.data()
            for size in (1, 7, 4096, 65537, 3 << 20):
                payload = os.urandom(size)
                assert data.write(self.address + 5, payload, version) in (None, OK)
                assert data.read(self.address + 5, size, version) == payload

    def the_whole(self):
        payload, data = os.urandom(self.length), self.data()
        assert data.write(self.address, payload) == OK
        assert data.read(self.address, self.length) == payload

    def in_small_pieces(self):
        """The header and the payload arrive byte by byte."""
        connection = socket.create_connection(self.where)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in struct.pack("<QQB", 9, self.address, 0x81) + b"\0" * 7 + b"wherryman":
            connection.sendall(bytes([byte]))
        assert receive(connection, 8) == struct.pack("<Q", OK)
        assert self.data().read(self.address, 9) == b"wherryman"

    def requests_ahead(self):
        """Requests are sent before the previous ones are answered."""
        data = self.data()
        for i in range(100):
            data.send(4, self.address + 4 * i, 0x81, struct.pack("<I", i))
        for i in range(100):
            assert data.status() == OK
            data.send(4, self.address + 4 * i, 0x80)
        for i in range(100):
            assert data.status() == OK and receive(data.connection, 4) == struct.pack("<I", i)

    def many_at_once(self):
        connections = [self.data() for _ in range(50)]
        for i, data in enumerate(connections):
            data.send(4096, self.address + 4096 * i, 0x81, bytes([i]) * 4000)
        for i, data in enumerate(connections):
            data.connection.sendall(bytes([i]) * 96)
        for i, data in enumerate(connections):
            assert data.status() == OK
            assert data.read(self.address + 4096 * i, 4096) == bytes([i]) * 4096

    def beside(self, way):
        """The end (way > 0) or start of published memory without gaps: parts may be adjacent."""
        parts = [(b["addr"], b["addr"] + b["length"]) for b in self.segment["buffers"]]
        at = self.address if way < 0 else self.address + self.length
        while any(at == (part[1] if way < 0 else part[0]) for part in parts):
            at = next(part[0] if way < 0 else part[1] for part in parts if at == (part[1] if way < 0 else part[0]))
        return at

    def outside(self):
        """Requests outside of the memory move no byte and end the connection, in both versions."""
        end = self.address + self.length
        rows = [(0, self.address), (1, self.beside(-1) - 1), (1, self.beside(1)), (2, end - 1),
                (self.length + 1, self.address),
                (1, 0), (1, 1 << 63), ((1 << 64) - 1, self.address), (1 << 63, self.address), (16, (1 << 64) - 8),
                ((1 << 64) - self.address, self.address), ((1 << 64) - 1, (1 << 64) - 1)]
        before = self.data().read(self.address, self.length)
        for size, address in rows:
            for op in (0x80, 0x81):
                data = self.data()
                data.send(size, address, op, b"x" * 8)
                assert data.status() == REJECTED, (size, address)
                data.connection.shutdown(socket.SHUT_WR)
                assert data.ended()
                data = self.data()
                data.send(size, address, op & 1, b"x" * 8)
                assert data.ended(), (size, address)
        assert self.data().read(self.address, self.length) == before

    def refused_with_its_bytes(self):
        """The status arrives before the payload has been sent completely."""
        data = self.data()
        data.send(1 << 20, 4096, 0x81, b"x" * (1 << 20))
        assert data.status() == REJECTED
        data.connection.shutdown(socket.SHUT_WR)
        assert data.ended()

    def operations(self):
        for op in (0x82, 0xff):
            data = self.data()
            data.send(1, self.address, op)
            assert data.status() == REJECTED
        for op in (0x02, 0x7f):
            data = self.data()
            data.send(1, self.address, op)
            assert data.ended()

    def cut_off(self):
        """Requests that are cut off do not disturb other connections."""
        for length in (1, 23, 24, 30):
            data = self.data()
            data.connection.sendall((struct.pack("<QQB", 4096, self.address, 0x81) + b"\0" * 100)[:length])
            data.connection.close()
        data = self.data()
        data.send(self.length, self.address, 0x80)
        data.connection.recv(100)
        data.connection.close()
        assert self.data().write(self.address, b"still there") == OK

    def questions(self):
        assert ask(self.control, 3, b"{}") == b"\x03{\"status\":\"success\"}"
        reply = ask(self.control, 2, b"{\"name\":\"decoder 7\",\"notify_msg\":\"block 9 \\u0007\"}")
        assert json.loads(reply[1:])["notify_msg"] == "success" and reply[0] == 2
        reply = json.loads(ask(self.control, 0, b"{\"qp_num\":[1]}")[1:])
        assert "RDMA" in reply["reply_msg"] and reply["qp_num"] == []

    def wrong_questions(self):
        for kind, body in ((1, b""), (1, b"{"), (1, b"[]"), (2, b"{}"), (2, b"{\"name\":1,\"notify_msg\":2}"),
                           (4, b"{}"), (255, b"{}"), (1, b"{}" * 500000)):
            assert ask(self.control, kind, body) is None, (kind, body[:20])
        for head in (struct.pack("<Q", 0), struct.pack("<Q", (1 << 20) + 1), b"\xff" * 8):
            connection = socket.create_connection(self.control)
            connection.sendall(head)
            assert connection.recv(1) == b""
        assert ask(self.control, 3, b"{}")

    def silent(self):
        """More silent connections than the server keeps: it closes the oldest and still answers."""
        quiet = [socket.create_connection(self.control) for _ in range(100)]
        assert ask(self.control, 3, b"{}")
        assert quiet[0].recv(1) == b""
        idle = [self.data() for _ in range(1100)]
        assert idle[-1].read(self.address, 1) and idle[0].ended()

    def a_crowd(self):
        """One address begins requests on all connections that it can have, and completes none."""
        kept = self.data(ELSEWHERE)
        kept.send(4096, self.address, 0x81, b"k" * 95)
        header = struct.pack("<QQB", 4096, self.address + 4096, 0x81) + b"\0" * 7
        crowd = []
        for i in range(1100):
            crowd.append(self.data())
            crowd[-1].connection.sendall(header[:1 + i % 24] if i % 2 else header + b"x")
        time.sleep(0.5) # until the server has received all of it
        # Connections from another address still work, old ones and new ones.
        assert self.data(ELSEWHERE).read(self.address, 1)
        kept.connection.sendall(b"k" * 4001)
        assert kept.status() == OK
        # After a second, a new connection from this address replaces one that has moved too few
        # bytes.
        time.sleep(1.5)
        assert self.data().read(self.address, 4096) == b"k" * 4096
        for data in crowd:
            data.connection.close()

    def a_crowd_of_questions(self):
        """The same on the control port."""
        kept = socket.create_connection(self.control, source_address=ELSEWHERE)
        kept.sendall(struct.pack("<Q", 3))
        # The server receives this before the crowd connects.
        time.sleep(0.2)
        crowd = [socket.create_connection(self.control) for _ in range(600)]
        for connection in crowd:
            try:
                connection.sendall(struct.pack("<QB", 1 << 20, 1) + b"{" * 4000)
            except ConnectionError:
                pass
        assert ask(self.control, 3, b"{}")
        kept.sendall(b"\x03{}")
        assert receive(kept, 8) is not None
        for connection in crowd:
            connection.close()

    def big_questions(self):
        """One address gets no more memory than its quota: the server drops its oldest messages."""
        crowd = [socket.create_connection(self.control) for _ in range(100)]
        for connection in crowd:
            try:
                connection.sendall(struct.pack("<QB", 1 << 20, 1) + b" " * ((1 << 20) - 2))
            except ConnectionError:
                pass
            connection.setblocking(False)
        gone, until = set(), time.monotonic() + 20
        while len(gone) < 60 and time.monotonic() < until:
            time.sleep(0.2)
            for connection in crowd:
                try:
                    if connection.recv(1) == b"":
                        gone.add(connection)
                except BlockingIOError:
                    pass
                except ConnectionError:
                    gone.add(connection)
        gone = len(gone)
        for connection in crowd:
            connection.close()
        assert 60 <= gone <= 80, gone
        assert ask(self.control, 3, b"{}")

    def trickle(self):
        """A request that hardly moves is ended after 30 s; one that is merely slow goes on."""
        slow, kept = self.data(), self.data()
        slow.send(1 << 20, self.address, 0x81)
        kept.send(self.length, self.address, 0x81)
        header = self.data()
        start = time.monotonic()
        gone = {}
        for turn in range(20):
            for name, data, part in (("slow", slow, b"s"), ("header", header, b"\0"), ("kept", kept, b"k" * 200000)):
                try:
                    data.connection.sendall(part)
                    data.connection.setblocking(False)
                    assert data.connection.recv(1) == b""
                    gone.setdefault(name, time.monotonic() - start)
                except BlockingIOError:
                    data.connection.setblocking(True)
                except ConnectionError:
                    gone.setdefault(name, time.monotonic() - start)
            time.sleep(2)
        assert set(gone) == {"slow", "header"} and all(29 < at < 38 for at in gone.values()), gone

    def read_only(self):
        data = self.data()
        assert data.read(self.address, 10)
        assert data.write(self.address, b"x") == REJECTED

    def the_other_memory(self):
        """The second memory, which may be a GPU's."""
        other, data = self.segment["buffers"][1], self.data()
        for size in (1, 4096, other["length"]):
            for version in (1, 2):
                payload = os.urandom(size)
                data.write(other["addr"], payload, version)
                assert data.read(other["addr"], size, version) == payload
        assert data.write(other["addr"] + other["length"] - 1, b"xx") == REJECTED


def main():
    if sys.argv[1] == "server":
        Engine(int(sys.argv[2]), sys.argv[3], sys.argv[4]).serve()
    if sys.argv[1] == "store":
        store(*sys.argv[2:])
    if sys.argv[1] == "lock":
        lock(*sys.argv[2:])
        return
    client = Client(sys.argv[2])
    failed = False
    for name in sys.argv[3:]:
        try:
            getattr(client, name)()
            print("[       OK ] " + name, flush=True)
        except Exception as error:  # the next case may still pass
            print("[  FAILED  ] %s: %s: %s" % (name, type(error).__name__, error), flush=True)
            failed = True
    sys.exit(failed)


main()
