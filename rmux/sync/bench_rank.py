"""One rank of a bench: `python -m rmux.sync.bench_rank`, commands on stdin, answers on stdout.

Both are JSON, a line each. It ends when its parent or its stdin does, in the middle of a transfer
too: a parent that is killed leaves no rank behind.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import random
import signal
import sys
import threading
from typing import Any

from rmux.errors import InternalError, RmuxError
from rmux.sync.execute import run_rank
from rmux.sync.plan import Rank, Side, Topology, plan
from rmux.sync.transport.base import Endpoint
from rmux.sync.transport.checksum import checksum
from rmux.sync.transport.tcp import Receiver, TcpTransport

_SEED_BYTES = 2**24
_ORPHANED = 3
_PR_SET_PDEATHSIG = 1


class BenchRank:
    def __init__(self) -> None:
        self._rank = Rank(Side.SOURCE, 0)
        self._blob = bytearray()
        self._inbox: Receiver | None = None
        self._is_clear = True

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["do"] == "open":
            return self._open(command)
        if command["do"] == "clear":
            self._blob[:] = bytes(len(self._blob))
            self._is_clear = True
            return {}
        if command["do"] == "run":
            return self._run(command)
        if command["do"] == "checksum":
            return {"checksum": checksum(self._blob)}
        raise InternalError(f"unknown command {command['do']!r}")

    def _open(self, command: dict[str, Any]) -> dict[str, Any]:
        """A source makes the weights from the seed; a target makes room and listens."""
        self._rank = Rank(Side(command["side"]), command["index"])
        if self._rank.side is Side.SOURCE:
            self._blob = seeded(command["size_bytes"], seed=command["seed"])
            return {}
        self._blob = bytearray(command["size_bytes"])
        self._inbox = Receiver(command["address"])
        return {"endpoint": self._inbox.endpoint().text}

    def _run(self, command: dict[str, Any]) -> dict[str, Any]:
        """InternalError for a target that still holds the bytes of the last run."""
        if self._inbox is not None and not self._is_clear:
            raise InternalError("the target was not cleared, so its bytes prove nothing")
        self._is_clear = False
        made = plan(
            Topology(command["topology"]),
            size_bytes=len(self._blob),
            num_sources=command["num_sources"],
            num_targets=command["num_targets"],
        )
        endpoints = {
            Rank(Side.TARGET, index): Endpoint.parse(text)
            for index, text in enumerate(command["endpoints"])
        }
        with memoryview(self._blob) as blob:
            report = run_rank(
                made,
                self._rank,
                blob,
                sync_id=command["sync_id"],
                transport=TcpTransport(),
                inbox=self._inbox,
                endpoints=endpoints,
                deadline_s=command["deadline_s"],
                streams=command["streams"],
                chunk_bytes=command["chunk_bytes"],
            )
        return {
            "begun_s": report.begun_s,
            "ended_s": report.ended_s,
            "link_bytes": report.link_bytes,
            "sent_bytes": report.sent_bytes,
        }


def seeded(size_bytes: int, *, seed: int) -> bytearray:
    """The same incompressible bytes for the same seed, in every process."""
    source = random.Random(seed)
    blob = bytearray()
    while len(blob) < size_bytes:
        blob += source.randbytes(min(_SEED_BYTES, size_bytes - len(blob)))
    return blob


def _read_commands(commands: queue.Queue[dict[str, Any]]) -> None:
    try:
        for line in sys.stdin:
            commands.put(json.loads(line))
    finally:
        # Half a command is the last of a parent that died as well. Other threads may be blocked in
        # a transfer, so nothing less ends the process.
        os._exit(_ORPHANED)


def _die_with_parent() -> None:
    """Be killed with the parent, whoever else holds this process's stdin open by then."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def main() -> None:
    _die_with_parent()
    commands: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
    rank = BenchRank()
    while True:
        try:
            answer = rank.answer(commands.get())
        except RmuxError as error:
            answer = {"error": error.message, "code": error.code}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
