#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server in asyncio: it takes requests as notifications, and answers each by writing into the
client's memory. Clients are served side by side, in one thread.

    $ asyncio_server.py serve
    wherry://127.0.0.1:40123
    $ asyncio_server.py ask wherry://127.0.0.1:40123
"""
import asyncio
import sys

import wherry

ASK, ANSWER, QUIT = 1, 2, 3  # tags
SLOT = 4096


async def serve():
    with wherry.Engine(name="server") as engine:
        pages = engine.register(b"".join(bytes([n]) * SLOT for n in range(256)))
        peers, running = {}, set()
        print(engine.url, flush=True)

        async def answer(url, slot):
            if url not in peers:
                peers[url] = asyncio.ensure_future(engine.connect_async(url))
            peer = await peers[url]
            part = peer.find("answers")[slot * SLOT : slot * SLOT + SLOT]
            await peer.write(part, pages[slot * SLOT : slot * SLOT + SLOT], notify=ANSWER)

        async for request in engine.notifications():
            if request.tag == QUIT:
                break
            slot, url = request.data.decode().split(" ")
            task = asyncio.ensure_future(answer(url, int(slot)))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)


async def ask(url):
    with wherry.Engine(name="client") as engine:
        memory = engine.allocate(256 * SLOT)
        engine.register(memory, name="answers", access="rw")
        server = await engine.connect_async(url)
        await asyncio.gather(
            *[server.notify(ASK, f"{slot} {engine.url}".encode()) for slot in range(256)]
        )
        left = 256
        async for _ in engine.notifications():
            left -= 1
            if not left:
                break
        if bytes(memory) != b"".join(bytes([n]) * SLOT for n in range(256)):
            sys.exit("an answer is wrong")
        print("256 answers")
        await server.notify(QUIT)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        asyncio.run(serve())
    elif len(sys.argv) == 3 and sys.argv[1] == "ask":
        asyncio.run(ask(sys.argv[2]))
    else:
        sys.exit("usage: asyncio_server.py serve | ask URL")
