# SPDX-License-Identifier: Apache-2.0
"""Engines, regions, transfers, blocks and plans, within a process and between two."""
import array
import ctypes
import errno
import gc
import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings
import weakref

import wherry
from wherry._engine import _setting
from wherry._memory import refuses_writes

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None

needs_numpy = unittest.skipUnless(numpy, "numpy is not installed")
needs_torch = unittest.skipUnless(torch, "torch is not installed")
# The emulator that runs this, as qemu-aarch64; "": none.
EMULATED = os.environ.get("TESTS_EMULATED", "")


def has_process_vm():
    """By which shm reaches ordinary memory; without anything to copy, the call succeeds."""
    call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    return call(os.getpid(), None, 0, None, 0, 0) == 0

OWNER = """
import sys
import wherry
engine = wherry.Engine(name="owner")
memory = engine.allocate(1 << 20)
memory.raw = bytes(range(256)) * 4096
region = engine.register(memory, name="kv", access="rw", listed=True)
print(engine.url, region.key().hex(), flush=True)
sys.stdin.readline()
sys.stdout.write(bytes(memory[:16]).hex())
"""


class Owner:
    """Another process with a region kv of 1 MiB: bytes 0 to 255, again and again."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(wherry.__file__))},
        )
        self.url, self.key = self.process.stdout.readline().decode().split()

    def end(self):
        """The first 16 bytes of its memory."""
        return bytes.fromhex(self.process.communicate(b"\n", timeout=60)[0].decode())


class Case(unittest.TestCase):
    def setUp(self):
        self.engine = wherry.Engine(name="case")
        self.addCleanup(self.engine.close)

    def own(self):
        owner = Owner()
        self.addCleanup(owner.process.stdin.close)
        self.addCleanup(owner.process.stdout.close)
        self.addCleanup(owner.process.wait)
        self.addCleanup(owner.process.kill)
        return owner

    def raises(self, number, text=""):
        test = self

        class Check:
            def __enter__(self):
                return self

            def __exit__(self, kind, error, _):
                test.assertIsNotNone(error, "nothing was raised")
                if not isinstance(error, wherry.Error):
                    return False
                test.assertEqual(errno.errorcode[error.errno], errno.errorcode[number], error)
                test.assertIn(text, str(error))
                return True

        return Check()


class Engines(Case):
    def test_settings(self):
        with wherry.Engine(require="tcp", tls=False, timeout="2s") as engine:
            self.assertTrue(engine.url.startswith("wherry://127.0.0.1:"))
        with self.raises(errno.EINVAL):
            wherry.Engine(no_such_setting=1)
        self.assertEqual(wherry.settings()["timeout"][0], "WHERRY_TIMEOUT")

    def test_times(self):
        """Numbers are seconds, as everywhere; the library is given milliseconds."""
        for value, text in ((30, "30000ms"), (0.25, "250ms"), (1.1, "1100ms"), (1e-6, "1ms"),
                            ("2s", "2s"), ("40ms", "40ms")):  # fmt: skip
            for row in ("timeout", "idle", "lease"):
                self.assertEqual(_setting(row, value), text)
        self.assertEqual(_setting("connections", 4), "4")
        self.assertEqual(wherry.settings()["timeout"][1], "5000ms")
        for value in (-1, float("nan"), float("inf"), "30", " 30 "):
            with self.raises(errno.EINVAL, "timeout"):
                wherry.Engine(timeout=value)
        with self.assertRaisesRegex(TypeError, "idle"):
            wherry.Engine(idle=True)
        with wherry.Engine(timeout=30, lease=60.5, idle=wherry.settings()["idle"][1]) as engine:
            engine.connect("self", timeout=float("inf")).close()

    def test_repr(self):
        region = self.engine.register(bytearray(64), name="kv", access="r")
        peer = self.engine.connect("self")
        transfer = peer.notify(1)
        transfer.wait()
        self.assertIn("'case', wherry://127.0.0.1:", repr(self.engine))
        self.assertEqual(repr(region), "<wherry.Region 'kv', 64 B, access 'r'>")
        self.assertIn("'case' at self, connected", repr(peer))
        self.assertIn("done", repr(transfer))
        self.assertIn("64 B of", repr(peer.find("kv")))

    def test_closed(self):
        region = self.engine.register(bytearray(64), name="kv")
        peer = self.engine.connect("self")
        self.engine.close()
        self.engine.close()
        for call in (region.key, peer.regions, lambda: peer.read("kv", region)):
            with self.raises(errno.EINVAL, "closed"):
                call()

    def test_connect_refused(self):
        with self.raises(errno.ECONNREFUSED):
            self.engine.connect("127.0.0.1:1", timeout=5)
        self.assertIn("0 peers", repr(self.engine))

    def test_pickle(self):
        with self.assertRaises(TypeError):
            self.engine.__reduce__()

    def test_log(self):
        lines = []
        with wherry.Engine(log=lambda *line: lines.append(line), listen="none") as engine:
            engine.connect("self").notify(1).wait()
        for level, area, text in lines:
            self.assertIn(level, (1, 2, 3))

    @unittest.skipIf(EMULATED, f"{EMULATED} has no MADV_WIPEONFORK")
    def test_fork(self):
        """A child cannot use the engine, and ends well."""
        peer = self.engine.connect("self")
        child = os.fork()
        if not child:
            status = 1
            try:
                peer.notify(1)
            except wherry.Error as error:
                status = 0 if error.errno == errno.EPERM else 2
            finally:
                self.engine.close()
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        peer.notify(1).wait()

    def test_fork_beside_threads(self):
        """A child hangs neither by a lock that a thread holds, nor by a call in which one is."""
        peer = self.engine.connect("self")
        region = self.engine.register(bytearray(64), name="kv", access="r")
        core, held, go = self.engine._core, threading.Event(), threading.Event()

        def hold():
            with core.lock, region._ending:
                held.set()
                go.wait()

        def find():
            with self.raises(errno.EINVAL, "closed"):
                peer.find("never", timeout=600)

        threads = [threading.Thread(target=call) for call in (hold, find)]
        for thread in threads:
            thread.start()
        held.wait()
        while not peer.inside:
            pass
        child = os.fork()
        if not child:
            signal.alarm(60)
            status = 0
            for call in (peer.close, region.unregister, lambda: peer.notify(1)):
                try:
                    call()
                    status = 1
                except wherry.Error as error:
                    status = status if error.errno == errno.EPERM else 2
            self.engine.close()
            os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        go.set()
        peer.close()
        for thread in threads:
            thread.join()

    def test_exit_with_running_transfers(self):
        """The interpreter exits with everything open."""
        code = (
            "import wherry\n"
            "e = wherry.Engine(); a = bytearray(64 << 20); b = bytearray(64 << 20)\n"
            "e.register(a, name='a', access='rw'); r = e.register(b); p = e.connect(e.url)\n"
            "ts = [p.read('a', r) for _ in range(4)]\n"
        )
        path = os.path.dirname(os.path.dirname(wherry.__file__))
        subprocess.run(
            [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path}
        )


class Memory(Case):
    def moves(self, target, region=None):
        """Bytes arrive in an object of 1,024 bytes; returns the region."""
        source = bytearray(range(256)) * 4
        self.engine.register(source, name="source", access="r")
        region = region or self.engine.register(target)
        self.engine.connect("self").read("source", region).wait()
        return bytes(source)

    def test_bytearray(self):
        target = bytearray(1024)
        self.assertEqual(self.moves(target), target)

    def test_mmap(self):
        with mmap.mmap(-1, 1024) as target:
            region = self.engine.register(target)
            self.assertEqual(self.moves(None, region), target[:])
            with self.assertRaises(BufferError):
                target.close()
            region.unregister()

    def test_array(self):
        target = array.array("d", bytes(1024))
        self.assertEqual(self.moves(target), target.tobytes())

    def test_allocated(self):
        memory = self.engine.allocate(1024)
        self.assertEqual(self.moves(memory), bytes(memory))

    def test_allocated_outlives_the_engine(self):
        with wherry.Engine() as engine:
            view = memoryview(engine.allocate(1024)).cast("B")
        view[5] = 7
        self.assertEqual(view[5], 7)

    def test_held(self):
        """A registered object cannot be resized, and lives until it is unregistered."""
        target = bytearray(64)
        region = self.engine.register(target)
        with self.assertRaises(BufferError):
            target.append(1)
        region.unregister()
        target.append(1)

    def test_lives_when_dropped(self):
        class Buffer(bytearray):
            pass

        target = Buffer(64)
        gone = weakref.ref(target)
        self.engine.register(target, name="kv", access="r")
        del target
        gc.collect()
        self.assertIsNotNone(gone())
        self.engine.close()
        gc.collect()
        self.assertIsNone(gone())

    def test_read_only(self):
        self.engine.register(b"constant", name="c", access="r")
        with self.raises(errno.EINVAL, "read-only"):
            self.engine.register(b"constant", access="rw")

    def read_only_ones(self):
        """Objects of 64 bytes, and others that show the same bytes."""
        file = tempfile.TemporaryFile()
        self.addCleanup(file.close)
        file.write(bytes(range(64)))
        file.flush()
        mapped = mmap.mmap(file.fileno(), 64, access=mmap.ACCESS_READ)
        constant = bytes(range(64))
        found = [(constant, memoryview(constant)), (mapped, memoryview(mapped))]
        found += [(memoryview(bytearray(constant)).toreadonly(),) * 2]
        if numpy:
            array = numpy.frombuffer(bytearray(constant), numpy.uint8)
            array.setflags(write=False)
            found += [(array, array[:]), (numpy.memmap(file, mode="r"),) * 2]
        if torch and numpy:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch says that it does not know such tensors
                found += [(torch.from_numpy(numpy.memmap(file, mode="r")),) * 2]
                found += [(array, torch.from_numpy(array))]
        return found

    def test_read_only_targets(self):
        """Neither a region of it nor what lies there is read into, by any call."""
        memory = bytearray(b"w") * 64
        self.engine.register(memory, name="source", access="rw")
        peer = self.engine.connect("self")
        for thing, same in self.read_only_ones():
            region = self.engine.register(thing, name="kv", access="r", grants={"friend": "r"})
            for into in (region, region[8:16], same):
                for call in (
                    lambda: peer.read("source", into),
                    lambda: peer.read(["source"], [into]),
                    lambda: peer.read("source", into, blocks=([1], [0], 8)),
                    lambda: peer.prepare_read("source", into),
                    lambda: peer.prepare_read("source", into, blocks=([1], [0], 8), warm=False),
                ):
                    with self.subTest(type=type(thing), into=into):
                        with self.raises(errno.EINVAL, "into: the memory is read-only"):
                            call()
            with self.raises(errno.EINVAL, "remote: the memory is read-only"):
                peer.write("kv", memory)  # of this engine, whose rights bind others only
            for options in ({"access": "w"}, {"grants": {"friend": "r", "other": "rw"}}):
                with self.raises(errno.EINVAL, "allows writing, but the memory is read-only"):
                    self.engine.register(thing, **options)
            peer.write("source", region).wait()
            self.assertEqual(memory, bytes(range(64)))
            memory[:] = b"w" * 64
            region.unregister()

    def test_writable_in_read_only(self):
        """What can be written is, though it was also registered by a view that cannot."""
        memory = bytearray(64)
        self.engine.register(memoryview(memory).toreadonly(), name="kv", access="r")
        self.engine.register(b"x" * 64, name="x", access="r")
        self.engine.connect("self").read("x", memory).wait()
        self.assertEqual(memory, b"x" * 64)

    def test_asking_changes_nothing(self):
        """The kernel is asked by a write that changes nothing, also of odd addresses."""
        memory = bytearray(os.urandom(4099))
        before = bytes(memory)
        at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for first, length in ((0, 4099), (1, 4098), (3, 1), (4098, 1), (7, 2)):
            self.assertFalse(refuses_writes(at + first, length))
        self.assertEqual(memory, before)

    def moved(self, thing, move):
        """Each use of a region whose object has taken other memory is refused."""
        source = bytearray(64)
        self.engine.register(source, name="source", access="r")
        region = self.engine.register(thing, name="kv", access="rw")
        peer = self.engine.connect("self")
        peer.read("source", region).wait()
        other = self.engine.register(bytearray(64))
        plans = [
            peer.prepare_read("source", region),
            peer.prepare_write("kv", other),
            peer.prepare_read("source", thing, blocks=([0], [0], 8)),
        ]
        for plan in plans:
            plan.submit().wait()
        move()
        for text, call in (
            ("into", lambda: peer.read("source", region)),
            ("into", lambda: peer.read("source", region[0:8])),
            ("data", lambda: peer.write("kv", region)),
            ("into", lambda: peer.prepare_read("source", region)),
            ("into", lambda: plans[0].submit()),
            ("remote", lambda: plans[1].submit()),
            ("into", lambda: plans[2].submit()),
            ("remote", lambda: peer.write("kv", other)),
        ):
            with self.raises(errno.EINVAL, f"{text}: the tensor or array has other memory"):
                call()

    def test_moved(self):
        """By the interface of torch, without torch."""

        class Tensor:
            def __init__(self, memory):
                self.memory = memory
                self.shape = (len(memory),)

            def data_ptr(self):
                return ctypes.addressof(self.memory)

            def element_size(self):
                return 1

            def stride(self):
                return (1,)

        tensor = Tensor((ctypes.c_char * 64)())
        first = tensor.memory

        def move():
            tensor.memory = (ctypes.c_char * 64)()

        self.moved(tensor, move)
        self.assertNotEqual(ctypes.addressof(first), tensor.data_ptr())

    def test_moved_ctypes(self):
        array_ = (ctypes.c_char * 64)()

        def move():
            ctypes.resize(array_, 64 << 20)  # by realloc(), into a mapping of its own

        self.moved(array_, move)

    @needs_numpy
    def test_pinned_numpy(self):
        """Nothing resizes an array whose bytes are registered, nor the one that it is a part of."""
        whole = numpy.zeros(64)
        for thing in (whole, whole[8:16]):
            region = self.engine.register(thing)
            with self.assertRaises(ValueError):
                whole.resize(1 << 20, refcheck=False)
            region.unregister()
        del thing
        whole.resize(1 << 20, refcheck=False)

    @needs_torch
    def test_pinned_torch(self):
        """A tensor keeps the memory with which it was registered, and cannot be resized."""
        tensor = torch.zeros(64, dtype=torch.uint8)
        self.moved(tensor, lambda: setattr(tensor, "data", torch.ones(64, dtype=torch.uint8)))
        tensor = torch.zeros(64, dtype=torch.bfloat16)
        self.engine.register(tensor)
        for resize in (
            lambda: tensor.resize_(4096),
            lambda: tensor.untyped_storage().resize_(0),
        ):
            with self.assertRaisesRegex(RuntimeError, "not resizable"):
                resize()

    @needs_torch
    def test_module_in_another_type(self):
        """The memory of parameters is not given to others before they are unregistered."""
        module = torch.nn.Linear(256, 256)
        region = self.engine.register(module.weight, name="weight", access="w")
        at = region.address
        module.half()
        others = [torch.empty(256, 256) for _ in range(64)]
        self.assertNotIn(at, [other.data_ptr() for other in others])
        with self.raises(errno.EINVAL, "has other memory"):
            self.engine.connect("self").read("weight", region)

    def test_wrong(self):
        with self.assertRaises(TypeError):
            self.engine.register(7)
        with self.raises(errno.EINVAL):
            self.engine.register(bytearray(0))
        with self.raises(errno.EINVAL, "access"):
            self.engine.register(bytearray(8), access="x")
        with self.raises(errno.EEXIST):
            self.engine.register(bytearray(8), name="a")
            self.engine.register(bytearray(8), name="a")

    @needs_numpy
    def test_numpy(self):
        target = numpy.zeros((16, 16), numpy.float32)
        self.assertEqual(self.moves(target), target.tobytes())
        target = numpy.zeros((4, 16, 16), numpy.uint8).transpose(2, 0, 1)
        region = self.engine.register(target)  # another order, but no gaps
        self.assertEqual(len(region), 1024)

    @needs_numpy
    def test_dlpack(self):
        class Tensor:
            def __init__(self, array):
                self.array = array

            def __dlpack__(self, **_):
                return self.array.__dlpack__()

        target = numpy.zeros((4, 64), numpy.float32)
        region = self.engine.register(Tensor(target))
        self.assertEqual(self.moves(None, region), target.tobytes())
        self.assertEqual(region.shape, (4, 64))

    @needs_numpy
    def test_dlpack_capsule(self):
        target = numpy.zeros((4, 64), numpy.float32)
        options = [{}]
        if numpy.lib.NumpyVersion(numpy.__version__) >= "2.1.0":
            options.append({"max_version": (1, 0)})
        for option in options:
            region = self.engine.register(target.__dlpack__(**option))
            self.assertEqual((region.address, len(region)), (target.ctypes.data, 1024))
            self.assertEqual(region.shape, (4, 64))
        self.assertEqual(self.moves(None, region), target.tobytes())
        capsule = target.__dlpack__()

        class Once:
            def __dlpack__(self, **_):
                return capsule

            def __dlpack_device__(self):
                return 1, 0

        numpy.from_dlpack(Once())
        with self.assertRaisesRegex(TypeError, "nobody has used"):
            self.engine.register(capsule)
        if len(options) > 1:
            target.setflags(write=False)
            with self.raises(errno.EINVAL, "read-only"):
                self.engine.register(target.__dlpack__(max_version=(1, 0)), access="w")

    @needs_numpy
    def test_numpy_slices(self):
        pool = numpy.zeros((8, 128), numpy.uint8)
        self.engine.register(pool)
        source = numpy.arange(256, dtype=numpy.uint8)
        self.engine.register(source, name="s", access="r")
        peer = self.engine.connect("self")
        peer.read("s", pool[2:4]).wait()
        self.assertEqual(pool[2:4].tobytes(), source.tobytes())
        peer.read("s", pool[:, 32:64]).wait()  # blocks of 32 bytes, 128 apart
        self.assertEqual(pool[:, 32:64].tobytes(), source.tobytes())
        with self.raises(errno.EINVAL, "(8, 3, 16)"):
            peer.read("s", pool.reshape(8, 4, 32)[:, :3, :16])
        with self.raises(errno.EINVAL, "has gaps"):
            self.engine.register(pool[:, :64])
        with self.raises(errno.ENOENT, "register it"):
            peer.read("s", numpy.zeros(256, numpy.uint8))

    @needs_torch
    def test_torch(self):
        target = torch.zeros(16, 16, dtype=torch.bfloat16).repeat(1, 2)
        source = self.moves(target)
        self.assertEqual(source, target.view(torch.uint8).numpy().tobytes())


class Transfers(Case):
    def setUp(self):
        super().setUp()
        self.memory = bytearray(1 << 20)
        self.region = self.engine.register(self.memory)

    def test_other_process(self):
        owner = self.own()
        peer = self.engine.connect(owner.url)
        self.assertEqual([one.name for one in peer.regions()], ["kv"])
        with peer.read("kv", into=self.region) as transfer:
            pass
        self.assertEqual(self.memory, bytes(range(256)) * 4096)
        self.assertIn("1048576 bytes", transfer.explain())
        self.assertEqual(sum(route.bytes for route in transfer.routes()), 1 << 20)
        self.memory[:16] = b"across the river"
        peer.write(peer.find("kv")[0:16], self.region[0:16]).wait()
        self.assertEqual(owner.end(), b"across the river")

    @unittest.skipUnless(has_process_vm(), "the kernel has no process_vm_readv()")
    def test_required_transport(self):
        owner = self.own()
        peer = self.engine.connect(owner.url)
        for transport in ("shm", "tcp"):
            transfer = peer.read("kv", self.region, require=transport).wait()
            self.assertEqual([r.transport for r in transfer.routes() if r.bytes], [transport])
        with self.raises(errno.EOPNOTSUPP):
            peer.read("kv", self.region, require="cuda")

    def test_names(self):
        peer = self.engine.connect("self")
        with self.raises(errno.ENOENT):
            peer.read("nothing", self.region)
        with self.raises(errno.ENOENT):
            peer.find("nothing", timeout=0.12)

    def test_ranges(self):
        self.engine.register(bytearray(100), name="small", access="rw")
        peer = self.engine.connect("self")
        with self.raises(errno.ERANGE, "give a part"):
            peer.read("small", self.region)
        with self.raises(errno.ERANGE):
            self.region[0 : 1 << 21]
        with self.raises(errno.EINVAL, "in bytes"):
            self.region[::2]
        self.assertEqual(self.region[-5:-3], self.region[(1 << 20) - 5 : (1 << 20) - 3])
        self.assertEqual(self.region[-1:][1:], ((1 << 20) - 1, 1))
        self.assertEqual(self.region[7:7][1:], (7, 0))
        for part in (slice(5, 3), slice(-(1 << 20) - 1, None), slice((1 << 20) + 1, None)):
            with self.raises(errno.ERANGE):
                self.region[part]

    def test_key(self):
        owner = bytearray(b"by its key")
        region = self.engine.register(owner, access="r")
        with wherry.Engine() as other:
            mine = bytearray(10)
            peer = other.connect(self.engine.url)
            peer.read(peer.unpack(region.key()), other.register(mine)).wait()
            self.assertEqual(mine, owner)

    def test_unregister_waits(self):
        self.engine.register(bytearray(64), name="a", access="r")
        self.engine.connect("self").read("a", self.region[0:64]).wait()
        self.region.unregister()
        self.assertIn("unregistered", repr(self.region))

    def test_callback(self):
        peer = self.engine.connect("self")
        done = threading.Event()
        transfer = peer.notify(1)
        transfer.add_done_callback(lambda one: done.set() if one is transfer else None)
        self.assertTrue(done.wait(30))

    def test_cancel(self):
        peer = self.engine.connect(self.own().url)
        transfer = peer.read("kv", self.region, require="tcp")
        transfer.cancel()
        self.assertTrue(transfer.done())
        try:
            transfer.wait()
        except wherry.Cancelled as error:
            self.assertEqual(error.errno, errno.ECANCELED)

    def test_with_and_exception(self):
        """An exception cancels the transfer, and is not replaced."""
        peer = self.engine.connect(self.own().url)
        with self.assertRaises(ZeroDivisionError):
            with peer.read("kv", self.region, require="tcp") as transfer:
                raise ZeroDivisionError
        self.assertTrue(transfer.done())

    def test_lost_peer(self):
        owner = self.own()
        peer = self.engine.connect(owner.url)
        remote = peer.find("kv")
        owner.process.kill()
        owner.process.wait()
        with self.assertRaises(wherry.Error):
            while True:
                peer.read(remote, self.region, require="tcp").wait(30)

    def test_with_and_lost_peer(self):
        """Nor does it replace the exception that the peer was lost while the transfer ran."""
        owner = self.own()
        peer = self.engine.connect(owner.url)
        peer.read("kv", self.region, require="tcp").wait()
        os.kill(owner.process.pid, signal.SIGSTOP)
        os.waitpid(owner.process.pid, os.WUNTRACED)
        with self.assertRaises(ZeroDivisionError):
            with peer.read("kv", self.region, require="tcp") as transfer:
                owner.process.kill()
                with self.assertRaises(wherry.Error):
                    transfer.wait()
                with self.assertRaises(wherry.Timeout):
                    transfer.cancel()
                raise ZeroDivisionError

    def stopped(self, call):
        """call(transfer) with a transfer that does not end: its owner is stopped."""
        owner = self.own()
        peer = self.engine.connect(owner.url)
        peer.read("kv", self.region, require="tcp").wait()
        os.kill(owner.process.pid, signal.SIGSTOP)
        os.waitpid(owner.process.pid, os.WUNTRACED)
        transfer = peer.read("kv", self.region, require="tcp")
        try:
            call(transfer)
        finally:
            os.kill(owner.process.pid, signal.SIGCONT)

    def test_timeout(self):
        def late(transfer):
            with self.assertRaises(TimeoutError):
                transfer.wait(0.01)
            self.assertFalse(transfer.done())
            self.assertIn("running", repr(transfer))

        self.stopped(late)

    def test_interrupt(self):
        """A signal's handler runs while a thread waits."""

        def interrupted(transfer):
            main = threading.get_ident()
            timer = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT))
            timer.start()
            with self.assertRaises(KeyboardInterrupt):
                transfer.wait()
            timer.join()

        self.stopped(interrupted)

    def test_close_wakes_waiters(self):
        # Closing waits for the stopped peer as long as the setting says.
        self.engine.close()
        self.engine = wherry.Engine(name="impatient", timeout="2s")
        self.addCleanup(self.engine.close)
        self.region = self.engine.register(self.memory)

        def close(transfer):
            seen = []

            def wait():
                try:
                    transfer.wait()
                except wherry.Error as error:
                    seen.append(error.errno)

            thread = threading.Thread(target=wait)
            thread.start()
            self.engine.close()
            thread.join()
            # The stopped peer may be lost first.
            self.assertEqual(len(seen), 1)
            self.assertIn(seen[0], (errno.ECANCELED, errno.ECONNRESET))

        self.stopped(close)

    def test_threads(self):
        peer = self.engine.connect("self")
        self.engine.register(bytearray(b"x") * 64, name="x", access="r")
        errors = []

        def run(number):
            try:
                for _ in range(200):
                    peer.read("x", self.region[number * 64 : number * 64 + 64]).wait()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        self.assertEqual(self.memory[:1024], b"x" * 1024)

    def test_spawn(self):
        context = multiprocessing.get_context("spawn")
        self.engine.register(self.memory, name="m", access="rw")
        child = context.Process(target=write_hello, args=(self.engine.url,))
        child.start()
        child.join(60)
        self.assertEqual(child.exitcode, 0)
        self.assertEqual(self.memory[:5], b"hello")


