# SPDX-License-Identifier: Apache-2.0
"""Cases of lifetimes, and between two processes."""

import gc
import subprocess
import sys
import threading
import time

from python_torch.setup import (
    BACK,
    END,
    KIB,
    MIB,
    READY,
    SCRIPT,
    WAIT,
    Memory,
    case,
    expected,
    need,
    say,
)

# ---- lifetimes


def held(s, seed):
    """A region of the peer, its length, a registered tensor, its region, and a transfer of it that
    has not begun or goes on."""
    memory = s.memory
    name, length = s.name(), 64 * MIB if s.cuda else 16 * MIB
    s.owner.ask("make", name, "own", length, 0)
    tensor = memory.filled(length, seed)
    region = s.engine.register(tensor)
    stream = None
    if s.cuda:
        stream = s.torch.cuda.Stream()
        with s.torch.cuda.stream(stream):
            memory.sleep(0.3)
    transfer = s.peer.write(name, region, stream=stream, require=s.between)
    return name, length, tensor, region, transfer


@case
def tensor_deleted(s):
    name, length, tensor, region, transfer = held(s, 12)
    del tensor, region
    gc.collect()
    if s.cuda:
        s.torch.cuda.empty_cache()
    other = [s.memory.new(length).fill_(99) for _ in range(2)]
    transfer.wait(WAIT)
    say(transfer.explain())
    need(
        s.owner.ask("same", name, length, 12), "the bytes of the tensor that nobody names any more"
    )
    del other


@case
def transfer_deleted(s):
    """Nobody waits for it: it goes on."""
    name, length, tensor, region, transfer = held(s, 13)
    del tensor, region, transfer
    gc.collect()
    ends = time.monotonic() + WAIT
    while not s.owner.ask("same", name, length, 13):
        need(time.monotonic() < ends, "it arrives")


@case
def cancelled(s):
    name, length, tensor, region, transfer = held(s, 14)
    transfer.cancel()
    need(transfer.done(), "it has ended")
    late = transfer.exception() is None
    need(late or isinstance(transfer.exception(), s.wherry.Cancelled), f"{transfer.exception()!r}")
    tensor.fill_(99)  # may be used again
    s.memory.settle()
    region.unregister()
    s.peer.write(name, s.engine.register(s.memory.filled(length, 15)), require=s.between).wait(WAIT)
    need(s.owner.ask("same", name, length, 15), "the next transfer is as ever")
    say("it had completed" if late else "it was cancelled in time")


@case
def exception(s):
    name, length, tensor, region, transfer = held(s, 16)
    try:
        with transfer:
            raise KeyError("of the program")
    except KeyError:
        pass
    need(transfer.done(), "the exception has cancelled it")
    tensor.fill_(99)
    region.unregister()
    s.peer.write(name, s.engine.register(s.memory.filled(length, 17)), require=s.between).wait(WAIT)
    need(s.owner.ask("same", name, length, 17), "the next transfer is as ever")


@case
def interpreter_exit(s):
    """Status 0, and no message of a crash, whatever is under way."""
    name = s.name()
    s.owner.ask("make", name, "own", 64 * MIB, 0)
    for how in ("end", "exit", "thread"):
        command = [sys.executable, "-W", "ignore", SCRIPT, "--device", s.device]
        command += ["--allocator", s.memory.allocator, "--leave", how, s.owner.url, name]
        done = subprocess.run(
            command, text=True, capture_output=True, check=False, timeout=2 * WAIT
        )
        said = done.stdout + done.stderr
        need(done.returncode == 0, f"{how}: status {done.returncode}\n{said}")
        need("under way" in done.stdout, f"{how}: {said}")
        bad = [
            word
            for word in ("Traceback", "Exception", "rror", "terminate", "Fatal")
            if word in done.stderr
        ]
        need(not bad, f"{how}: {said}")
    need(
        s.peer.read(s.peer.find(name)[:8], into=s.engine.register(bytearray(8))).wait(WAIT).done(),
        "the owner goes on",
    )


def leave(device, allocator, how, url, name):
    """The process of interpreter_exit()."""
    import wherry

    memory = Memory(device, allocator)
    engine = wherry.Engine()
    peer = engine.connect(url)
    tensor = memory.new(64 * MIB)
    region = engine.register(tensor)
    stream = None
    if memory.cuda:
        stream = memory.torch.cuda.Stream()
    plan = peer.prepare_read(name, into=region)
    if memory.cuda:
        with memory.torch.cuda.stream(stream):
            memory.sleep(1)
    transfers = [plan.submit(stream=stream) for _ in range(8)]
    print("under way", transfers[-1].done(), flush=True)
    if how == "exit":
        sys.exit(0)
    if how == "thread":
        threading.Thread(target=transfers[0].exception, daemon=True).start()
        transfers[1].add_done_callback(lambda transfer: None)
    return 0


# ---- between two processes


@case
def pairs(s):
    """Every pair of memories of two processes, both ways."""
    memory, length = s.memory, 16 * MIB
    for kind in ("own", "pinned"):
        name = s.name()
        s.owner.ask("make", name, kind, length, 18)
        for ours in (memory.new(length), memory.pinned(length), bytearray(length)):
            # Pinned memory of torch is not shared: the other process has to copy it.
            require = s.between if kind == "own" else None
            region = s.engine.register(ours)
            where = (
                "bytearray"
                if isinstance(ours, bytearray)
                else f"{ours.device}, pinned {ours.is_pinned()}"
            )
            transfer = s.peer.read(name, into=region, require=require).wait(WAIT)
            tensor = (
                s.torch.frombuffer(ours, dtype=s.torch.uint8)
                if isinstance(ours, bytearray)
                else ours
            )
            need(memory.same(tensor, memory.payload(length, 18)), f"from {kind} to {where}")
            tensor.copy_(memory.payload(length, 19))
            memory.settle()
            s.peer.write(name, region, require=require).wait(WAIT)
            need(s.owner.ask("same", name, length, 19), f"from {where} to {kind}")
            tensor.copy_(memory.payload(length, 18))
            memory.settle()
            s.peer.write(name, region).wait(WAIT)
            say(f"theirs {kind}, ours {where}: {transfer.explain()}")
            del tensor


