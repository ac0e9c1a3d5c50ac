# SPDX-License-Identifier: Apache-2.0
"""Cases within a process: what can be registered, and streams."""

import errno
import threading
import time

from python_torch.setup import KIB, MIB, WAIT, Skip, case, need, say

# ---- what can be registered


@case
def round_trip(s):
    """Within the process, in a part of an allocation, from and to pinned and pageable memory."""
    memory = s.memory
    gpu = memory.new(8 * MIB)
    s.engine.register(gpu)
    part = gpu[MIB + 512 : 4 * MIB + 512]
    sent = memory.pinned(3 * MIB)
    sent.copy_(memory.payload(3 * MIB, 5))
    source = s.publish(sent)
    transfer = s.own.read(source, into=part, require=s.must).wait(WAIT)
    say(transfer.explain())
    need(memory.same(part, sent), "the GPU has what the pinned tensor had")
    need(not gpu[: MIB + 512].any() and not gpu[4 * MIB + 512 :].any(), "nothing else was touched")
    back = bytearray(3 * MIB)
    s.own.write(s.publish(back), part, require=s.must).wait(WAIT)
    need(back == sent.numpy().tobytes(), "a bytearray has what the GPU had")


@case
def dtypes(s):
    torch, memory = s.torch, s.memory
    names = "uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 bool"
    names += " float8_e4m3fn float8_e5m2 uint16 uint32 uint64"
    known = [getattr(torch, name) for name in names.split() if hasattr(torch, name)]
    pool = memory.new(2 * MIB * len(known))
    for number, dtype in enumerate(known):
        at = 2 * MIB * number
        one = pool[at : at + MIB].view(dtype)
        two = pool[at + MIB : at + 2 * MIB].view(dtype)
        memory.raw(one).copy_(memory.payload(MIB, number) & (1 if dtype == torch.bool else 255))
        memory.settle()
        s.own.read(s.publish(one), into=s.engine.register(two), require=s.must).wait(WAIT)
        need(memory.same(one, two), f"{dtype}")
    say(" ".join(str(dtype).replace("torch.", "") for dtype in known))


@case
def slices_and_strides(s):
    torch, memory = s.torch, s.memory
    pool = memory.new(256 * 4 * KIB).view(256, 4 * KIB)
    s.engine.register(pool)
    sent = memory.pinned(64 * KIB)
    sent.copy_(memory.payload(64 * KIB, 6))
    source = s.own.find(s.publish(sent))
    s.own.read(source[: 8 * KIB], into=pool[3:5], require=s.must).wait(WAIT)
    need(memory.same(pool[3:5], sent[: 8 * KIB]), "two rows")
    s.own.read(source[: 256 * 64], into=pool[:, 128:192], require=s.must).wait(WAIT)
    need(memory.same(pool[:, 128:192], sent[: 256 * 64]), "a column of 64 bytes, as blocks")
    need(not pool[100, :128].any() and not pool[100, 192:].any(), "nothing beside the column")
    s.own.read(source[:512], into=pool.view(torch.bfloat16)[7, 256:512], require=s.must).wait(WAIT)
    need(memory.same(pool[7, 512:1024], sent[:512]), "a part of a bfloat16 view")
    say(s.refused(errno.EINVAL, lambda: s.own.read(source, into=pool[:, ::3]), "(256, 1366)"))
    s.refused(errno.EINVAL, lambda: s.own.read(source, into=pool.t()[:64]), "(64, 256)")
    s.refused(errno.EINVAL, lambda: s.engine.register(pool[:, :64]), "(256, 64)")
    s.refused(errno.ENOENT, lambda: s.own.read(source[:1024], into=memory.new(1024)), "(1024,)")


@case
def dlpack(s):
    """Objects that have __dlpack__ and nothing else, and capsules."""
    memory = s.memory
    tensor = memory.filled(64 * KIB, 7)

    class Only:
        def __init__(self, inside):
            self.inside = inside

        def __dlpack__(self, **options):
            return self.inside.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.inside.__dlpack_device__()

    back = bytearray(64 * KIB)
    region = s.engine.register(back)
    capsules = [tensor.__dlpack__()]
    try:
        capsules.append(tensor.__dlpack__(max_version=(1, 0)))
    except TypeError:  # an older torch
        pass
    for thing in (Only(tensor), *capsules):
        s.own.read(s.publish(thing), into=region, require=s.must).wait(WAIT)
        need(
            memory.same(s.torch.frombuffer(back, dtype=s.torch.uint8), tensor), type(thing).__name__
        )
        back[:] = bytes(len(back))
    s.torch.utils.dlpack.from_dlpack(capsules[0])
    try:
        s.engine.register(capsules[0])
    except TypeError as error:
        say(str(error))
    else:
        raise AssertionError("a used capsule was not refused")


