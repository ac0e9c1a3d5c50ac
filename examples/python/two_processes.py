#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two processes: one owns memory, the other writes into it and says so.

    $ two_processes.py receive
    wherry://127.0.0.1:40123
    $ two_processes.py send wherry://127.0.0.1:40123
"""
import sys

import wherry

LENGTH = 8 << 20
FILLED = 1  # tag: the memory has been filled


def receive():
    with wherry.Engine(name="receiver") as engine:
        memory = engine.allocate(LENGTH)  # other processes of this host can map it
        engine.register(memory, name="mailbox", access="rw")
        print(engine.url, flush=True)
        notification = engine.notification(60, tag=FILLED)
        # When the notification is here, all bytes are.
        if bytes(memory) != bytes(range(256)) * (LENGTH // 256):
            sys.exit("something else has arrived")
        print(f"from {notification.sender}: {notification.data.decode()}")


def send(url):
    with wherry.Engine(name="sender", listen="none") as engine:
        data = engine.register(bytearray(range(256)) * (LENGTH // 256))
        peer = engine.connect(url)
        with peer.write("mailbox", data, notify=(FILLED, b"8 MiB for you")) as transfer:
            pass
        print(transfer.explain(), end="")


if __name__ == "__main__":
    if sys.argv[1:] == ["receive"]:
        receive()
    elif len(sys.argv) == 3 and sys.argv[1] == "send":
        send(sys.argv[2])
    else:
        sys.exit("usage: two_processes.py receive | send URL")
