"""A runner's own events: numbered, and kept until the controller has stored them."""

from __future__ import annotations

from typing import Any

from rmux.clock import Clock
from rmux.events import EventType, PhaseEvent, to_document
from rmux.ids import GroupId, JobId, NodeId
from rmux.job import Phase


class Outbox:
    def __init__(self, *, source: str, group: str, node: str, clock: Clock) -> None:
        self.source = source
        self._group, self._node, self._clock = GroupId(group), NodeId(node), clock
        self._number = 0
        self._events: list[dict[str, Any]] = []

    def emit(
        self,
        kind: EventType,
        *,
        data: dict[str, Any],
        job: str | None = None,
        device: str | None = None,
        iteration: int | None = None,
        phase: str = "",
    ) -> None:
        self._number += 1
        event = PhaseEvent(
            type=kind,
            at=self._clock.utc_now(),
            at_s=self._clock.now_s(),
            source=self.source,
            source_n=self._number,
            group_id=self._group,
            job_id=None if job is None else JobId(job),
            iteration=iteration,
            phase=Phase(phase) if phase else None,
            node=self._node,
            device=device,
            data=data,
        )
        self._events.append(to_document(event))

    def drop(self, *, stored_n: int) -> None:
        """Forget what is in the store."""
        self._events = [event for event in self._events if event["source_n"] > stored_n]

    @property
    def events(self) -> tuple[dict[str, Any], ...]:
        return tuple(self._events)
