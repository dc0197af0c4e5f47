"""A driver's answer to a node short of host memory: what its job gives up, and when.

A runner's order stands until it is withdrawn; it is carried out once. State is spilled only while
nothing is about to read it: between the end of one iteration's sync and the next train phase.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from rmux.clock import Clock, SystemClock
from rmux.events import EventType
from rmux.ids import NodeId
from rmux.run import host_memory
from rmux.run.driver.engines import Engines, ShedKind, ShedReport
from rmux.run.driver.link import Link
from rmux.run.messages import Permits, Shed

log = logging.getLogger(__name__)

_AGAIN_S = 0.02


class Shedder:
    """Carries out orders in a thread of its own, one at a time. `may_spill` tells whether nothing
    needs the parked state soon."""

    def __init__(
        self,
        link: Link,
        engines: Engines,
        *,
        may_spill: Callable[[], bool],
        clock: Clock | None = None,
    ) -> None:
        self._link, self._engines, self._may_spill = link, engines, may_spill
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._orders: dict[str, tuple[str, int]] = {}
        """Gate to what its runner wants given up, and the number of that order."""
        self._done: dict[str, Shed] = {}
        """Gate to what came of the last order carried out."""
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="shed", daemon=True)

    def start(self) -> None:
        self._link.shed = lambda: (tuple(self._done.values()), self._engines.spilled())
        self._link.on_permits = self._take
        self._thread.start()

    def close(self) -> None:
        """No order is begun any more; one that is under way is waited for."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=10.0)

    def _take(self, gate: str, permits: Permits) -> None:
        with self._changed:
            if permits.shed:
                self._orders[gate] = (permits.shed, permits.shed_n)
            else:
                self._orders.pop(gate, None)
            self._changed.notify_all()

    def _due(self) -> list[tuple[str, str, int]]:
        return [
            (gate, what, shed_n)
            for gate, (what, shed_n) in self._orders.items()
            if gate not in self._done or self._done[gate].shed_n != shed_n
        ]

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or bool(self._due()))
                if self._closed:
                    return
                due = self._due()
            done = [self._carry_out(*order) for order in due]
            if not any(done):
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, _AGAIN_S)

    def _carry_out(self, gate: str, what: str, shed_n: int) -> bool:
        """Whether that order is over; it stands while what it asks for is in use."""
        begun_s = self._clock.now_s()
        report, error = self._shed(what, gate)
        if report is None and not error:
            return False
        freed_bytes = 0 if report is None else report.freed_bytes
        seconds = self._clock.now_s() - begun_s
        log.info("gave up %s on %s: %d bytes in %.3f s %s", what, gate, freed_bytes, seconds, error)
        with self._changed:
            self._done[gate] = Shed(
                node=gate, shed_n=shed_n, what=what, freed_bytes=freed_bytes, error=error
            )
        data = {"what": what, "freed_bytes": freed_bytes, "seconds": seconds, "error": error}
        self._link.emit(EventType.MEMORY_SHED, node=gate, data=data)
        return True

    def _shed(self, what: str, gate: str) -> tuple[ShedReport | None, str]:
        """The report, None while it is in use; and what went wrong."""
        if what not in tuple(ShedKind):
            return None, f"this driver does not know how to give up {what!r}"
        if what == ShedKind.SPILL and not self._may_spill():
            return None, ""
        try:
            report = self._engines.shed(ShedKind(what), node=NodeId(gate))
        except Exception as error:  # the thread's top: what fails is told, and the job goes on
            log.exception("could not give up %s on %s", what, gate)
            return None, str(error) or type(error).__name__
        host_memory.trim_heap()
        return report, ""
