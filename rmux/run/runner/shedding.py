"""A runner's part in a shortage of host memory: what it asks of which driver, and what it tells."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from rmux.events import EventType
from rmux.run.host_memory import HostMemory
from rmux.run.messages import DriverOrder, DriverReport
from rmux.run.runner.memory import Resident
from rmux.run.runner.pressure import Action, Holding, Past, Policy, Reading, Step, decide, shortage
from rmux.units import format_bytes

logger = logging.getLogger(__name__)

Attempt = tuple[str, int]
_WORDS = {Step.CACHES: "caches", Step.SPILL: "spill", Step.STOP: "stop", Step.NONE: "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    what: str
    shed_n: int


class Shedding:
    """Told every measurement; knows what is asked of each job now."""

    def __init__(
        self, node: str, *, limit_bytes: int, policy: Policy, emit: Callable[..., None]
    ) -> None:
        self._node, self._limit_bytes = node, limit_bytes
        self._policy, self._emit = policy, emit
        self._past = Past()
        self._asked: dict[Attempt, _Asked] = {}
        self._spilled: dict[Attempt, bool] = {}
        self.stops: dict[Attempt, str] = {}
        """Attempts that must end, and why."""

    def is_tight(self, host: HostMemory) -> bool:
        """Whether it must be known at once who holds what: the host is short, or the node was."""
        reading = Reading(used_bytes=0, limit_bytes=self._limit_bytes, host=host)
        short = shortage(reading, self._policy).step is not Step.NONE
        return short or self._past.is_short

    def asked(self, job: str, attempt: int) -> tuple[str, int]:
        """`Permits.shed` and its number."""
        found = self._asked.get((job, attempt))
        return ("", 0) if found is None else (found.what, found.shed_n)

    def take_report(self, report: DriverReport) -> None:
        key = (report.status.job, report.status.attempt)
        self._spilled[key] = self._node in report.spilled

    def take(
        self,
        seen: Resident,
        orders: Mapping[str, DriverOrder],
        *,
        in_use: Collection[str],
        now_s: float,
    ) -> None:
        """A new measurement: ask and tell what follows from it."""
        attempts = {(order.job, order.attempt) for order in orders.values()}
        self._forget(attempts)
        holdings = [
            self._holding(order, seen.jobs.get(order.job, 0), in_use) for order in orders.values()
        ]
        reading = Reading(
            used_bytes=sum(seen.jobs.values()), limit_bytes=self._limit_bytes, host=seen.host
        )
        actions, self._past = decide(
            reading, holdings, self._past, policy=self._policy, now_s=now_s
        )
        if not self._past.is_short:
            self._asked.clear()
        for action in actions:
            self._carry_out(action, shed_n=int(now_s * 1000))

    def _holding(self, order: DriverOrder, used_bytes: int, in_use: Collection[str]) -> Holding:
        return Holding(
            job=order.job,
            attempt=order.attempt,
            used_bytes=used_bytes,
            planned_bytes=order.planned_bytes,
            slack_s=order.slack_s,
            in_use=order.job in in_use,
            spilled=self._spilled.get((order.job, order.attempt), False),
            may_spill=order.home == self._node,
        )

    def _carry_out(self, action: Action, *, shed_n: int) -> None:
        short, holding = action.short, action.holding
        data = {
            "action": _WORDS[action.step],
            "cause": short.cause,
            "used_bytes": short.used_bytes,
            "limit_bytes": short.limit_bytes,
        }
        if holding is None:
            logger.warning("short of memory, and nobody here is above its plan: %s", data)
            self._emit(EventType.MEMORY_PRESSURE, data=data)
            return
        key = (holding.job, holding.attempt)
        data |= {
            "attempt": holding.attempt,
            "job_bytes": holding.used_bytes,
            "planned_bytes": holding.planned_bytes,
            "slack_s": holding.slack_s,
        }
        logger.warning("short of memory: %s of %s: %s", data["action"], holding.job, data)
        self._emit(EventType.MEMORY_PRESSURE, job=holding.job, data=data)
        if action.step is Step.STOP:
            self.stops[key] = _why_stopped(self._node, action)
        else:
            self._asked[key] = _Asked(what=_WORDS[action.step], shed_n=shed_n)

    def _forget(self, attempts: Iterable[Attempt]) -> None:
        kept = set(attempts)
        for known in (self._asked, self._spilled, self.stops):
            for key in [key for key in known if key not in kept]:
                del known[key]


def _why_stopped(node: str, action: Action) -> str:
    short, holding = action.short, action.holding
    assert holding is not None
    where = f"node {node}" if short.cause == "node" else f"the {short.cause} of node {node}"
    return (
        f"out of host memory: it holds {format_bytes(holding.used_bytes)} on {node}, "
        f"{format_bytes(holding.excess_bytes)} above its plan of "
        f"{format_bytes(holding.planned_bytes)}, and {where} is at "
        f"{format_bytes(short.used_bytes)} of {format_bytes(short.limit_bytes)}"
    )