def write_hello(url):
    with wherry.Engine(listen="none") as engine:
        engine.connect(url).write(
            engine.connect(url).find("m")[0:5], engine.register(bytearray(b"hello"))
        ).wait()


class BlockLists(Case):
    def setUp(self):
        super().setUp()
        self.pool = bytearray(os.urandom(64 * 32))
        self.engine.register(self.pool, name="pool", access="rw")
        self.mine = bytearray(64 * 32)
        self.region = self.engine.register(self.mine)
        self.peer = self.engine.connect("self")
        self.source, self.target = [5, 0, 63, 7], [1, 2, 3, 60]

    def page(self, memory, number):
        return bytes(memory[number * 32 : number * 32 + 32])

    def check(self, source, target):
        self.mine[:] = bytes(len(self.mine))
        self.peer.read("pool", self.region, blocks=(source, target, 32)).wait()
        for one, two in zip(self.source, self.target):
            self.assertEqual(self.page(self.mine, two), self.page(self.pool, one))
        self.assertEqual(len(self.mine) - 128, self.rest())

    def rest(self):
        return sum(32 for n in range(64) if not any(self.page(self.mine, n)))

    def test_lists(self):
        self.check(self.source, self.target)

    def test_arrays(self):
        for kind in "iIlLqQ":
            self.check(array.array(kind, self.source), array.array(kind, self.target))

    @needs_numpy
    def test_numpy(self):
        for kind in (numpy.int32, numpy.int64, numpy.uint32, numpy.uint64):
            one, two = numpy.array(self.source, kind), numpy.array(self.target, kind)
            self.check(one, two)
            wide = numpy.zeros((4, 3), kind)
            wide[:, 1] = one
            self.check(wide[:, 1], two)  # not contiguous
            self.check(one[::-1][::-1], two)

    @needs_torch
    def test_torch(self):
        for kind in (torch.int32, torch.int64):
            wide = torch.zeros(4, 2, dtype=kind)
            wide[:, 0] = torch.tensor(self.source, dtype=kind)
            self.check(wide[:, 0], torch.tensor(self.target, dtype=kind))

    def test_refused(self):
        cases = [
            ((array.array("d", [1.0]), [1], 32), "integers"),
            (([-1], [1], 32), ""),  # the text depends on who finds it
            (([1 << 40], [1], 32), "above"),
            (([1, 2], [1], 32), "2 source blocks for 1"),
            ((None, None, 4096), "does not fit"),
        ]
        for blocks, text in cases:
            with self.raises(errno.EINVAL, text):
                self.peer.read("pool", self.region, blocks=blocks)
        with self.raises(errno.ERANGE):
            self.peer.read("pool", self.region, blocks=([64], [0], 32))

    def test_layers(self):
        """Four layers of 16 pages, by number and by offsets; two regions as two layers."""
        want = bytearray(len(self.mine))
        for layer in range(4):
            for one, two in ((3, 0), (9, 15)):
                at, to = layer * 512 + one * 32, layer * 512 + two * 32
                want[to : to + 32] = self.pool[at : at + 32]
        for layers in (4, [(512 * n, 512 * n) for n in range(4)]):
            self.mine[:] = bytes(len(self.mine))
            self.peer.read(
                "pool", self.region, blocks=([3, 9], [0, 15], 32), layers=layers
            ).wait()
            self.assertEqual(self.mine, want)
        remote = self.peer.find("pool")
        self.peer.write(
            [remote[0:1024], remote[1024:2048]],
            [self.region[1024:2048], self.region[0:1024]],
            blocks=([0, 31], [1, 2], 32),
        ).wait()
        self.assertEqual(self.page(self.pool, 1), self.page(self.mine, 32))
        self.assertEqual(self.page(self.pool, 34), self.page(self.mine, 31))

    def test_plan(self):
        with self.peer.prepare_read("pool", self.region, blocks=(None, None, 32)) as plan:
            self.assertIn("self", plan.explain())
            for _ in range(50):
                self.pool[:] = os.urandom(len(self.pool))
                plan.submit().wait()
                self.assertEqual(self.pool, self.mine)
            running = [plan.submit() for _ in range(40)]
            self.assertIn("blocks", repr(plan))
        for transfer in running:
            transfer.wait()
        plan = self.peer.prepare_write("pool", self.region)
        plan.submit(notify=(9, b"done")).wait()
        self.assertEqual(self.engine.notification(5, tag=9).data, b"done")

    def test_closed_plan(self):
        """Transfers of a closed plan leave nothing behind: the peer can be closed."""
        plan = self.peer.prepare_read("pool", self.region, blocks=(None, None, 32))
        transfer = plan.submit()
        plan.close()
        plan.close()
        transfer.wait()
        self.assertIn("closed", repr(plan))
        with self.raises(errno.EINVAL, "closed"):
            plan.submit()
        del transfer
        self.peer.close()
        self.assertEqual(self.engine._core.batches, {})

    def test_batches_do_not_pile_up(self):
        for _ in range(300):
            self.peer.read("pool", self.region).wait()
            self.peer.read("pool", self.region, priority="latency").wait()
        self.assertLess(len(self.engine._core.batches), 10)
        self.peer.close()

    def test_other_mistakes(self):
        with self.raises(errno.EINVAL, "layers need"):
            self.peer.read("pool", self.region, layers=4)
        with self.raises(errno.EINVAL, "3 layers"):
            self.peer.read("pool", self.region, blocks=([0], [0], 32), layers=3)
        with self.raises(errno.EINVAL, "priority"):
            self.peer.read("pool", self.region, priority="soon")
        with self.assertRaises(TypeError):
            self.peer.read(7, self.region)
        with self.assertRaises(TypeError):
            self.peer.read("pool", self.region, stream="stream")


