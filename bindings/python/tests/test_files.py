# SPDX-License-Identifier: Apache-2.0
"""Files by name, and safetensors files: what is refused, what is read, and what the package
safetensors says about the same bytes."""
import array
import errno
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
import unittest.mock

import wherry
from wherry import _safetensors

try:
    import numpy
except ImportError:
    numpy = None
try:
    import safetensors
except ImportError:
    safetensors = None

FUZZ_SECONDS = float(os.environ.get("FUZZ_SECONDS", "2"))


def pack(header, data=b""):
    """A file with this header: bytes, text, or an object."""
    if not isinstance(header, (bytes, str)):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode()
    return len(header).to_bytes(8, "little") + header + data


def parse(content):
    """What a file with this content has."""
    length = _safetensors.header_length(content[:8], len(content))
    return _safetensors.parse_header(content[8 : 8 + length], len(content))


def about(dtype="U8", shape=(4,), offsets=(0, 4), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def make_random(rng):
    """A valid file: many types, odd offsets, names of any letters, empty tensors, scalars."""
    header, data = {}, b""
    types_ = [name for name, bits in _safetensors._BITS.items() if bits % 8 == 0]
    for number in range(rng.randrange(12)):
        dtype = rng.choice(types_)
        shape = [rng.randrange(5) for _ in range(rng.randrange(4))]
        size = _safetensors._BITS[dtype] // 8
        for one in shape:
            size *= one
        name = f"{number}" + rng.choice(["weight", "\u00e9\u4e2d", "\U0001f6f6", ".", '"', "\\"])
        header[name] = about(dtype, shape, (len(data), len(data) + size))
        data += rng.randbytes(size)
    if rng.random() < 0.3:
        header["__metadata__"] = {"format": "pt", "\u00fc": ""}
    names = list(header)
    rng.shuffle(names)
    text = json.dumps({name: header[name] for name in names}, ensure_ascii=rng.random() < 0.5)
    return pack(text + " " * rng.randrange(9), data)


def mutate(rng, content):
    content = bytearray(content)
    length = int.from_bytes(content[:8], "little")
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(8 + length) if rng.random() < 0.9 else rng.randrange(8)
        if place >= len(content):
            continue
        how = rng.randrange(4)
        if how == 0:
            content[place] = rng.randrange(256)
        elif how == 1:
            content[place : place + 1] = b""
        elif how == 2:
            content[place:place] = rng.choice(
                [b"0", b"9", b"-", b"1e9", b"{", b"}", b"[", b"]", b",", b'"', b"null", b"NaN",
                 b"\\ud800", b"true", b'"dtype":"U8",', b"\xff", b" "]
            )  # fmt: skip
        else:
            end = place + rng.randrange(40)
            content[place:place] = content[place:end]
    if rng.random() < 0.8:  # else the length is wrong, too, and nothing behind it is reached
        content[:8] = max(len(content) - 8 - len(content[8 + length :]), 0).to_bytes(8, "little")
    return bytes(content)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "model.safetensors")

    def write(self, content):
        with open(self.path, "wb") as file:
            file.write(content)

    def refused(self, number, text, call, *arguments, **more):
        with self.assertRaises(wherry.Error) as caught:
            call(*arguments, **more)
        self.assertEqual(caught.exception.errno, number)
        self.assertIn(text, str(caught.exception))


