# SPDX-License-Identifier: Apache-2.0
# The first program with NIXL: one process reads 1 MiB of another.
import multiprocessing

import torch
from nixl._api import nixl_agent, nixl_agent_config


def owner(pipe):
    agent = nixl_agent("owner", nixl_agent_config(backends=["UCX"]))
    data = torch.full((1 << 20,), 7, dtype=torch.uint8)
    agent.register_memory(data)
    pipe.send((agent.get_agent_metadata(), agent.get_serialized_descs(agent.get_xfer_descs(data))))
    pipe.recv()


if __name__ == "__main__":
    pipe, theirs = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=owner, args=(theirs,)).start()
    agent = nixl_agent("reader", nixl_agent_config(backends=["UCX"]))
    data = torch.zeros(1 << 20, dtype=torch.uint8)
    agent.register_memory(data)
    metadata, descs = pipe.recv()
    name = agent.add_remote_agent(metadata)
    remote, local = agent.deserialize_descs(descs), agent.get_xfer_descs(data)
    transfer = agent.initialize_xfer("READ", local, remote, name)
    state = agent.transfer(transfer)
    while state == "PROC":
        state = agent.check_xfer_state(transfer)
    agent.release_xfer_handle(transfer)
    print(state == "DONE" and bool((data == 7).all()))
    pipe.send("done")
