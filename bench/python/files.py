# SPDX-License-Identifier: Apache-2.0
"""Files beside the other ways to read them: parallel pread, fio, kvikio, the packages safetensors
and fastsafetensors, and host memory on the same route over TCP. Each comparison runs in turns, in
one run; what is not installed is left out, by name.

    PYTHONPATH=bindings/python WHERRY_LIBRARY=build/src/libwherry.so.0 \\
        python3 bench/python/files.py [--directory DIR] [--mib N] [--rounds N] [--json FILE]
                                      [--gpu DEVICE]

--directory is where the files are made (4 times --mib); on tmpfs nothing is cold, and those rows
are left out. With --gpu (cuda:0) only a safetensors file of --mib is read, out of the page cache
into tensors of torch on that GPU, and sent over TCP into memory of that GPU of another process.
"""
import argparse
import array
import ctypes
import json
import mmap
import multiprocessing
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import wherry

THREADS = int(wherry.settings()["file_threads"][1])
PIECE = 4 << 20


def load(name):
    """The module, or None with a line."""
    try:
        return __import__(name, fromlist=["x"])
    except Exception as error:  # some fail for want of a driver
        print(f"left out: {name}: {str(error).splitlines()[0] if str(error) else error!r}")
        return None


# ---- the page cache


def resident(path):
    """The share of the file's pages that are in the page cache."""
    length = os.path.getsize(path)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    pages = (length + mmap.PAGESIZE - 1) // mmap.PAGESIZE
    state = (ctypes.c_ubyte * pages)()
    with open(path, "rb") as file:
        at = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if at == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    if libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(length), state):
        raise OSError(ctypes.get_errno(), "mincore")
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(length))
    return sum(byte & 1 for byte in bytes(state)) / pages


def warm(path):
    with open(path, "rb") as file:
        while file.read(PIECE):
            pass
    return resident(path) == 1


