# SPDX-License-Identifier: Apache-2.0
# The first program with Mooncake: one process reads 1 MiB of another.
import ctypes
import multiprocessing

from mooncake.engine import TransferEngine


def owner(pipe):
    engine = TransferEngine()
    engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")
    data = bytearray(b"kv" * 524288)
    address = ctypes.addressof(ctypes.c_char.from_buffer(data))
    engine.register_memory(address, len(data))
    pipe.send((f"127.0.0.1:{engine.get_rpc_port()}", address))
    pipe.recv()


if __name__ == "__main__":
    pipe, theirs = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=owner, args=(theirs,)).start()
    engine = TransferEngine()
    engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")
    data = bytearray(1 << 20)
    address = ctypes.addressof(ctypes.c_char.from_buffer(data))
    engine.register_memory(address, len(data))
    session, remote = pipe.recv()
    status = engine.transfer_sync_read(session, address, remote, len(data))
    print(status == 0 and data == b"kv" * 524288)
    pipe.send("done")