class Conversions(Case):
    """What ctypes would cut or convert in silence is refused, by the name of the argument."""

    def wrong(self, kind, name, call, *arguments, **options):
        with self.subTest(arguments=arguments, **options):
            with self.assertRaisesRegex(kind, name):
                call(*arguments, **options)

    def test_notifications(self):
        peer = self.engine.connect("self")
        region = self.engine.register(bytearray(64), name="kv", access="rw")
        for tag in (-1, 2**64, 2**64 + 7):
            self.wrong(ValueError, "tag", peer.notify, tag)
            self.wrong(ValueError, "tag", peer.read, "kv", region, notify=tag)
            self.wrong(ValueError, "tag", self.engine.notification, 0, tag=tag)
        for tag in (True, 1.0, "1", None):
            self.wrong(TypeError, "tag", peer.notify, tag)
        for data in (5, "text", [1, 2], None):
            self.wrong(TypeError, "data", peer.notify, 1, data)
        for notify in (b"ab", "ab", [1, b"a"], (1, 2, 3), 1.5):
            self.wrong(TypeError, "notify", peer.write, "kv", region, notify=notify)
        with peer.prepare_read("kv", region) as plan:
            self.wrong(ValueError, "tag", plan.submit, notify=(-1, b""))
        peer.notify(2**64 - 1, bytearray(b"all")).wait()
        self.assertEqual(self.engine.notification(60, tag=2**64 - 1).data, b"all")

    def test_names(self):
        engine, memory = self.engine, bytearray(64)
        peer = engine.connect("self")
        for call, name in (
            (lambda name: engine.register(memory, name), "name"),
            (lambda name: engine.register(memory, grants={name: "r"}), "grants"),
            (lambda name: engine.register_file(name), "file"),
            (lambda name: engine.connect(name), "url"),
            (lambda name: engine.notification(0, sender=name), "sender"),
            (lambda name: engine.allocate(1, location=name), "location"),
            (lambda name: peer.find(name), "name"),
            (lambda name: peer.read("kv", memory, require=name), "require"),
            (lambda name: wherry.Engine(name), "name"),
            (lambda name: wherry.Engine(listen=name), "listen"),
            (lambda name: wherry.Engine(registry=name), "registry"),
            (lambda name: wherry.Engine(keyfile=name), "keyfile"),
        ):
            if name == "require":
                engine.register(memory, "kv", "r")
            self.wrong(ValueError, name, call, "kv\0more")
        self.wrong(TypeError, "name", engine.register, memory, b"bytes")
        self.wrong(TypeError, "url", engine.connect, 5)

    def test_numbers(self):
        engine = self.engine
        region = engine.register(bytearray(64), name="kv", access="rw")
        peer = engine.connect("self")
        for blocks, name in (
            ((None, None, 2**64 + 32), "length"),
            ((None, None, -1), "length"),
            ((None, None, 32, -1), "source_stride"),
            ((None, None, 32, 0, 2**64), "target_stride"),
            (([2**80], [0], 32), "blocks"),
        ):
            self.wrong(ValueError, name, peer.read, "kv", region, blocks=blocks)
        for blocks, name in (
            ((None, None, 32.0), "length"),
            ((None, None, True), "length"),
            (([True], [0], 32), "blocks"),
            (([0], [1.5], 32), "blocks"),
        ):
            self.wrong(TypeError, name, peer.read, "kv", region, blocks=blocks)
        for part in (slice(1.5, 9), slice(0, "9"), slice(False, 9)):
            self.wrong(TypeError, "whole numbers", region.__getitem__, part)
        for offset, length in ((-1, 5), (0, 2**64 + 5)):
            part = wherry.RegionSlice(region, offset, length)
            self.wrong(ValueError, "into", peer.read, "kv", part)
            self.wrong(ValueError, "remote", peer.read, part._replace(region=peer.find("kv")), region)
        self.wrong(ValueError, "layers", peer.read, "kv", region, blocks=([0], [0], 8),
                   layers=[(0, -8)])  # fmt: skip
        self.wrong(ValueError, "offset", engine.register_file, __file__, offset=-1)
        self.wrong(ValueError, "length", engine.register_file, __file__, length=2**64 + 1)
        self.wrong(ValueError, "file", engine.register_file, 2**32)
        self.wrong(TypeError, "file", engine.register_file, True)
        self.wrong(ValueError, "length", engine.allocate, -1)
        self.wrong(TypeError, "length", engine.allocate, 1.5)
        self.wrong(TypeError, "stream", peer.read, "kv", region, stream=True)
        self.wrong(ValueError, "stream", peer.read, "kv", region, stream=2**64)
        if numpy:
            self.wrong(ValueError, "integers", peer.read, "kv", region,
                       blocks=(numpy.array([True]), [0], 32))  # fmt: skip

    @needs_torch
    def test_torch(self):
        wanted = torch.zeros(8, dtype=torch.complex64)
        for lazy, name in ((wanted.conj(), "conj"), (wanted.conj().imag, "neg")):
            self.wrong(ValueError, name, self.engine.register, lazy)
        region = self.engine.register(wanted, name="kv", access="r")
        peer = self.engine.connect("self")
        self.wrong(ValueError, "conj", peer.read, "kv", wanted.conj())
        flags = torch.tensor([True])
        self.wrong(ValueError, "integers", peer.read, "kv", region, blocks=(flags, flags, 8))