class Header(Case):
    def test_good(self):
        metadata = {"format": "pt"}
        entries, found = parse(
            pack(
                {"b": about(shape=(2, 2), offsets=(8, 12)), "a": about("F32", (2,), (0, 8)),
                 "scalar": about("I16", (), (12, 14)), "none": about("F64", (0, 7), (14, 14)),
                 "__metadata__": metadata},
                bytes(14),
            )
        )  # fmt: skip
        self.assertEqual(found, metadata)
        first = entries["a"].first
        self.assertEqual(entries["b"], ("U8", (2, 2), first + 8, first + 12))
        self.assertEqual(entries["scalar"].shape, ())
        self.assertEqual(list(entries), ["b", "a", "scalar", "none"])
        self.assertEqual(parse(pack("{}   ")), ({}, {}))

    def test_refused(self):
        one = about()
        cases = [
            ("it has 3 bytes", b"abc"),
            ("does not fit", (1 << 20).to_bytes(8, "little") + b"{}"),
            ("longer than 100000000", (1 << 63).to_bytes(8, "little") + b"{}"),
            ("does not fit", bytes(8)),
            ("begin with {", pack(" {}")),
            ("begin with {", pack("[]")),
            ("is there twice",
             pack('{"a":%s,"a":%s}' % (json.dumps(one), json.dumps(one)), b"1234")),
            ("is there twice",
             pack('{"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}}', b"1234")),
            ("its header", pack("{ ")),
            ("its header", pack('{"a":NaN}')),
            ("its header", pack('{}{}')),
            ("its header", pack(b'{"\xff":1}')),
            ("its header", pack('{"\\ud800":%s}' % json.dumps(one), b"1234")),
            ("nested too deeply", pack('{"a":' + "[" * 100000 + "]" * 100000 + "}")),
            ("is not an object", pack({"a": 1})),
            ("unknown dtype", pack({"a": about("F31")}, b"1234")),
            ("unknown dtype", pack({"a": about(None)}, b"1234")),
            ("the shape", pack({"a": {"dtype": "U8", "data_offsets": [0, 4]}}, b"1234")),
            ("the shape", pack({"a": about(shape=(-1,))}, b"1234")),
            ("the shape", pack({"a": about(shape=(True, 4))}, b"1234")),
            ("the shape", pack({"a": about(shape=(4.0,))}, b"1234")),
            ("the shape", pack({"a": about(shape=(2**63,))}, b"1234")),
            ("dimensions", pack({"a": about(shape=[1] * 64 + [4])}, b"1234")),
            ("does not have 4 bytes", pack({"a": about(shape=(2**62, 2**62))}, b"1234")),
            ("does not have 4 bytes", pack({"a": about("F32", (4,))}, b"1234")),
            ("does not have 4 bytes", pack({"a": about("F4", (9,))}, b"1234")),
            ("are not [first, last]", pack({"a": about(offsets=(4, 0))}, b"1234")),
            ("are not [first, last]", pack({"a": about(offsets=(0, 4, 4))}, b"1234")),
            ("overlaps", pack({"a": one, "b": about(offsets=(3, 7))}, b"1234567")),
            ("overlaps", pack({"a": one, "b": one}, b"1234")),
            ("a gap behind", pack({"a": one, "b": about(offsets=(5, 9))}, b"123456789")),
            ("a gap behind the header", pack({"a": about(offsets=(1, 5))}, b"12345")),
            ("end at byte", pack({"a": one}, b"123")),
            ("end at byte", pack({"a": one}, b"12345")),
            ("__metadata__", pack({"__metadata__": {"a": 1}})),
            ("__metadata__", pack({"__metadata__": []})),
        ]  # fmt: skip
        for text, content in cases:
            with self.subTest(content=content[:80]):
                self.refused(errno.EINVAL, text, parse, content)

    def test_mutations(self):
        """Whatever the bytes are: an Error of our own, or entries that cover the file once."""
        seed = random.SystemRandom().getrandbits(64)
        print(f"seed {seed}", flush=True)
        rng = random.Random(seed)
        ends, taken, refused = time.monotonic() + FUZZ_SECONDS, 0, 0
        while time.monotonic() < ends:
            content = make_random(rng)
            entries, _ = parse(content)
            changed = mutate(rng, content)
            try:
                entries, _ = parse(changed)
                taken += 1
            except wherry.Error as error:
                self.assertEqual(error.errno, errno.EINVAL)
                refused += 1
                continue
            place = 8 + int.from_bytes(changed[:8], "little")
            for entry in sorted(entries.values(), key=lambda one: one[2:]):
                self.assertEqual(entry.first, place)
                place = entry.last
            self.assertEqual(place, len(changed))
        print(f"{taken} taken, {refused} refused")
        self.assertTrue(taken and refused)

    @unittest.skipIf(safetensors is None, "the package safetensors is not installed")
    def test_as_safetensors(self):
        """What we take, the package takes with the same bytes; what it refuses, we refuse."""
        seed = random.SystemRandom().getrandbits(64)
        print(f"seed {seed}", flush=True)
        rng = random.Random(seed)
        ends, both, stricter = time.monotonic() + FUZZ_SECONDS, 0, 0
        while time.monotonic() < ends:
            content = make_random(rng)
            if rng.random() < 0.7:
                content = mutate(rng, content)
            try:
                theirs = dict(safetensors.deserialize(content))
            except Exception:
                theirs = None
            try:
                entries, _ = parse(content)
            except wherry.Error:
                stricter += theirs is not None
                continue
            self.assertIsNotNone(theirs, content)
            both += 1
            self.assertEqual(set(theirs), set(entries))
            for name, entry in entries.items():
                self.assertEqual(list(entry.shape), list(theirs[name]["shape"]))
                self.assertEqual(entry.dtype, theirs[name]["dtype"])
                self.assertEqual(content[entry.first : entry.last], bytes(theirs[name]["data"]))
        print(f"{both} the same, {stricter} refused by us alone")
        self.assertTrue(both)


