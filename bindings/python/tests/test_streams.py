# SPDX-License-Identifier: Apache-2.0
"""CUDA streams and GPU arrays, on the fake driver ($TEST_CUDA)."""
import ctypes
import errno
import os
import subprocess
import sys
import unittest

import wherry
from wherry import _transfer

CUDA = os.environ.get("TEST_CUDA")


class Torch:
    """As torch.cuda.Stream has it."""

    class device:
        index = 0

    def __init__(self, handle):
        self.cuda_stream = handle


class Cupy:
    device_id = 0

    def __init__(self, handle):
        self.ptr = handle


class Protocol:
    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return 0, self.handle


class Array:
    """GPU memory with __cuda_array_interface__."""

    def __init__(self, address, shape):
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "strides": None,
            "typestr": "|u1",
            "version": 3,
        }


# A process with GPU memory of its own.
OWNER = """
import ctypes, sys, wherry
cuda = ctypes.CDLL(sys.argv[1])
context, address, length = ctypes.c_void_p(), ctypes.c_uint64(), int(sys.argv[2])
for status in (
    cuda.cuInit(0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    cuda.cuCtxSetCurrent(context),
    cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(length)),
):
    assert status == 0, status
class Array:
    __cuda_array_interface__ = {
        "data": (address.value, False), "shape": (length,), "typestr": "|u1", "version": 3
    }
with wherry.Engine(cuda=sys.argv[1]) as engine:
    engine.register(Array(), name="gpu", access="rw")
    print(engine.url, flush=True)
    sys.stdin.readline()
"""


class Handles(unittest.TestCase):
    def test_kinds(self):
        for stream, device in (
            (Torch(5), b"cuda:0"),
            (Cupy(5), b"cuda:0"),
            (Protocol(5), None),
            (5, None),
        ):
            found = _transfer.native_stream(stream)
            self.assertEqual((found.stream, found.device), (5, device))
        self.assertIsNone(_transfer.native_stream(Torch(0)).stream)
        with self.assertRaises(TypeError):
            _transfer.native_stream("stream")


@unittest.skipUnless(CUDA, "TEST_CUDA does not name the fake driver")
class Streams(unittest.TestCase):
    LENGTH = 1 << 20

    def setUp(self):
        self.cuda = ctypes.CDLL(CUDA)
        context, device = ctypes.c_void_p(), ctypes.c_int()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        stream, address = ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(self.LENGTH))
        self.stream, self.address = stream.value, address.value
        self.engine = wherry.Engine(cuda=CUDA)
        self.addCleanup(self.engine.close)
        self.peer = self.engine.connect("self")

    def call(self, name, *arguments):
        self.assertEqual(getattr(self.cuda, name)(*arguments), 0, name)

    def test_after_and_before(self):
        gpu = Array(self.address, (256, 4096))
        self.engine.register(gpu, name="gpu", access="rw")
        self.assertEqual(self.peer.find("gpu").kind, "device")
        source = bytearray(os.urandom(self.LENGTH))
        back = bytearray(self.LENGTH)
        stream = Torch(self.stream)
        self.peer.write("gpu", self.engine.register(source), stream=stream).wait()
        transfer = self.peer.read("gpu", self.engine.register(back), stream=stream)
        transfer.make_stream_wait(stream)
        self.call("cuStreamSynchronize", ctypes.c_void_p(self.stream))
        self.assertTrue(transfer.done())
        transfer.wait()
        self.assertEqual(source, back)
        with self.peer.prepare_read("gpu", self.engine.register(back)) as plan:
            plan.submit(stream=Protocol(self.stream)).wait()
        part = Array(self.address + 4096, (2, 4096))
        self.peer.read(self.peer.find("gpu")[65536:73728], part).wait()  # a tensor in a region
        with self.peer.read("gpu", self.engine.register(back)):
            pass
        source[4096:12288] = source[65536:73728]
        self.assertEqual(source, back)

    def test_other_process(self):
        """Memory of the application's, in the first transfer of the process: nobody but the
        application has used the primary context before."""
        with subprocess.Popen(
            [sys.executable, "-c", OWNER, CUDA, str(self.LENGTH)],
            env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(wherry.__file__))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as owner:
            peer = self.engine.connect(owner.stdout.readline().decode().strip())
            region = self.engine.register(Array(self.address, (self.LENGTH,)))
            transfer = peer.read("gpu", region, require="cuda").wait(60)
            self.assertIn("within", transfer.explain())
            self.assertNotIn("staged", transfer.explain())
            owner.communicate(b"\n", timeout=60)

    def test_require(self):
        gpu = Array(self.address, (self.LENGTH,))
        self.engine.register(gpu, name="gpu", access="rw")
        region = self.engine.register(bytearray(self.LENGTH))
        self.peer.read("gpu", region, require="cuda").wait()
        self.engine.register(bytearray(8), name="host", access="r")
        with self.assertRaises(wherry.Error) as caught:
            self.peer.read("host", region[0:8], require="cuda")
        self.assertEqual(caught.exception.errno, errno.EOPNOTSUPP)


if __name__ == "__main__":
    unittest.main()