class Nothing(Case):
    """Transfers without bytes succeed at once, and their notifications arrive."""

    def setUp(self):
        super().setUp()
        self.memory = bytearray(b"m" * 64)
        self.region = self.engine.register(self.memory)
        self.theirs = bytearray(b"t" * 64)
        self.engine.register(self.theirs, name="kv", access="rw")

    def kinds(self):
        """Arguments of read() and write()."""
        yield (wherry.RegionSlice(self.peer.find("kv"), 0, 0), self.region[0:0]), {}
        yield (self.peer.find("kv")[64:], self.region[64:]), {}
        yield ("kv", bytearray(0)), {}
        yield ("kv", memoryview(b"")), {}
        yield ([], []), {}
        yield ([self.peer.find("kv")[1:1]] * 3, [self.region[0:0], bytearray(), memoryview(b"")]), {}
        yield ("kv", self.region), {"blocks": ([], [], 32)}
        yield ("kv", self.region), {"blocks": (array.array("i"), None, 32)}
        yield ("kv", self.region), {"blocks": ([0, 1], [1, 0], 0)}
        yield ("kv", self.region), {"blocks": (None, None, 32), "layers": []}
        yield ("kv", self.region), {"blocks": ([], [], 4), "layers": 4}
        if numpy:
            yield ("kv", numpy.zeros((0, 7))), {}
            yield ("kv", numpy.zeros((4, 0, 2))[:, :, 1]), {}
            empty = numpy.zeros(0, numpy.int64)
            yield ("kv", self.region), {"blocks": (empty, empty, 8)}
        if torch:
            yield ("kv", torch.empty(0, 3)), {}
            empty = torch.empty(0, dtype=torch.int64)
            yield ("kv", self.region), {"blocks": (empty, empty, 8)}

    def check(self, url):
        self.peer = self.engine.connect(url)
        for number, (sides, options) in enumerate(self.kinds()):
            with self.subTest(sides=sides, **options):
                for move in (self.peer.read, self.peer.write):
                    move(*sides, **options).wait(0)
                    transfer = move(*sides, **options, notify=(number, b"n")).wait()
                    self.assertEqual(self.engine.notification(60).tag, number)
                    self.assertEqual(transfer.progress, 0)
                    self.assertIsInstance(transfer.explain(), str)
                for prepare in (self.peer.prepare_read, self.peer.prepare_write):
                    with prepare(*sides, **options) as plan:
                        plan.submit().wait(0)
                        plan.submit(notify=number).wait()
                        self.assertEqual(self.engine.notification(60).tag, number)
        self.assertEqual(self.memory, b"m" * 64)
        self.assertEqual(self.theirs, b"t" * 64)

    def test_self(self):
        self.check("self")

    def test_peer(self):
        self.check(self.engine.url)

    def test_beside_others(self):
        peer = self.engine.connect("self")
        remote = peer.find("kv")
        peer.read(
            [remote[0:0], remote[3:7], remote[9:9], remote[0:2]],
            [bytearray(), self.region[1:5], self.region[0:0], self.region[-2:]],
        ).wait()
        self.assertEqual(self.memory, b"m" + b"tttt" + b"m" * 57 + b"tt")

    def test_still_refused(self):
        """What does not fit does not because it has none on one side."""
        peer = self.engine.connect("self")
        with self.raises(errno.ERANGE, "do not fit"):
            peer.read(peer.find("kv")[0:0], self.region)