@case
def pages(s):
    """16,384 blocks of 4 KiB between two processes."""
    torch, memory, length = s.torch, s.memory, 64 * MIB
    name = s.name()
    s.owner.ask("make", name, "own", length, 20)
    target = memory.new(length)
    region = s.engine.register(target)
    theirs, ours = torch.randperm(16384), torch.randperm(16384)
    plan = s.peer.prepare_read(name, into=region, blocks=(theirs, ours, 4 * KIB), require=s.between)
    plan.submit().wait(WAIT)
    source = memory.payload(length, 20)
    wanted = torch.zeros_like(source)
    wanted.view(16384, -1)[ours] = source.view(16384, -1)[theirs]
    need(memory.same(target, wanted), "all pages are where they belong")
    taken = []
    for _ in range(30):
        began = time.perf_counter()
        plan.submit().wait(WAIT)
        taken.append(time.perf_counter() - began)
    taken.sort()
    s.figures["pages_4KiB_GBps"] = round(length / taken[len(taken) // 2] / 1e9, 2)
    say(plan.explain())
    say(f"16,384 x 4 KiB: {s.figures['pages_4KiB_GBps']} GB/s")


@case
def decoder(s):
    """Round after round, pages come in while matrices are multiplied, are compared on the GPU, and
    go back."""
    torch, memory = s.torch, s.memory
    length = (64 if s.cuda else 8) * MIB
    for name in ("kv", "back"):
        s.owner.ask("make", name, "own", length, 1)
    base = memory.payload(length, 1).to(s.device)
    mine = memory.new(length)
    region = s.engine.register(mine)
    steps = []
    for number, (layers, page, dtype) in enumerate(
        (
            (1, 4 * KIB, torch.int32),
            (4, 16 * KIB, torch.int64),
            (1, 64 * KIB, torch.int64),
            (2, 8 * KIB, torch.int32),
        )
    ):
        count = length // layers // page
        generator = torch.Generator().manual_seed(number)
        theirs = torch.randperm(count, generator=generator)[: count * 3 // 5]
        ours = torch.randperm(count, generator=generator)[: count * 3 // 5]
        plans = [
            s.peer.prepare_read(
                "kv",
                into=region,
                blocks=(theirs[part].to(dtype), ours[part].to(dtype), page),
                layers=layers,
                require=s.between,
            )
            for part in (slice(0, None, 2), slice(1, None, 2))
        ]
        steps.append(((layers, count, page), theirs, ours, plans))
        say(f"{layers} x {len(ours)} x {page} B: {plans[0]!r}")
    shapes = [step[:3] for step in steps]
    s.owner.start("loop", s.engine.url, length, shapes)
    give = s.peer.prepare_write("back", region, require=s.between)
    stream = torch.cuda.Stream() if s.cuda else None
    busy = torch.cuda.Stream() if s.cuda else None
    matrix = torch.randn(4096, 4096, device=s.device, dtype=torch.bfloat16) if s.cuda else None
    multiplied, last = 0, None
    rounds = cancels = 0
    began = time.monotonic()
    while True:
        s.engine.notification(WAIT, tag=READY)
        if time.monotonic() - began > s.seconds:
            break
        shape, theirs, ours, plans = steps[rounds % len(steps)]
        if s.cuda and (last is None or last.query()):
            with torch.cuda.stream(busy):
                for _ in range(20):
                    torch.mm(matrix, matrix)
                multiplied += 20
                last = torch.cuda.Event()
                last.record()
        if rounds % 16 == 5:  # one that is cancelled before
            cancels += 1
            plans[0].submit(stream=stream).cancel()
        if s.cuda:
            with torch.cuda.stream(stream):
                mine.zero_()
                transfers = [plan.submit(stream=stream) for plan in plans]
                for transfer in transfers:
                    transfer.make_stream_wait(stream)
                # Nothing has waited on the CPU so far.
                wanted = expected(
                    memory, base, shape, theirs.to(s.device), ours.to(s.device), rounds
                )
                need(torch.equal(mine, wanted), f"every byte of round {rounds} is right")
        else:
            mine.zero_()
            transfers = [plan.submit() for plan in plans]
            for transfer in transfers:
                transfer.wait(WAIT)
            need(
                torch.equal(mine, expected(memory, base, *shapes[rounds % len(steps)], rounds)),
                f"round {rounds}",
            )
        for transfer in transfers:
            transfer.wait(WAIT)
        give.submit(stream=stream, notify=BACK).wait(WAIT)
        rounds += 1
    taken = time.monotonic() - began
    s.peer.notify(END).wait(WAIT)
    theirs_rounds, wrong = s.owner.answer(WAIT)
    need(
        theirs_rounds == rounds and not wrong,
        f"the other side saw {theirs_rounds} rounds, {wrong} of them wrong",
    )
    need(rounds > 0, "a round")
    say(steps[0][3][0].explain())
    compared = 2 * length * rounds
    say(
        f"{rounds} rounds in {taken:.1f} s, {compared / 1e9:.1f} GB compared, {cancels} cancelled, "
        f"{multiplied} products"
    )
    s.figures["decoder"] = {
        "seconds": round(taken, 1),
        "rounds": rounds,
        "compared_bytes": compared,
        "cancelled": cancels,
        "products": multiplied,
    }
