# SPDX-License-Identifier: Apache-2.0
"""A worker of vLLM with its true NixlConnector, in a process that a test tells what to do (agent.py).

The connector, its scheduler's half with the handshake's listener, and the configuration are vLLM's
own, from its wheel. Two things stand in for a server: the platform is named as vLLM's CPU platform,
which a wheel for CUDA does not choose by itself, and the KV cache is a tensor without a model. vLLM
is imported where the process runs, not in the test.
"""

import hashlib
import json
import os
import socket
import time

from agent import LIMIT, Side

LAYERS = 4
HEADS = 4
HEAD_SIZE = 64
TOKENS = 32  # in a block; vLLM's attention on CPUs wants a multiple of 32
BLOCK = TOKENS * HEADS * 2 * HEAD_SIZE * 2  # bytes of a layer's block: K and V, of bfloat16


def model(folder):
    """A model's description; it has no weights."""
    path = os.path.join(folder, "model")
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
        json.dump(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": HEADS * HEAD_SIZE,
                "intermediate_size": 2 * HEADS * HEAD_SIZE,
                "num_hidden_layers": LAYERS,
                "num_attention_heads": HEADS,
                "num_key_value_heads": HEADS,
                "head_dim": HEAD_SIZE,
                "vocab_size": 1000,
                "max_position_embeddings": 4096,
                "torch_dtype": "bfloat16",
            },
            file,
        )
    return path


