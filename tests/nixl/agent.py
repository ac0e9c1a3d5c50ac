# SPDX-License-Identifier: Apache-2.0
"""A NIXL agent in a process of its own, which a test tells what to do.

Side(...) starts the process; its methods are those of Agent below, and run there. NIXL is the
wheel's own, whose folder PYTHONPATH names: of its package only the extension is imported, because
before 1.4 the rest wants torch.
"""

import ctypes
import glob
import hashlib
import importlib
import mmap
import multiprocessing
import os
import sys
import threading
import time
import traceback
import types

LIMIT = 60  # s, for what should take far less
POLLS, PAUSE = 100, 0.001  # asking without a pause, then with one (s), beside other tests


def bindings():
    """The wheel's extension."""
    for place in sys.path:
        for folder in glob.glob(os.path.join(place, "nixl_cu1[23]")):
            package = types.ModuleType(os.path.basename(folder))
            package.__path__ = [folder]
            sys.modules[package.__name__] = package
            return importlib.import_module(package.__name__ + "._bindings")
    raise ImportError("no wheel of NIXL in PYTHONPATH")


class Memory:
    """Pages, aligned, with a pattern."""

    def __init__(self, length):
        self.map = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.length = length


class Agent:
    """Runs in the process. Memories, requests and prepared lists have the names that the test gives
    them."""

    def __init__(self, name, backend, options, threads):
        self.b = bindings()
        sync = self.b.NIXL_THREAD_SYNC_STRICT if threads else self.b.NIXL_THREAD_SYNC_DEFAULT
        config = self.b.nixlAgentConfig(True, False, 0, sync)
        self.agents = {}
        self.agent = self.b.nixlAgent(name, config)
        self.name = name
        self.config = config
        self.memories = {}
        self.requests = {}
        self.backend = backend
        self.handle = self.agent.createBackend(backend, options or {})

    # ---- memory

    def register(self, name, length, data=None, registered=True):
        memory = self.memories[name] = Memory(length)
        if data is not None:
            memory.map[:] = data
        if registered:
            self.agent.registerMem(self.registration(memory), [self.handle])
        return memory.address

    def registration(self, memory):
        return self.b.nixlRegDList(self.b.DRAM_SEG, [(memory.address, memory.length, 0, "")])

    def register_range(self, address, length):
        """What no memory of this process is."""
        entry = self.b.nixlRegDList(self.b.DRAM_SEG, [(address, length, 0, "")])
        self.agent.registerMem(entry, [self.handle])

    def deregister(self, name):
        self.agent.deregisterMem(self.registration(self.memories[name]), [self.handle])

    def read(self, name, offset=0, length=None):
        memory = self.memories[name]
        return memory.map[offset : memory.length if length is None else offset + length]

    def write(self, name, data, offset=0):
        self.memories[name].map[offset : offset + len(data)] = data

    def clear(self):
        for memory in self.memories.values():
            memory.map[:] = bytes(memory.length)

    def digests(self):
        """Of each memory."""
        return {
            name: hashlib.sha256(memory.map).hexdigest() for name, memory in self.memories.items()
        }

    def query(self, name):
        memory = self.memories[name]
        return self.agent.queryMem(self.registration(memory), self.handle)

    # ---- peers

    def metadata(self):
        return self.agent.getLocalMD()

    def partial(self, name):
        memory = self.registration(self.memories[name])
        return self.agent.getLocalPartialMD(memory, True, [self.handle])

    def load(self, metadata):
        return self.agent.loadRemoteMD(metadata).decode()

    def connect(self, name):
        self.agent.makeConnection(name, [self.handle])

    def forget(self, name):
        self.agent.invalidateRemoteMD(name)

    def known(self, name):
        empty = self.b.nixlXferDList(self.b.DRAM_SEG, [])
        try:
            return self.agent.checkRemoteMD(name, empty) in (True, self.b.NIXL_SUCCESS)
        except self.b.nixlNotFoundError:
            return False

    # ---- transfers

    def descriptors(self, pieces):
        return self.b.nixlXferDList(self.b.DRAM_SEG, [(at, length, 0) for at, length in pieces])

    def request(self, name, op, peer, local, remote, notification=b""):
        """`local` and `remote`: lists of (address, length)."""
        operation = self.b.NIXL_READ if op == "read" else self.b.NIXL_WRITE
        self.requests[name] = self.agent.createXferReq(
            operation,
            self.descriptors(local),
            self.descriptors(remote),
            peer,
            notification,
            [self.handle],
        )

    def post(self, name, notification=b""):
        """Returns whether it is under way."""
        return self.agent.postXferReq(self.requests[name], notification) == self.b.NIXL_IN_PROG

    def done(self, name):
        return self.agent.getXferStatus(self.requests[name]) != self.b.NIXL_IN_PROG

    def finish(self, name):
        ends, polls = time.monotonic() + LIMIT, 0
        while self.agent.getXferStatus(self.requests[name]) == self.b.NIXL_IN_PROG:
            if time.monotonic() > ends:
                raise TimeoutError(name)
            polls += 1
            if polls > POLLS:
                time.sleep(PAUSE)

    def transfer(self, name, notification=b""):
        if self.post(name, notification):
            self.finish(name)

    def release(self, name):
        self.agent.releaseXferReq(self.requests.pop(name))

    def move(self, op, peer, local, remote, notification=b""):
        self.request("move", op, peer, local, remote, notification)
        try:
            self.transfer("move")
        finally:
            self.release("move")

    def estimate(self, name):
        return self.agent.estimateXferCost(self.requests[name])

    # ---- notifications

    def notify(self, peer, message):
        self.agent.genNotif(peer, message, [self.handle])

    def notifications(self):
        return self.agent.getNotifs({}, [self.handle])

    def await_notifications(self, count):
        """All that came, by agent, once there are so many."""
        found = {}
        ends = time.monotonic() + LIMIT
        while sum(map(len, found.values())) < count:
            for agent, messages in self.notifications().items():
                found.setdefault(agent, []).extend(messages)
            if time.monotonic() > ends:
                raise TimeoutError(f"{count} notifications: {found}")
            time.sleep(PAUSE)
        return found

    # ---- several at once

    def await_and_read(self, rounds, name, length):
        """For each notification in turn, the memory as it is at that moment."""
        seen = []
        for _ in range(rounds):
            found = self.await_notifications(1)
            (messages,) = found.values()
            seen.append((messages, self.read(name, 0, length)))
            self.notify(next(iter(found)), b"seen")
        return seen

    def write_and_notify(self, rounds, peer, name, length, remote):
        address = self.memories[name].address
        self.request("flag", "write", peer, [(address, length)], [(remote, length)], b"x")
        for i in range(rounds):
            self.write(name, bytes([i % 251]) * length)
            self.transfer("flag", b"%d" % i)
            self.await_notifications(1)
        self.release("flag")

    def threads(self, count, rounds, peer, local, remote, size):
        """Each thread reads its slice again and again, and compares it. Returns what failed."""
        failed = []

        def work(number):
            try:
                name = f"thread {number}"
                at = number * size
                here = self.memories[local].address + at
                self.request(name, "read", peer, [(here, size)], [(remote + at, size)])
                for i in range(rounds):
                    self.write(local, bytes(size), at)
                    self.transfer(name)
                    if self.read(local, at, size) != bytes([number + 1]) * size:
                        failed.append(f"{name}: round {i}")
                self.release(name)
            except Exception as error:
                failed.append(f"{name}: {error!r}")

        workers = [threading.Thread(target=work, args=(n,)) for n in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return failed

    def plugins(self):
        return self.agent.getAvailPlugins()

    def parameters(self):
        defaults, memories = self.agent.getPluginParams(self.backend)
        return defaults, [str(memory) for memory in memories]

    def drop_privileges(self):
        """As a process of a container has it: no CAP_SYS_PTRACE, and its memory is not for others."""
        libc = ctypes.CDLL(None, use_errno=True)
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        sets = (ctypes.c_uint32 * 6)()
        libc.capget(header, sets)
        for i in range(3):
            sets[i] &= ~(1 << 19)
        if libc.capset(header, sets) or libc.prctl(4, 0, 0, 0, 0):  # PR_SET_DUMPABLE
            raise OSError(ctypes.get_errno(), "capset or prctl")

    def view(self, name):
        """Views are for GPUs that start transfers: not supported."""
        memory = self.memories[name]
        self.agent.prepMemView(self.descriptors([(memory.address, memory.length)]), [self.handle])

    def another(self, name):
        """One more agent in this process, that later calls go to. Returns the former one's name."""
        self.agents[self.name] = (self.agent, self.handle)
        former, self.name = self.name, name
        if name in self.agents:
            self.agent, self.handle = self.agents[name]
        else:
            self.agent = self.b.nixlAgent(name, self.config)
            self.handle = self.agent.createBackend(self.backend, {})
        return former

    def close(self):
        self.requests.clear()
        self.agents.clear()
        self.agent = self.handle = None


def serve(pipe, log, environment, make, arguments):
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 2)
    os.environ.update(environment)
    agent = None
    while True:
        try:
            what, given, named = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            if what == "open":
                agent = make(*arguments)
                answer = None
            else:
                answer = getattr(agent, what)(*given, **named)
            pipe.send((True, answer))
        except Exception as error:
            traceback.print_exc()
            pipe.send((False, f"{type(error).__name__}: {error}"))
        if what == "close":
            pipe.close()
            # NIXL 1.5's own end of an interpreter is not what is tested.
            os._exit(0)