class FakeTensor:
    """As much of a torch tensor as the loader and the package use."""

    def __init__(self, shape, dtype, device):
        self.shape, self.dtype, self.device = shape, dtype, device
        self.size = dtype
        for one in shape:
            self.size *= one
        self.memory = array.array("B", bytes(max(self.size, 1)))

    def data_ptr(self):
        return self.memory.buffer_info()[0]

    def element_size(self):
        return self.dtype

    def stride(self):
        steps, step = [], 1
        for one in reversed(self.shape):
            steps.insert(0, step)
            step *= one
        return steps

    def bytes(self):
        return self.memory.tobytes()[: self.size]


def fake_torch():
    module = types.ModuleType("torch")
    for name, attribute in _safetensors._TORCH.items():
        setattr(module, attribute, _safetensors._BITS[name] // 8)
    module.empty = lambda shape, dtype, device: FakeTensor(shape, dtype, device)
    return module


class Load(Case):
    def setUp(self):
        super().setUp()
        kept = sys.modules.get("torch")
        sys.modules["torch"] = fake_torch()

        def undo():
            del sys.modules["torch"]
            if kept is not None:
                sys.modules["torch"] = kept

        self.addCleanup(undo)

    def compare(self, content, tensors):
        entries, _ = parse(content)
        self.assertEqual(list(tensors), list(entries))
        for name, entry in entries.items():
            self.assertEqual(tensors[name].bytes(), content[entry.first : entry.last], name)
            self.assertEqual(tensors[name].shape, entry.shape)

    def test_random(self):
        seed = random.SystemRandom().getrandbits(64)
        print(f"seed {seed}", flush=True)
        rng = random.Random(seed)
        with wherry.Engine(listen="none") as engine:
            for _ in range(20):
                content = make_random(rng)
                self.write(content)
                self.compare(content, wherry.load_safetensors(self.path, engine=engine))
            self.assertIn("0 regions, 0 peers", repr(engine))

    def test_large(self):
        """Tensors of several MiB at odd offsets, and a thousand small ones."""
        rng, header, data = random.Random(1), {}, []
        place = 0
        for number in range(1003):
            size = 5_000_001 if number % 501 == 0 else rng.randrange(1, 100)
            header[f"layer.{number}"] = about("U8", (size,), (place, place + size))
            data.append(rng.randbytes(size))
            place += size
        content = pack(header, b"".join(data))
        self.write(content)
        self.compare(content, wherry.load_safetensors(pathlib.Path(self.path), "cpu"))

    def test_groups(self):
        """Several transfers at once, of tensors whose order in the header is not the file's."""
        rng = random.Random(2)
        sizes = [0, 5_000, 1, 70_000, 0, 999, 70_000, 1_000, 4_001, 3]
        places = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        header = {
            f"layer.{i}": about("U8", (sizes[i],), (places[i], places[i + 1]))
            for i in rng.sample(range(len(sizes)), len(sizes))
        }
        content = pack(header, rng.randbytes(places[-1]))
        self.write(content)
        for group in (1, 5_000, 6_000, 1 << 20):
            with unittest.mock.patch.object(_safetensors, "_GROUP", group):
                self.compare(content, wherry.load_safetensors(self.path))

    def test_pack(self):
        """Tensors in one memory of a GPU: aligned, apart, and with as few runs as can be."""
        pack_ = _safetensors._pack

        def entry(first, last):
            return _safetensors.Entry("U8", (), first, last)

        self.assertEqual(pack_([entry(7, 10)]), ([0], 3, [(7, 0, 3)]))
        self.assertEqual(
            pack_([entry(8, 520), entry(520, 1544), entry(1544, 1545), entry(1545, 1550)]),
            ([0, 512, 1536, 2048], 2053, [(8, 0, 1537), (1545, 2048, 5)]),
        )
        # Some of the file's tensors are left out.
        self.assertEqual(
            pack_([entry(0, 512), entry(1024, 1536)]),
            ([0, 512], 1024, [(0, 0, 512), (1024, 512, 512)]),
        )
        rng = random.Random(4)
        for _ in range(200):
            entries, at = [], rng.randrange(100)
            for _ in range(rng.randrange(1, 30)):
                last = at + rng.choice([1, 3, 512, 1024, 4096, rng.randrange(1, 5000)])
                entries.append(entry(at, last))
                at = last + rng.choice([0, 0, 0, 5])
            file = rng.randbytes(at)
            places, length, runs = pack_(entries)
            memory = bytearray(length)
            for first, place, count in runs:
                memory[place : place + count] = file[first : first + count]
            read = sum(count for _, _, count in runs)
            self.assertEqual(read, sum(e.last - e.first for e in entries))
            for place, e in zip(places, entries):
                self.assertEqual(place % 512, 0)
                self.assertEqual(memory[place : place + e.last - e.first], file[e.first : e.last])

    def test_no_memory_meanwhile(self):
        """No memory for a later tensor, while earlier ones are read: an error, and no tensors."""
        size = 8 << 20
        header = {f"a{i}": about("U8", (size,), (i * size, (i + 1) * size)) for i in range(3)}
        self.write(pack(header, bytes(3 * size)))
        torch, made = sys.modules["torch"], []
        kept = torch.empty

        def empty(*arguments, **more):
            made.append(1)
            if len(made) == 3:
                raise MemoryError
            return kept(*arguments, **more)

        torch.empty = empty
        with wherry.Engine(listen="none") as engine:
            with unittest.mock.patch.object(_safetensors, "_GROUP", size):
                self.assertRaises(
                    MemoryError, wherry.load_safetensors, self.path, engine=engine
                )
            self.assertIn("0 regions, 0 peers", repr(engine))

    def test_names(self):
        content = pack({"a": about(), "b": about(offsets=(4, 8))}, b"12345678")
        self.write(content)
        tensors = wherry.load_safetensors(self.path, names=["b"])
        self.assertEqual(list(tensors), ["b"])
        self.assertEqual(tensors["b"].bytes(), b"5678")
        self.refused(
            errno.ENOENT, "no tensor 'c'", wherry.load_safetensors, self.path, names=["a", "c"]
        )

    def test_engine_is_kept(self):
        """Calls that name no engine share one, on any thread; a forked child has another."""
        self.write(pack({"a": about()}, b"1234"))
        opened, kept = [], _safetensors.Engine

        class Counted(kept):
            def __init__(self, **settings):
                opened.append(self)
                super().__init__(**settings)

        def load():
            self.assertEqual(wherry.load_safetensors(self.path)["a"].bytes(), b"1234")

        with unittest.mock.patch.multiple(_safetensors, Engine=Counted, _own=None):
            threads = [threading.Thread(target=load) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            load()
            self.assertEqual(len(opened), 1)
            self.assertIn("0 regions, 0 peers", repr(opened[0]))
            child = os.fork()
            if not child:
                status = 1
                try:
                    load()
                    status = 0 if len(opened) == 2 else 2
                finally:
                    os._exit(status)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            opened[0].close()  # as a program could by mistake: no call uses it any more
            load()
            self.assertEqual(len(opened), 2)
            opened[1].close()

    def test_errors(self):
        load = wherry.load_safetensors
        self.refused(errno.ENOENT, "model.safetensors", load, self.path)
        self.write(b"no tensors here")
        self.refused(errno.EINVAL, "model.safetensors: not a valid", load, self.path)
        self.write(pack({"a": about("F4", (8,))}, b"1234"))
        self.refused(errno.EOPNOTSUPP, "no type F4", load, self.path)
        self.refused(errno.EINVAL, "framework is", load, self.path, framework="jax")
        self.refused(errno.EISDIR, "", load, os.path.dirname(self.path))

    def test_truncated_meanwhile(self):
        """The file becomes shorter after its header was read: an error, and no tensors."""
        self.write(pack({"a": about(shape=(1 << 20,), offsets=(0, 1 << 20))}, bytes(1 << 20)))
        torch = sys.modules["torch"]
        kept = torch.empty

        def empty(*arguments, **more):
            os.truncate(self.path, 100)
            return kept(*arguments, **more)

        torch.empty = empty
        with wherry.Engine(listen="none") as engine:
            with self.assertRaises(wherry.Error) as caught:
                wherry.load_safetensors(self.path, engine=engine)
            self.assertIn(caught.exception.errno, (errno.EIO, errno.ERANGE))
            self.assertIn("0 regions, 0 peers", repr(engine))

    def test_block_ends_with_its_own_error(self):
        """`with engine.connect()`: the error of a transfer inside is what the block raises, and not
        that the peer cannot be closed while the transfer exists."""
        self.write(bytes(1 << 20))
        with wherry.Engine(listen="none") as engine:
            file = engine.register_file(self.path, name="file")
            os.truncate(self.path, 100)
            with self.assertRaises(wherry.Error) as caught:
                with engine.connect("self") as peer:
                    transfer = peer.read("file", engine.register(bytearray(1 << 20)))
                    transfer.wait()
            self.assertEqual(caught.exception.errno, errno.EIO)
            with self.assertRaises(wherry.Error) as caught, engine.connect("self") as peer:
                transfer = peer.read("file", engine.register(bytearray(100)))
            self.assertEqual(caught.exception.errno, errno.EBUSY)  # nothing else went wrong
            del transfer, file

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_numpy(self):
        data = numpy.arange(15, dtype="<f4").reshape(3, 5)
        header = {"x": about("U8", (1,), (0, 1)), "a": about("F32", (3, 5), (1, 61))}
        self.write(pack(header, b"x" + data.tobytes()))
        tensors = wherry.load_safetensors(self.path, framework="numpy")
        self.assertTrue((tensors["a"] == data).all())
        self.assertTrue(tensors["a"].flags.writeable)
        del sys.modules["torch"]
        sys.modules["torch"] = None  # as if it were not installed
        self.assertIs(type(wherry.load_safetensors(self.path)["a"]), numpy.ndarray)
        self.refused(
            errno.EINVAL, "numpy has no memory", wherry.load_safetensors, self.path, "cuda:0"
        )
        self.write(pack({"a": about("BF16", (2,))}, b"1234"))
        self.refused(errno.EOPNOTSUPP, "no type BF16", wherry.load_safetensors, self.path)

    @unittest.skipIf(numpy is None or safetensors is None, "numpy or safetensors is missing")
    def test_written_by_safetensors(self):
        from safetensors.numpy import save_file

        rng = numpy.random.default_rng(1)
        tensors = {f"t{n}": rng.random((n, 7), dtype="float32") for n in range(9)}
        save_file(tensors, self.path, metadata={"format": "np"})
        loaded = wherry.load_safetensors(self.path, framework="numpy")
        self.assertEqual(set(loaded), set(tensors))
        for name, expected in tensors.items():
            self.assertTrue((loaded[name] == expected).all())


class Register(Case):
    def test_by_name(self):
        self.write(bytes(range(100)))
        with wherry.Engine() as engine:
            memory = bytearray(10)
            for file in self.path, pathlib.Path(self.path):
                with engine.register(file, name="weights", access="r", listed=True) as region:
                    self.assertEqual(len(region), 100)
                    peer = engine.connect(engine.url)
                    self.assertEqual(peer.find("weights").kind, "file")
                    with engine.register(memory) as target:
                        peer.read(peer.find("weights")[5:15], target).wait()
                    peer.close()
                self.assertEqual(memory, bytes(range(5, 15)))
            self.refused(errno.ENOENT, "nothing", engine.register, "nothing-there")


COMMAND = os.environ.get("TEST_COMMAND", "")
TAG = 0x7269642D79727265
LIST, OPEN, CREATE, SUM, COMMIT, MKDIR = 1, 2, 3, 4, 5, 6


@unittest.skipUnless(COMMAND and os.path.exists(COMMAND), "the command is not built")
class Directory(unittest.TestCase):
    """What a client of its own making can ask `wherry serve --dir` for (tools/dir/message.h)."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name in "served", "writable", "outside":
            os.mkdir(os.path.join(self.folder, name))
        for name in "served/file", "outside/secret":
            with open(os.path.join(self.folder, name), "w", encoding="ascii") as file:
                file.write("bytes")
        os.symlink("../outside", os.path.join(self.folder, "served", "link"))
        os.symlink("../outside", os.path.join(self.folder, "writable", "link"))
        server = subprocess.Popen(
            [COMMAND, "serve", "--dir", self.folder + "/served",
             "--dir", self.folder + "/writable:rw"], stdout=subprocess.PIPE
        )  # fmt: skip
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        self.server = server
        self.numbers = {}
        engine = wherry.Engine(listen="none")
        self.addCleanup(engine.close)
        self.engine = engine
        self.peer = engine.connect(server.stdout.readline().decode().strip())

    def fetch(self, remote):
        memory = bytearray(len(remote))
        with self.engine.register(memory) as region:
            self.peer.read(remote, region).wait()
        return bytes(memory)

    def send(self, name, op, items, token):
        if name not in self.numbers:
            head = self.fetch(self.peer.find(name))
            self.numbers[name] = struct.unpack("<16xQ", head)[0]
        number = self.numbers[name]
        body = b"".join(
            struct.pack("<QQQqIIII", handle, offset, length, 0, 0o600, 0, len(path), 0) + path
            for handle, offset, length, path in items
        )
        head = struct.pack("<IHHQ16sII", 0x52494457, 1, op, number, token, len(items), 0)
        self.peer.notify(TAG, head + body).wait()

    def ask(self, name, op, *items, timeout=20):
        """(status, handle) of each item."""
        token = os.urandom(16)
        self.send(name, op, items, token)
        answer = self.fetch(self.peer.find("dir." + token.hex(), timeout=timeout))
        at, found = 40, []
        while at < len(answer):
            item = struct.unpack_from("<QQQqIIII", answer, at)
            found.append((item[5], item[0]))
            at += 48 + item[6]
        return found

    def test_names(self):
        good = self.ask("served", OPEN, (0, 0, 0, b"file"))
        self.assertEqual(good[0][0], 0)
        self.assertEqual(self.fetch(self.peer.find(f"dir.{good[0][1]:016x}")), b"bytes")
        for path in (b"../outside/secret", b"/etc/passwd", b"link/secret", b"link", b"a/../file",
                     b"", b"file\0", b".file.wherry-part", b"x" * 5000):  # fmt: skip
            with self.subTest(path=path[:20]):
                self.assertNotEqual(self.ask("served", OPEN, (0, 0, 0, path))[0][0], 0)
                self.assertNotEqual(self.ask("writable", CREATE, (0, 0, 5, path))[0][0], 0)
                self.assertNotEqual(self.ask("writable", MKDIR, (0, 0, 0, path))[0][0], 0)
        self.assertEqual(os.listdir(self.folder + "/outside"), ["secret"])

    def test_rights_and_handles(self):
        for op in CREATE, MKDIR:
            self.assertEqual(self.ask("served", op, (0, 0, 5, b"new"))[0][0], errno.EROFS)
        handle = self.ask("served", OPEN, (0, 0, 0, b"file"))[0][1]
        for name, op in ("served", COMMIT), ("writable", COMMIT), ("writable", SUM):
            self.assertEqual(self.ask(name, op, (handle, 0, 5, b""))[0][0], errno.EBADF)
        self.assertEqual(self.ask("served", SUM, (handle, 0, 5, b""))[0][0], 0)
        self.assertEqual(self.ask("served", SUM, (handle, 0, 6, b""))[0][0], errno.EIO)
        self.assertEqual(self.ask("served", SUM, (handle, 0, 2**63, b""))[0][0], errno.EINVAL)
        remote = self.peer.find(f"dir.{handle:016x}")
        self.assertEqual(remote.access, "r")

    def test_two_writers(self):
        """The second one takes the file over; the first one's handle is gone."""
        first = self.ask("writable", CREATE, (0, 0, 5, b"new"))[0]
        second = self.ask("writable", CREATE, (0, 0, 5, b"new"))[0]
        self.assertEqual((first[0], second[0]), (0, 0))
        self.assertEqual(self.ask("writable", COMMIT, (first[1], 0, 0, b""))[0][0], errno.EBADF)
        self.assertEqual(self.ask("writable", COMMIT, (second[1], 0, 0, b""))[0][0], 0)
        self.assertEqual(os.path.getsize(self.folder + "/writable/new"), 5)

    def test_noise(self):
        """Messages that are none, and more than the server keeps: it goes on."""
        rng = random.Random(3)
        for _ in range(300):
            self.peer.notify(TAG, rng.randbytes(rng.randrange(200))).wait()
        for _ in range(300):
            self.send("served", OPEN, [(0, 0, 0, b"file")] * 5, os.urandom(16))
        deadline = time.monotonic() + 30
        while True:  # requests too many are dropped
            try:
                status = self.ask("served", OPEN, (0, 0, 0, b"file"), timeout=0.5)[0][0]
                self.assertIn(status, (0, errno.EMFILE))
                break
            except wherry.Error:
                self.assertLess(time.monotonic(), deadline)
        self.assertIsNone(self.server.poll())


if __name__ == "__main__":
    unittest.main()