class Files(Case):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "weights")
        self.bytes = bytes(range(251)) * 500
        with open(self.path, "wb") as file:
            file.write(self.bytes)
        self.peer = self.engine.connect("self")

    def content(self):
        with open(self.path, "rb") as file:
            return file.read()

    def test_read(self):
        self.engine.register_file(self.path, name="weights", access="r")
        memory = bytearray(1000)
        remote = self.peer.find("weights")
        self.peer.read(remote[777:1777], self.engine.register(memory)).wait()
        self.assertEqual(memory, self.bytes[777:1777])
        self.assertEqual(self.peer.find("weights").kind, "file")
        self.assertEqual(len(self.peer.find("weights")), len(self.bytes))

    def test_write(self):
        region = self.engine.register(bytearray(b"ferry" * 100))
        with open(self.path, "rb+") as file:
            with self.engine.register_file(file, name="part", access="rw", offset=10, length=500):
                self.peer.write("part", region).wait()
        expected = self.bytes[:10] + b"ferry" * 100 + self.bytes[510:]
        self.assertEqual(self.content(), expected)

    def test_file_that_nobody_else_holds(self):
        """Its descriptor is open until the library has its own."""
        region = self.engine.register_file(open(self.path, "rb"), name="weights", access="r")
        memory = bytearray(len(self.bytes))
        self.peer.read("weights", self.engine.register(memory)).wait()
        self.assertEqual(memory, self.bytes)
        region.unregister()

    def test_create_and_grow(self):
        self.path += "-new"
        region = self.engine.register(bytearray(b"ferry" * 100))
        file = self.engine.register_file(
            self.path, name="new", create=True, grow=True, length=1 << 20, durable="all"
        )
        self.assertEqual(self.content(), b"")
        remote = self.peer.find("new")
        self.peer.write(remote[4:504], region).wait()
        self.assertEqual(self.content(), bytes(4) + b"ferry" * 100)
        file.unregister()

    def test_into_another_process(self):
        owner = self.own()
        file = self.engine.register_file(self.path)
        with self.engine.connect(owner.url) as peer:
            peer.write("kv", file).wait()
        self.assertEqual(owner.end(), self.bytes[:16])

    def test_errors(self):
        with self.raises(errno.ENOENT, "nothing"):
            self.engine.register_file(self.path + "-nothing")
        with self.raises(errno.EINVAL, "durable"):
            self.engine.register_file(self.path, durable="perhaps")
        with self.raises(errno.ERANGE, "WH_FILE_GROW"):
            self.engine.register_file(self.path, length=1 << 20)
        with self.raises(errno.EINVAL, "none from offset"):
            self.engine.register_file(self.path, offset=1 << 20)
        file = self.engine.register_file(self.path, name="weights")
        memory = self.engine.register(bytearray(100))
        with self.raises(errno.EACCES, "WH_FILE_WRITE"):
            self.peer.write("weights", memory).wait()
        os.truncate(self.path, 50)
        with self.raises(errno.EIO, "shorter"):
            self.peer.read("weights", memory).wait()
        file.unregister()
        with self.raises(errno.EINVAL, "allocate"):
            self.engine.allocate(100, "file")


class NoImports(unittest.TestCase):
    def test_nothing_optional_is_imported(self):
        code = "import sys, wherry; sys.exit(bool({'torch', 'numpy', 'cupy'} & set(sys.modules)))"
        path = os.path.dirname(os.path.dirname(wherry.__file__))
        subprocess.run(
            [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path}
        )


if __name__ == "__main__":
    unittest.main()