class Worker:
    """Runs in the process."""

    def __init__(self, folder, role, blocks, backends):
        import vllm.platforms
        from vllm.platforms.cpu import CpuPlatform

        vllm.platforms._current_platform = CpuPlatform()
        import torch
        from vllm import config
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
        from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector

        cache = config.CacheConfig(block_size=TOKENS)
        cache.kv_cache_layout = "LBHNC"  # what NixlConnector asks for
        self.config = config.VllmConfig(
            model_config=config.ModelConfig(
                model=model(folder), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=1024
            ),
            cache_config=cache,
            scheduler_config=config.SchedulerConfig(max_model_len=1024, is_encoder_decoder=False),
            kv_transfer_config=config.KVTransferConfig(
                kv_connector="NixlConnector",
                kv_role=role,
                kv_buffer_device="cpu",
                kv_connector_extra_config={"backends": backends},
            ),
            parallel_config=config.ParallelConfig(),
            device_config=config.DeviceConfig("cpu"),
        )
        self.join_group(config, folder, role)
        layout = self.layout(torch, blocks)
        self.worker = NixlConnector(self.config, KVConnectorRole.WORKER, layout)
        self.scheduler = NixlConnector(self.config, KVConnectorRole.SCHEDULER, layout)
        self.cache = torch.zeros((LAYERS, blocks, HEADS, TOKENS, 2 * HEAD_SIZE), dtype=torch.bfloat16)
        self.worker.register_kv_caches(dict(zip(self.names(), self.cache)))
        self.bytes = self.cache.view(torch.uint8).numpy().reshape(LAYERS, blocks, BLOCK)
        handshake = self.worker.get_handshake_metadata()
        self.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): handshake})
        self.sent, self.received, self.failed = set(), set(), set()

    def join_group(self, config, folder, role):
        """A world of one process: vLLM asks it for this worker's rank."""
        from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment

        place = os.path.join(folder, f"group-{role}-{os.getpid()}")
        with config.set_current_vllm_config(self.config):
            init_distributed_environment(1, 0, "file://" + place, 0, backend="gloo")
            ensure_model_parallel_initialized(1, 1)

    def names(self):
        return [f"model.layers.{i}.self_attn.attn" for i in range(LAYERS)]

    def layout(self, torch, blocks):
        from vllm.v1 import kv_cache_interface as kv

        attention = kv.FullAttentionSpec(
            block_size=TOKENS, num_kv_heads=HEADS, head_size=HEAD_SIZE, dtype=torch.bfloat16
        )
        assert attention.page_size_bytes == BLOCK
        return kv.KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[
                kv.KVCacheTensor(
                    size=LAYERS * blocks * BLOCK,
                    layers=self.names(),
                    layer_stride=blocks * BLOCK,
                    block_stride=BLOCK,
                )
            ],
            kv_cache_groups=[kv.KVCacheGroupSpec(self.names(), attention)],
        )

    # ---- the test's

    def address(self):
        """As the prefill's answer carries it to the decoder."""
        scheduler = self.scheduler.connector_scheduler
        return {
            "remote_engine_id": scheduler.engine_id,
            "remote_host": scheduler.side_channel_host,
            "remote_port": scheduler.side_channel_port,
            "tp_size": 1,
        }

    def fill(self, seed):
        import numpy

        self.bytes[:] = numpy.random.default_rng(seed).integers(
            0, 256, self.bytes.shape, dtype=numpy.uint8
        )

    def digests(self, blocks):
        """Of each block, all layers."""
        return [hashlib.sha256(self.bytes[:, block].tobytes()).hexdigest() for block in blocks]

    def step(self, metadata):
        """As a step of vLLM's model runner does."""
        metadata.scheduler_clock = time.perf_counter()
        self.worker.bind_connector_metadata(metadata)
        self.worker.start_load_kv(None)
        self.worker.clear_connector_metadata()
        self.poll()

    def poll(self):
        sent, received = self.worker.get_finished(set())
        self.sent |= sent
        self.received |= received
        self.failed |= self.worker.get_block_ids_with_load_errors()

    def metadata(self):
        from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata

        return NixlConnectorMetadata()

    def prefilled(self, requests, lease=60):
        """Requests whose blocks are kept until a decoder has read them, or for `lease` seconds."""
        metadata = self.metadata()
        metadata.reqs_in_batch = set(requests)
        metadata.reqs_to_send = {one: time.perf_counter() + lease for one in requests}
        self.step(metadata)

    def load(self, peer, requests):
        """`requests`: (name, blocks here, blocks of the peer)."""
        metadata = self.metadata()
        for name, here, there in requests:
            parameters = {**peer, "remote_block_ids": (there,), "remote_request_id": name}
            metadata.add_new_req_to_recv(name, (here,), parameters, awaiting_kvs=True)
        self.step(metadata)

    def until(self, what, names):
        """Step until all the requests are among those that were "sent" or "received". Returns the
        blocks that could not be loaded."""
        ends = time.monotonic() + LIMIT
        while not set(names) <= getattr(self, what):
            if time.monotonic() > ends:
                raise TimeoutError(f"{names}: sent {self.sent}, received {self.received}")
            self.step(self.metadata())
            time.sleep(0.001)
        getattr(self, what).difference_update(names)
        failed, self.failed = self.failed, set()
        return sorted(failed)

    def statistics(self):
        return self.worker.get_kv_connector_stats().data

    def unregister(self):
        """As a server does that goes to sleep, and again when it awakes."""
        self.worker.unregister_kv_caches()
        self.worker.restore_kv_caches()
        self.scheduler.set_xfer_handshake_metadata_pp_aware(
            {(0, 0): self.worker.get_handshake_metadata()}
        )

    def close(self):
        self.worker.shutdown()
        self.scheduler.shutdown()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server(Side):
    """A process with a worker. It takes its time to start: wait() when all have been begun."""

    def __init__(self, folder, role, blocks, backends=("WHERRY",)):
        environment = {
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_LOGGING_LEVEL": "INFO",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        self.begin(folder, environment, Worker, (folder, role, blocks, list(backends)))
        self.send("open")

    def wait(self):
        """Importing vLLM takes up to a minute beside load."""
        if not self.pipe.poll(5 * LIMIT):
            raise TimeoutError(self.said())
        self.receive()
        return self