def cold(path):
    with open(path, "rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return resident(path) == 0


# ---- the ways


def memory_of(size, huge=False):
    """Private memory, as fio has. A disk reads and writes several ordinary pages that follow one
    another at once, which those of shared memory seldom do, and huge pages best."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge:
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def pread_into(path, memory):
    view, lock, at = memoryview(memory), threading.Lock(), [0]
    with open(path, "rb") as file:

        def work():
            while True:
                with lock:
                    first = at[0]
                    at[0] += PIECE
                if first >= len(view):
                    return
                os.preadv(file.fileno(), [view[first : first + PIECE]], first)

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class Fio:
    """Reads or writes `total` bytes past the page cache, in blocks of `size` bytes that follow one
    another or, with "rand", do not; and says how long that took by itself. `huge`: out of, or into,
    huge pages, which glibc takes from 2.35 on."""

    def __init__(self, path, total, how="read", size=128 << 10, depth=64, huge=False):
        self.ways = [f"--filename={path}", f"--rw={how}", f"--bs={size}", f"--io_size={total}",
                     f"--iodepth={depth}",
                     "--readonly" if how.endswith("read") else "--overwrite=1"]  # fmt: skip
        self.environment = dict(os.environ, **({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
                                               if huge else {}))  # fmt: skip
        self.op = "read" if how.endswith("read") else "write"

    def __call__(self):
        run = subprocess.run(
            ["fio", "--name=job", *self.ways, "--ioengine=io_uring", "--direct=1",
             "--randrepeat=0", "--allow_file_create=0", "--output-format=json"],
            check=True, capture_output=True, env=self.environment,
        )  # fmt: skip
        return json.loads(run.stdout)["jobs"][0][self.op]["runtime"] / 1e3


def serve(pipe, length, device):
    """The other process of the rows over TCP, with memory of a GPU or of its own."""
    with wherry.Engine(require="tcp") as engine:
        if device:
            torch = load("torch")
            memory = torch.empty(length, dtype=torch.uint8, device=device)
        else:
            memory = engine.allocate(length)
        engine.register(memory, name="memory", access="rw")
        pipe.send(engine.url)
        pipe.recv()


def serve_file(pipe, path):
    """The owner of a file that another process reads and writes."""
    with wherry.Engine() as engine:
        region = engine.register(path, name="file", access="rw")
        pipe.send(engine.url)
        pipe.recv()
        region.unregister()


# ---- comparing


def seconds(call):
    begin = time.perf_counter()
    own = call()
    return own if isinstance(own, float) else time.perf_counter() - begin


def compare(results, rounds, what, cache, size, ours, others, ready):
    """Run all in turns. The ratio is the median of the rounds' own: each meets the same machine."""
    times = {name: [] for name in ["wherry", *others]}
    calls = {"wherry": ours, **others}
    for number in range(rounds + 1):
        for name in list(calls) if number % 2 else reversed(list(calls)):
            if ready is not None and not ready():
                print(f"left out: {what}, {cache}: the page cache cannot be made so")
                return
            taken = seconds(calls[name])
            if number:  # the first round warms up
                times[name].append(taken)
    gbps = {name: size / statistics.median(taken) / 1e9 for name, taken in times.items()}
    for other in others:
        ratio = statistics.median(b / a for a, b in zip(times["wherry"], times[other]))
        results.append(
            {
                "what": what,
                "cache": cache,
                "bytes": size,
                "rounds": rounds,
                "gbps": round(gbps["wherry"], 3),
                "other": other,
                "other_gbps": round(gbps[other], 3),
                "ratio": round(ratio, 3),
            }
        )
        print(f"{what:28} {cache:5} {gbps['wherry']:7.2f} GB/s   {other:24} "
              f"{gbps[other]:7.2f}   {ratio:5.2f} x", flush=True)  # fmt: skip


def host_rows(results, arguments, path, size):
    kvikio = load("kvikio")
    numpy = load("numpy")
    with wherry.Engine(listen="none") as engine, engine.connect("self") as peer:
        target = memory_of(size)
        region, file = engine.register(target), engine.register(path, name="file", access="r")
        remote = peer.find("file")

        def ours():
            peer.read(remote, region).wait()

        plain = memory_of(size)
        others = {f"pread, {THREADS} threads": lambda: pread_into(path, plain)}
        if kvikio and numpy:
            bytes_of = numpy.frombuffer(memory_of(size), dtype="u1")

            def by_kvikio():
                with kvikio.CuFile(path, "r") as handle:
                    handle.read(bytes_of)

            try:
                by_kvikio()
                others["kvikio"] = by_kvikio
            except RuntimeError as error:  # it wants libcuda for host memory, too
                print(f"left out: kvikio: {error}")
        rows = (results, arguments.rounds, "file to host")
        compare(*rows, "warm", size, ours, others, lambda: warm(path))
        if shutil.which("fio"):
            others["fio, io_uring, depth 64"] = Fio(path, size)
        else:
            print("left out: fio is not installed")
        compare(*rows, "cold", size, ours, others, lambda: cold(path))
        region.unregister()
        file.unregister()


# Bytes of a block, how many fio has in flight, and bytes in all. One batch of Wherry's is all.
DEPTHS = ((4 << 10, 256, 64 << 20), (64 << 10, 64, 256 << 20), (1 << 20, 32, 512 << 20),
          (64 << 20, 4, 512 << 20))  # fmt: skip


def depth_rows(results, arguments, path, size):
    """Random blocks past the page cache beside fio, read and written."""
    if not shutil.which("fio"):
        return
    rng = random.Random(2)
    with wherry.Engine(listen="none", file_writes="direct") as engine:
        with engine.connect("self") as peer:
            file = engine.register(path, name="file", access="rw")
            for huge in False, True:
                region = engine.register(memory_of(size, huge))
                for block, depth, total in DEPTHS:
                    count = min(total, size) // block
                    name = f"{block >> 10} KiB x {depth}" + (", huge pages" if huge else "")

                    def move(how, block=block, count=count, region=region):
                        places = array.array("Q", rng.sample(range(size // block), count))
                        there = array.array("Q", range(count))
                        # Only the batch counts: fio draws its places beforehand, too.
                        begin = time.perf_counter()
                        if how == "read":
                            peer.read("file", region, blocks=(places, there, block)).wait()
                        else:
                            peer.write("file", region, blocks=(there, places, block)).wait()
                        return time.perf_counter() - begin

                    for how in "read", "write":
                        fio = Fio(path, count * block, "rand" + how, block, depth, huge)
                        compare(results, arguments.rounds, f"{how} {name}", "cold", count * block,
                                lambda how=how, move=move: move(how), {"fio, io_uring": fio},
                                lambda: cold(path))  # fmt: skip
                region.unregister()
            file.unregister()


def tcp_rows(results, arguments, path, size):
    what = "file to a peer over TCP" + (f", {arguments.gpu}" if arguments.gpu else "")
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, size, arguments.gpu))
    process.start()
    with wherry.Engine(listen="none", require="tcp") as engine:
        memory = engine.allocate(size)
        with open(path, "rb") as file:
            file.readinto(memory)
        region, file = engine.register(memory), engine.register(path)
        with engine.connect(pipe.recv()) as peer:
            remote = peer.find("memory")
            compare(
                results, arguments.rounds, what, "warm", size,
                lambda: peer.write(remote, file).wait() and None,
                {"host memory": lambda: peer.write(remote, region).wait() and None},
                lambda: warm(path),
            )  # fmt: skip
        region.unregister()
        file.unregister()
    pipe.send(None)
    process.join()


def peer_rows(results, arguments, path, size):
    """A file of another process on this host: through shared memory, and through sockets alone."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=serve_file, args=(theirs, path))
    process.start()
    url = pipe.recv()
    with wherry.Engine(listen="none") as engine, wherry.Engine(
        listen="none", transports="tcp"
    ) as sockets:
        memory, plain = memory_of(size), memoryview(memory_of(size))
        ways = []
        for one in engine, sockets:
            peer = one.connect(url)
            ways.append((peer, peer.find("file"), one.register(memory)))
        with open(path, "r+b") as file:

            def each(call):
                for at in range(0, size, PIECE):
                    call(file.fileno(), [plain[at : at + PIECE]], at)

            for what, op, call in (("a peer's file read", "read", os.preadv),
                                   ("a peer's file written", "write", os.pwritev)):  # fmt: skip
                moves = [
                    lambda way=way, op=op: getattr(way[0], op)(way[1], way[2]).wait() and None
                    for way in ways
                ]
                compare(
                    results, arguments.rounds, what, "warm", size, moves[0],
                    {"sockets alone": moves[1],
                     f"{call.__name__}, one thread": lambda call=call: each(call)},
                    lambda: warm(path),
                )  # fmt: skip
        for peer, _, region in ways:
            peer.close()
            region.unregister()
    pipe.send(None)
    process.join()


def make_model(path, size):
    """A safetensors file of many tensors at odd offsets. Its bytes repeat each 64 MiB."""
    rng, header, at = random.Random(1), {"odd": {}}, 3
    header["odd"] = {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}
    while at < size:
        rows = rng.choice([1, 64, 1024, 4096])
        length = rows * 1024 * 4
        header[f"layer.{len(header)}.weight"] = {
            "dtype": "F32", "shape": [rows, 1024], "data_offsets": [at, at + length],
        }  # fmt: skip
        at += length
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        some = os.urandom(16 * PIECE)
        for _ in range(0, at, len(some)):
            file.write(some[: max(0, 8 + len(text) + at - file.tell())])
    return os.path.getsize(path)


def model_rows(results, arguments, path):
    safetensors = load("safetensors.numpy")
    if not safetensors:
        return
    size = make_model(path, arguments.mib << 20)

    def touch(tensors):
        """A byte of each page, as tensors may be views of a mapping."""
        for tensor in tensors.values():
            tensor.reshape(-1).view("u1")[::4096].sum()

    for cache, ready in ("warm", warm), ("cold", cold):
        compare(
            results, arguments.rounds, "safetensors to numpy", cache, size,
            lambda: touch(wherry.load_safetensors(path, framework="numpy")),
            {"safetensors": lambda: touch(safetensors.load_file(path))},
            lambda ready=ready: ready(path),
        )  # fmt: skip


def rows_without_gpu(results, arguments, folder):
    path, size = os.path.join(folder, "file"), arguments.mib << 20
    with open(path, "wb") as file:
        for _ in range(0, size, PIECE):
            file.write(os.urandom(PIECE))
        file.truncate(size)
    host_rows(results, arguments, path, size)
    depth_rows(results, arguments, path, size)
    tcp_rows(results, arguments, path, size)
    peer_rows(results, arguments, path, size)
    os.unlink(path)
    model_rows(results, arguments, os.path.join(folder, "model.safetensors"))


def gpu_rows(results, arguments, path):
    """Out of the page cache to the last byte on the GPU, tensors made."""
    torch = load("torch")
    safetensors, fast = load("safetensors.torch"), load("fastsafetensors")
    size = make_model(path, arguments.mib << 20)

    def finish(tensors):
        torch.cuda.synchronize()
        return sum(tensor.nbytes for tensor in tensors.values())

    def ours():
        tensors = wherry.load_safetensors(path, device=arguments.gpu)
        assert finish(tensors) > size - (1 << 20)

    def by_safetensors():
        finish(safetensors.load_file(path, device=arguments.gpu))

    def by_fastsafetensors():
        loader = fast.SafeTensorsFileLoader(fast.SingleGroup(), arguments.gpu, nogds=True)
        loader.add_filenames({0: [path]})
        buffer = loader.copy_files_to_device()
        finish({name: buffer.get_tensor(name) for name in buffer.key_to_rank_lidx})
        buffer.close()
        loader.close()

    def by_kvikio():
        with kvikio.CuFile(path, "r") as handle:
            assert handle.read(whole) == size

    others = {}
    os.environ.setdefault("KVIKIO_COMPAT_MODE", "ON")
    os.environ.setdefault("KVIKIO_NTHREADS", str(THREADS))
    kvikio = load("kvikio")
    whole = torch.empty(size, dtype=torch.uint8, device=arguments.gpu)
    for name, module, call in (
        ("safetensors", safetensors, by_safetensors),
        ("fastsafetensors, nogds", fast, by_fastsafetensors),
        ("kvikio, the bytes alone", kvikio, by_kvikio),
    ):
        try:
            if module:
                call()
                others[name] = call
        except Exception as error:  # it wants libraries that are not here
            print(f"left out: {name}: {error!r}")
        torch.cuda.empty_cache()
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(1 << 30, dtype=torch.uint8, device=arguments.gpu)

    def pinned():
        begin = time.perf_counter()
        for _ in range(4):
            there.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * size / (4 << 30)

    others["pinned memory, contiguous"] = pinned
    warm(path)
    first = seconds(ours)
    gbps = round(size / first / 1e9, 3)
    results.append({"what": "safetensors to GPU, first", "cache": "warm", "bytes": size,
                    "rounds": 1, "gbps": gbps})  # fmt: skip
    print(f"{'safetensors to GPU, first':28} warm  {gbps:7.2f} GB/s")
    compare(results, arguments.rounds, "safetensors to GPU", "warm", size, ours, others, None)
    if not safetensors:
        return
    a, b = wherry.load_safetensors(path, device=arguments.gpu), safetensors.load_file(path)
    # Bit for bit: random bytes have values that equal nothing, not even themselves.
    for name in b:
        assert torch.equal(*(each[name].cpu().view(torch.uint8) for each in (a, b))), name


def revision():
    run = subprocess.run(
        ["git", "-C", os.path.dirname(os.path.abspath(__file__)), "describe", "--always",
         "--dirty", "--abbrev=12", "--exclude=*"], capture_output=True, text=True, check=False,
    )  # fmt: skip
    return run.stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--directory", default="/tmp")
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--gpu", metavar="DEVICE")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        if arguments.gpu:
            path = os.path.join(folder, "model.safetensors")
            gpu_rows(results, arguments, path)
            load("torch").cuda.empty_cache()
            tcp_rows(results, arguments, path, os.path.getsize(path))
        else:
            rows_without_gpu(results, arguments, folder)
    if arguments.json:
        document = {
            "schema": 1,
            "environment": {
                "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "wherry": wherry.__version__,
                "revision": revision(),
                "kernel": platform.release(),
                "architecture": platform.machine(),
                "cores": os.cpu_count(),
                "program": "bench/python/files.py",
                "threads": THREADS,
            },
            "results": results,
        }
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump(document, out, indent=1)
            out.write("\n")
    return 0 if results else 69


if __name__ == "__main__":
    sys.exit(main())
