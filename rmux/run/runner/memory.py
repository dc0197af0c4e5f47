"""Host memory of everything rmux runs on a node, measured now and then behind the loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from rmux.run.processes import tagged

_EVERY_S = 30.0  # the kernel walks every page of every process for it


@dataclass(frozen=True, slots=True)
class Resident:
    resident_bytes: int


def resident_bytes(tag: str) -> int:
    """PSS of all own processes that carry the tag: pages shared by several are counted once."""
    import psutil

    total = 0
    for process in tagged(tag):
        try:
            total += psutil.Process(process.pid).memory_full_info().pss
        except psutil.Error:
            continue
    return total


def watch_memory(tag: str, *, post: Callable[[Resident], None]) -> None:
    """Post the sum every few seconds, from a thread of its own."""

    def loop() -> None:
        pause = threading.Event()
        while not pause.wait(_EVERY_S):
            post(Resident(resident_bytes(tag)))

    threading.Thread(target=loop, name="memory", daemon=True).start()