def each(sides, what, *given):
    """Call the same of several sides at once. Their answers."""
    for side in sides:
        side.send(what, *given)
    return [side.receive() for side in sides]


class Failed(Exception):
    """What NIXL raised, as "nixlNotFoundError: ..."."""


class Side:
    """A process with an agent."""

    def __init__(self, folder, name, backend="WHERRY", options=None, threads=False, **environment):
        self.begin(folder, environment, Agent, (name, backend, options, threads))
        self.call("open")

    def begin(self, folder, environment, make, arguments):
        """Start the process, in which make(*arguments) is what answers. It makes it when it is told
        to "open"."""
        self.log = os.path.join(folder, f"log-{len(os.listdir(folder))}")
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(theirs, self.log, environment, make, arguments)
        )
        self.process.start()
        theirs.close()

    def send(self, what, *given, **named):
        self.pipe.send((what, given, named))

    def receive(self):
        if not self.pipe.poll(2 * LIMIT):
            raise TimeoutError(f"{self.process.name} does not answer; it said: {self.said()}")
        try:
            good, answer = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(LIMIT)
            raise Failed(f"the process ended with {self.process.exitcode}: {self.said()}") from None
        if not good:
            raise Failed(answer)
        return answer

    def call(self, what, *given, **named):
        self.send(what, *given, **named)
        return self.receive()

    def __getattr__(self, what):
        return lambda *given, **named: self.call(what, *given, **named)

    def said(self):
        """What its process has printed."""
        with open(self.log, encoding="utf-8", errors="replace") as text:
            return text.read()

    def kill(self):
        self.process.kill()
        self.process.join()

    def end(self):
        if self.process.is_alive():
            try:
                self.call("close")
            except (Failed, TimeoutError, OSError):
                pass
            self.process.join(LIMIT)
        if self.process.is_alive():
            self.kill()
        self.pipe.close()
