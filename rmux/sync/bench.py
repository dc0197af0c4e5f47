"""Times weight syncs between real processes over loopback, topologies side by side in one run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rmux.errors import UnavailableError, UserError
from rmux.sync.plan import Rank, Side, Topology
from rmux.sync.rank_processes import RankProcesses
from rmux.sync.transport.base import CHUNK_BYTES
from rmux.units import format_bytes

_ADDRESS = "127.0.0.1"
_START_S = 60.0
_BYTES_PER_S = 2e8
"""The slowest start of a rank: making its bytes from the seed."""

_GRACE_S = 10.0
"""A rank reports its own deadline; this is how much longer its parent waits for the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """`deadline_s` bounds one run. UserError for a count below 1."""

    num_sources: int
    num_targets: int
    size_bytes: int
    topologies: tuple[Topology, ...] = (Topology.FLAT, Topology.HIER)
    runs: int = 5
    warmup: int = 1
    seed: int = 7
    verify: bool = False
    streams: int = 1
    chunk_bytes: int = CHUNK_BYTES
    deadline_s: float = 60.0

    def __post_init__(self) -> None:
        counts = {
            "source ranks": self.num_sources,
            "target ranks": self.num_targets,
            "bytes": self.size_bytes,
            "topologies": len(self.topologies),
            "runs": self.runs,
            "streams": self.streams,
            "bytes per chunk": self.chunk_bytes,
        }
        for what, count in counts.items():
            if count < 1:
                raise UserError(f"a bench needs at least 1 of {what}, got {count}")
        if self.warmup < 0:
            raise UserError(f"a bench cannot have {self.warmup} warm-up runs")

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """Targets first: they listen before anything is sent."""
        return tuple(
            Rank(side, index)
            for side, count in ((Side.TARGET, self.num_targets), (Side.SOURCE, self.num_sources))
            for index in range(count)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Whole blobs compared, one per target and run, warm-up included; and those that differed."""

    checked: int
    mismatched: int

    @property
    def ok(self) -> bool:
        return self.checked > 0 and self.mismatched == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyResult:
    """One topology: seconds of each counted run, bytes of one run."""

    topology: Topology
    size_bytes: int
    times_s: tuple[float, ...]
    link_bytes: int
    sent_bytes: int
    verification: Verification | None

    @property
    def p50_s(self) -> float:
        return quantile(self.times_s, 0.5)

    @property
    def p95_s(self) -> float:
        return quantile(self.times_s, 0.95)

    @property
    def goodput_bytes_per_s(self) -> float:
        """One copy of the weights over the median time."""
        return self.size_bytes / self.p50_s

    @property
    def outliers(self) -> int:
        """Runs that took more than 1.5 times the median."""
        return sum(time_s > 1.5 * self.p50_s for time_s in self.times_s)


def run_bench(
    config: BenchConfig, *, say: Callable[[str], None] = lambda _: None
) -> tuple[TopologyResult, ...]:
    """Starts the ranks, times `runs` syncs per topology, stops the ranks.

    UnavailableError when host memory is too small, BackendError when a rank fails or dies,
    DeadlineError when a run is not done in time.
    """
    _check_memory(config)
    runs = itertools.product(range(-config.warmup, config.runs), config.topologies)
    measured: dict[Topology, list[_Run]] = {topology: [] for topology in config.topologies}
    with RankProcesses(config.ranks) as ranks:
        say(f"{len(config.ranks)} ranks, {format_bytes(config.size_bytes)} each")
        endpoints = _open(config, ranks)
        for number, topology in runs:
            done = _sync(config, ranks, topology, endpoints, sync_id=f"{topology}/{number}")
            say(f"{topology} {'warm-up' if number < 0 else number + 1}: {done.time_s:.4g} s")
            measured[topology].append(done)
    return tuple(_result(config, topology, done) for topology, done in measured.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    time_s: float
    link_bytes: int
    sent_bytes: int
    mismatched: int


def _open(config: BenchConfig, ranks: RankProcesses) -> list[str]:
    answers = ranks.ask(
        {
            rank: {
                "do": "open",
                "side": rank.side,
                "index": rank.index,
                "size_bytes": config.size_bytes,
                "seed": config.seed,
                "address": _ADDRESS,
            }
            for rank in config.ranks
        },
        deadline_s=_START_S + config.size_bytes * config.num_sources / _BYTES_PER_S,
    )
    targets = [rank for rank in config.ranks if rank.side is Side.TARGET]
    return [answers[rank]["endpoint"] for rank in targets]


def _sync(
    config: BenchConfig,
    ranks: RankProcesses,
    topology: Topology,
    endpoints: list[str],
    *,
    sync_id: str,
) -> _Run:
    """One sync into cleared targets; from the first source's start to the last rank's end."""
    targets = [rank for rank in config.ranks if rank.side is Side.TARGET]
    patience_s = config.deadline_s + _GRACE_S
    ranks.ask({rank: {"do": "clear"} for rank in targets}, deadline_s=patience_s)
    command: dict[str, Any] = {
        "do": "run",
        "topology": topology,
        "sync_id": sync_id,
        "num_sources": config.num_sources,
        "num_targets": config.num_targets,
        "endpoints": endpoints,
        "streams": config.streams,
        "chunk_bytes": config.chunk_bytes,
        "deadline_s": config.deadline_s,
    }
    answers = ranks.ask(dict.fromkeys(config.ranks, command), deadline_s=patience_s)
    begun_s = min(answers[rank]["begun_s"] for rank in answers if rank.side is Side.SOURCE)
    return _Run(
        time_s=max(answer["ended_s"] for answer in answers.values()) - begun_s,
        link_bytes=sum(answer["link_bytes"] for answer in answers.values()),
        sent_bytes=sum(answer["sent_bytes"] for answer in answers.values()),
        mismatched=mismatched(config, ranks) if config.verify else 0,
    )


def mismatched(config: BenchConfig, ranks: RankProcesses) -> int:
    """Targets whose bytes are not those of the first source."""
    answers = ranks.ask(
        {rank: {"do": "checksum"} for rank in config.ranks},
        deadline_s=config.deadline_s + _GRACE_S,
    )
    wanted = answers[Rank(Side.SOURCE, 0)]["checksum"]
    return sum(
        answer["checksum"] != wanted for rank, answer in answers.items() if rank.side is Side.TARGET
    )


def _result(config: BenchConfig, topology: Topology, done: Sequence[_Run]) -> TopologyResult:
    verification = None
    if config.verify:
        verification = Verification(
            checked=len(done) * config.num_targets, mismatched=sum(run.mismatched for run in done)
        )
    counted = done[config.warmup :]
    return TopologyResult(
        topology=topology,
        size_bytes=config.size_bytes,
        times_s=tuple(run.time_s for run in counted),
        link_bytes=max(run.link_bytes for run in counted),
        sent_bytes=max(run.sent_bytes for run in counted),
        verification=verification,
    )


def _check_memory(config: BenchConfig) -> None:
    import psutil

    need_bytes = config.size_bytes * len(config.ranks)
    free_bytes = psutil.virtual_memory().available
    if need_bytes > free_bytes:
        raise UnavailableError(
            f"{len(config.ranks)} ranks of {format_bytes(config.size_bytes)} need "
            f"{format_bytes(need_bytes)} of memory, {format_bytes(free_bytes)} are free",
            code="host.memory",
            hint="a smaller --size, or fewer --ranks",
        )


def quantile(values: Sequence[float], fraction: float) -> float:
    """Between the two nearest values, in proportion; UserError for no values."""
    if not values:
        raise UserError("a quantile needs at least one value")
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
