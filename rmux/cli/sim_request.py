"""What a `rmux sim` command line asks for: a trace, jobs drawn from it, and hardware."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar

from rmux import units
from rmux.errors import UserError

if TYPE_CHECKING:
    from rmux.place.sim.segments import PhaseSetting
    from rmux.place.sim.study import Study
    from rmux.place.sim.trace import Trace

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The options as they were written."""

    trace: str
    columns: str
    source: str
    window: str
    sort: bool
    workload: str
    slo: str
    seed: int
    gpus: str
    pools: str | None
    prices: str | None
    host_memory: str | None
    durations: str
    max_members: int
    margin: float
    payback: str
    no_opt: bool
    mode: str
    dispatch: str
    jitter: float
    drift: str
    mtbf: str | None

    @staticmethod
    def of(params: Mapping[str, Any]) -> Request:
        """From the options of a command that has these, by their names."""
        return Request(**{field.name: params[field.name] for field in fields(Request)})

    def phases(self, *, events: bool) -> PhaseSetting | None:
        """How phases are simulated; None under --mode placement. UserError."""
        from rmux.place.sim.dispatch import Dispatch
        from rmux.place.sim.segments import Drifts, PhaseSetting

        if _one_of("--mode", self.mode, ("placement", "phases")) == "placement":
            given = {
                "--dispatch": self.dispatch != "strict",
                "--jitter": bool(self.jitter),
                "--drift": self.drift != "none",
                "--mtbf": self.mtbf is not None,
                "--events": events,
            }
            for option in (name for name, is_given in given.items() if is_given):
                raise UserError(f"{option} needs --mode phases")
            return None
        return PhaseSetting(
            jitter=self.jitter,
            drift=Drifts(_one_of("--drift", self.drift, tuple(Drifts))),
            mtbf_s=0.0 if self.mtbf is None else units.parse_duration_s(self.mtbf),
            dispatch=Dispatch(_one_of("--dispatch", self.dispatch, tuple(Dispatch))),
            events=events,
        )

    def load(self) -> Trace:
        """The trace, from a file or from stdin. UserError, NotFoundError."""
        from rmux.place.sim import trace

        if self.trace == "-":
            return trace.read(
                BytesIO(sys.stdin.buffer.read()),
                name="stdin",
                columns=self.columns,
                source=self.source,
                window=self.window,
                sort=self.sort,
            )
        return trace.load(
            self.trace,
            columns=self.columns,
            source=self.source,
            window=self.window,
            sort=self.sort,
        )

    def study(self, *, events: bool = False) -> Study:
        """UserError names the option that cannot be used."""
        from rmux.place.sim.replay import Durations
        from rmux.place.sim.study import Study
        from rmux.place.sim.workload import Drawing, Mix
        from rmux.place.sim.world import (
            ROLLOUT_USD_PER_GPU_H,
            ROOMY_BYTES,
            TRAIN_USD_PER_GPU_H,
            World,
        )

        low, high = _pair("--slo", self.slo, float, "1:2")
        rollout_nodes, train_nodes = (
            (None, None) if self.pools is None else _pair("--pools", self.pools, _count, "4:2")
        )
        rollout_usd, train_usd = (
            (ROLLOUT_USD_PER_GPU_H, TRAIN_USD_PER_GPU_H)
            if self.prices is None
            else _pair("--prices", self.prices, _price, "1.85:5.28")
        )
        return Study(
            drawing=Drawing(
                mix=Mix(_one_of("--workload", self.workload, tuple(Mix))),
                slo=(low, high),
                seed=self.seed,
                gpus_of_trace=_one_of("--gpus", self.gpus, ("8", "trace")) == "trace",
                with_memory=self.host_memory is not None,
            ),
            world=World(
                rollout_nodes=rollout_nodes,
                train_nodes=train_nodes,
                rollout_usd_per_gpu_h=rollout_usd,
                train_usd_per_gpu_h=train_usd,
                host_memory_bytes=ROOMY_BYTES
                if self.host_memory is None
                else units.parse_size_bytes(self.host_memory),
            ),
            durations=Durations(_one_of("--durations", self.durations, tuple(Durations))),
            max_members=self.max_members,
            margin=self.margin,
            payback_s=units.parse_duration_s(self.payback),
            phases=self.phases(events=events),
            with_bounds=not self.no_opt,
        )


def _pair(option: str, text: str, read: Callable[[str], T], example: str) -> tuple[T, T]:
    """'LO:HI', or one value for both."""
    first, colon, second = text.partition(":")
    try:
        return read(first), read(second if colon else first)
    except ValueError as error:
        raise UserError(
            f"{option}: {text!r} cannot be read", hint=f"write it such as {option} {example}"
        ) from error


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 100_000:
        raise ValueError
    return value


def _price(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise ValueError
    return value


def _one_of(option: str, text: str, values: Sequence[str]) -> str:
    if text not in values:
        raise UserError(f"{option}: {text!r} is not one of {', '.join(values)}")
    return text
