"""A training rank: DeepSpeed in a threaded Ray actor, one per train device.

On the CPU a park moves nothing: an idle rank holds host memory only and runs no thread. Sending
weights and writing checkpoints happen in such a parked rank on its own cores, at the priority of
whoever trains there now: the job waits for both, and its turn with it.
"""

from __future__ import annotations

import importlib.metadata
import os
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmux.errors import BackendError, ConflictError
from rmux.run.workers.affinity import pin_threads, run_niced

if TYPE_CHECKING:
    from rmux.run.workers.cache import WeightEntry
    from rmux.run.workers.train_batch import MiniBatch
    from rmux.run.workers.train_engine import TrainEngine
    from rmux.run.workers.train_terms import RankReport, RankSettings


_ENVIRON = {
    "DS_ACCELERATOR": "cpu",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "DO_NOT_TRACK": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "LOCAL_RANK": "0",
}


class TrainRank:
    """`prepare`, on the first rank `listen`, then `init` on all ranks at once; the rest after."""

    def __init__(self, settings: RankSettings) -> None:
        self._settings = settings
        self._engine: TrainEngine | None = None
        self._store: Any = None
        self._listener: socket.socket | None = None
        self._busy = threading.RLock()
        os.environ.update(_ENVIRON)
        os.environ.update(
            RANK=str(settings.rank),
            WORLD_SIZE=str(settings.ranks),
            OMP_NUM_THREADS=str(max(1, len(settings.cores))),
            GLOO_SOCKET_IFNAME=_interface_of(settings.address),
        )

    def pid(self) -> int:
        return os.getpid()

    def prepare(self) -> dict[str, str]:
        """Import the engines at low priority; returns their versions. Needs no device."""
        self._pinned()
        run_niced(_import)
        names = ("deepspeed", "torch", "transformers")
        return {name: importlib.metadata.version(name) for name in names}

    def listen(self) -> int:
        """Open the port where the ranks meet; it is bound before anybody is told its number."""
        import torch.distributed

        self._listener = socket.create_server((self._settings.address, 0))
        port = int(self._listener.getsockname()[1])
        self._store = torch.distributed.TCPStore(
            self._settings.address,
            port,
            self._settings.ranks,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=self._listener.detach(),
        )
        return port

    def init(self, port: int) -> dict[str, float]:
        """Load the model and start DeepSpeed; returns {seconds, vocabulary}. A collective."""
        import torch.distributed

        from rmux.run.workers.train_engine import TrainEngine

        begun_s = time.monotonic()
        self._pinned()
        if self._store is None:
            address = self._settings.address
            self._store = torch.distributed.TCPStore(
                address, port, self._settings.ranks, is_master=False
            )
        os.environ.update(MASTER_ADDR=self._settings.address, MASTER_PORT=str(port))
        self._engine = TrainEngine(self._settings, self._store)
        self._engine.state.prepare()
        self._pinned()
        seconds = time.monotonic() - begun_s
        return {"seconds": seconds, "vocabulary": self._engine.vocabulary}

    def step(self, batches: Sequence[MiniBatch], gap_bound: float | None) -> RankReport:
        """See `TrainEngine.train`. A collective."""
        with self._busy:
            engine = self._awake()
            engine.state.changed()
            return engine.train(batches, gap_bound=gap_bound)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability of each token after the first of each sequence."""
        with self._busy:
            return self._awake().score(sequences)

    def wake(self) -> float:
        """Seconds. On the CPU the state lies where the device reads it: only the cores are made
        sure of, unless the last park moved it."""
        begun_s = time.monotonic()
        self._pinned()
        with self._busy:
            if self._engine is not None:
                self._engine.state.copies.move_back()
        return time.monotonic() - begun_s

    def park(self) -> float:
        """Seconds, until what still ran has ended; then no thread of the rank runs.

        A collective of all ranks where each has only a part of the weights (ZeRO 3): they exchange
        what each of them will send.
        """
        begun_s = time.monotonic()
        with self._busy:
            if self._engine is not None:
                self._engine.state.prepare()
            return time.monotonic() - begun_s

    def park_moved(self) -> int:
        """`park`, then move all state to host memory of its own; returns bytes.

        Weights can be sent and checkpoints written from there; ConflictError for everything that
        needs the device, until `wake`.
        """
        with self._busy:
            self.park()
            return self._ready().state.copies.move_out()

    def manifest(self) -> tuple[WeightEntry, ...]:
        """The tensors of the weights in the order of the blob that `send` writes."""
        return self._ready().state.entries()

    def checksum(self) -> str:
        """xxh3_128 of the whole blob, on the first rank. ConflictError with ZeRO 3 before a park
        or a `send`."""
        with self._busy:
            return self._ready().state.checksum()

    def send(self, targets: Sequence[tuple[str, str]], deadline_s: float) -> int:
        """Write this rank's part of the weights to each (endpoint, transfer id); returns bytes.

        Errors as in `rmux.sync.transport.tcp.send`.
        """
        from rmux.run.workers.train_state_moved import memory_of
        from rmux.sync.transport.base import Endpoint
        from rmux.sync.transport.tcp import send

        with self._busy:
            state = self._ready().state
            state.prepare()  # of a rank that was parked, nothing: see `park`
            parts, ends_s = state.parts(), time.monotonic() + deadline_s
            sent = 0
            for text, transfer_id in targets:
                for offset, part in parts:
                    sent += send(
                        Endpoint.parse(text),
                        memory_of(part),
                        transfer_id=transfer_id,
                        offset=offset,
                        deadline_s=ends_s - time.monotonic(),
                    ).bytes
            return sent

    def save(self, folder: str) -> int:
        """Write this rank's part of the state below `folder`; returns bytes."""
        with self._busy:
            return self._ready().state.save(Path(folder))

    def restore(self, folder: str) -> None:
        """Load its part of what any number of ranks saved."""
        with self._busy:
            self._awake().state.restore(Path(folder))

    def close(self) -> None:
        with self._busy:
            if self._engine is not None:
                self._engine.close()
                self._engine = None

    def _ready(self) -> TrainEngine:
        if self._engine is None:
            raise BackendError("the training rank is not initialised", code="backend.deepspeed")
        return self._engine

    def _awake(self) -> TrainEngine:
        engine = self._ready()
        if engine.state.copies.are_out:
            raise ConflictError("the state of the training rank is on the host: wake it first")
        return engine

    def _pinned(self) -> None:
        pin_threads(self._settings.cores)


def _import() -> None:
    import deepspeed  # noqa: F401
    import safetensors.torch  # noqa: F401
    import transformers  # noqa: F401

    import rmux.run.workers.train_engine
    import rmux.sync.transport.tcp  # noqa: F401


def _interface_of(address: str) -> str:
    """Gloo would take the interface of the host's name, which other hosts may not reach."""
    import psutil

    for name, found in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in found):
            return str(name)
    raise BackendError(
        f"no network interface of this host has the address {address}", code="backend.address"
    )