@case
def cupy_arrays(s):
    s.need_cuda()
    try:
        import cupy
    except ImportError:
        raise Skip("there is no cupy") from None
    memory = s.memory
    one = cupy.arange(1 << 20, dtype=cupy.float32)
    two = cupy.zeros((1024, 1024), dtype=cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    name = s.publish(one)
    s.engine.register(two)
    cupy.cuda.Device().synchronize()
    s.own.read(name, into=two, require="cuda", stream=stream).wait(WAIT)
    need(bool((one == two.reshape(-1)).all()), "cupy to cupy, after a stream of cupy")
    pages = cupy.arange(255, -1, -1)
    tensor = memory.new(4 * MIB)
    region = s.engine.register(tensor)
    s.own.read(name, into=region, blocks=(pages, pages.astype(cupy.int32)[::-1], 16 * KIB)).wait(
        WAIT
    )
    turned = cupy.asnumpy(one).view("u1").reshape(256, -1)[::-1].tobytes()
    need(tensor.cpu().numpy().tobytes() == turned, "block numbers in cupy arrays")
    s.own.read(s.own.find(name)[: 1024 * 16], into=two[:, 5:9], require="cuda").wait(WAIT)
    need(bool((two[:, 5:9].reshape(-1) == one[:4096]).all()), "a column of cupy")


@case
def numpy_arrays(s):
    import numpy

    gpu = s.memory.filled(MIB, 8)
    name = s.publish(gpu)
    array = numpy.zeros((16, 65536), dtype="u1")
    s.engine.register(array)
    s.own.read(name, into=array, require=s.must).wait(WAIT)
    need(array.tobytes() == gpu.cpu().numpy().tobytes(), "numpy has the tensor's bytes")
    pages = numpy.arange(255, -1, -1)
    s.own.read(name, into=s.engine.register(array), blocks=(pages, pages[::-1], 4 * KIB)).wait(WAIT)
    turned = gpu.cpu().numpy().reshape(256, -1)[::-1].tobytes()
    need(array.tobytes() == turned, "block numbers of 64 bits, not contiguous")


@case
def indices(s):
    """Block numbers on the CPU and the GPU, of 32 and 64 bits, contiguous or not."""
    torch, memory = s.torch, s.memory
    pages, page = 512, 4 * KIB
    source = memory.filled(pages * page, 9)
    name = s.publish(source)
    target = memory.new(pages * page)
    region = s.engine.register(target)
    theirs = torch.randperm(pages, generator=torch.Generator().manual_seed(3))
    ours = torch.randperm(pages, generator=torch.Generator().manual_seed(4))
    wanted = torch.zeros_like(target).view(pages, page)
    wanted[ours.to(s.device)] = source.view(pages, page)[theirs.to(s.device)]
    for device in dict.fromkeys(("cpu", s.device)):
        for dtype in (torch.int32, torch.int64):
            for step in (1, 2):
                one, two = (
                    (
                        torch.stack([table, table], 1).to(device, dtype).reshape(-1)[::2]
                        if step == 2
                        else table.to(device, dtype)
                    )
                    for table in (theirs, ours)
                )
                target.zero_()
                memory.settle()
                s.own.read(name, into=region, blocks=(one, two, page), require=s.must).wait(WAIT)
                need(memory.same(target, wanted), f"{dtype} on {device}, step {step}")
    table = theirs.to(s.device)
    for wrong in (table.float(), table.to(torch.complex64), table.to(torch.int16), table > 3):
        s.refused(
            errno.EINVAL, lambda: s.own.read(name, into=region, blocks=(wrong, ours, page))
        )  # noqa: B023
    far = torch.tensor([1 << 40], device=s.device)
    s.refused(errno.EINVAL, lambda: s.own.read(name, into=region, blocks=(far, far, page)), "2**31")


# ---- streams


@case
def after_a_stream(s):
    """A transfer begins when the work before it on the stream has ended."""
    s.need_cuda()
    torch, memory = s.torch, s.memory
    for stream in (torch.cuda.Stream(), torch.cuda.current_stream()):
        source = memory.new(8 * MIB)
        target = memory.new(8 * MIB)
        region = s.engine.register(target)
        name = s.publish(source)
        s.own.read(name, into=region, require="cuda").wait(WAIT)  # the first takes longer
        with torch.cuda.stream(stream):
            memory.sleep(0.3)
            source.fill_(200)
        began = time.monotonic()
        transfer = s.own.read(name, into=region, stream=stream, require="cuda")
        taken = time.monotonic() - began
        need(not transfer.done(), "it waits for the stream")
        transfer.wait(WAIT)
        need(bool((target == 200).all()), "it has what the stream wrote")
        need(taken < 0.1, f"submitting does not wait for the stream: {taken:.3f} s")
        say(f"submitting took {taken * 1e6:.0f} us")


@case
def before_a_stream(s):
    """Work on a stream begins when a transfer has ended, also when that was cancelled."""
    s.need_cuda()
    torch, memory = s.torch, s.memory
    source = memory.filled(8 * MIB, 10)
    target = memory.new(8 * MIB)
    region = s.engine.register(target)
    name = s.publish(source)
    gate, stream = torch.cuda.Stream(), torch.cuda.Stream()
    for number in range(20):
        with torch.cuda.stream(gate):
            target.zero_()
            memory.sleep(0.02)
        transfer = s.own.read(name, into=region, stream=gate, require="cuda")
        transfer.make_stream_wait(stream)
        with torch.cuda.stream(stream):
            seen = target.clone()
        stream.synchronize()
        need(transfer.done(), "the stream was held until the transfer had ended")
        need(memory.same(seen, source), f"round {number}: the stream saw the transfer's bytes")
    with torch.cuda.stream(gate):
        memory.sleep(0.2)
    transfer = s.own.read(name, into=region, stream=gate, require="cuda")
    transfer.make_stream_wait(stream)
    transfer.cancel()
    stream.synchronize()
    need(isinstance(transfer.exception(), s.wherry.Cancelled), "it was cancelled")
    memory.settle()


@case
def graph_capture(s):
    """A capture of torch goes on while another thread transfers; a captured stream is refused."""
    s.need_cuda()
    torch, memory = s.torch, s.memory
    source = memory.filled(4 * MIB, 11)
    target = memory.new(4 * MIB)
    region = s.engine.register(target)
    name = s.publish(source)
    plan = s.own.prepare_read(name, into=region, require="cuda")
    page_numbers = torch.arange(16, device="cuda")
    numbers = torch.arange(1024, device="cuda", dtype=torch.float32)
    out = torch.zeros_like(numbers)
    memory.settle()
    found = {}

    def transfers():
        try:
            for _ in range(100):
                plan.submit().wait(WAIT)
            fresh = bytearray(64 * KIB)
            found["new"] = s.own.read(s.own.find(name)[: 64 * KIB], s.engine.register(fresh)).wait(
                WAIT
            )
            found["good"] = True
        except BaseException as error:
            found["error"] = error

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mul(numbers, 2, out=out)
        thread = threading.Thread(target=transfers)
        thread.start()
        stream = torch.cuda.current_stream()
        say(s.refused(errno.EBUSY, lambda: plan.submit(stream=stream), "captured"))
        given = (page_numbers, page_numbers, 4 * KIB)
        say(s.refused(errno.EBUSY, lambda: s.own.read(name, into=region, blocks=given), "captur"))
        plan.submit().wait(WAIT)  # by this thread, but not on the stream
        thread.join(WAIT)
        out.add_(1)
    need(found.get("good"), f"the other thread's transfers: {found.get('error')}")
    graph.replay()
    need(memory.same(out, numbers * 2 + 1), "the graph works")
    need(memory.same(target, source), "the transfers have moved the bytes")
    # Before and after a graph's replay on a stream.
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        out.zero_()
        graph.replay()
    plan.submit(stream=stream).wait(WAIT)
