"""Bounds on a bench's results, as written after --assert: 'hier.p95_s<3', 'speedup>=1.5'."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rmux.errors import UserError
from rmux.sync.bench import TopologyResult
from rmux.sync.plan import Topology

_EXPRESSION = re.compile(
    r"(?:(?P<topology>[a-z]+)\.)?(?P<metric>[a-z0-9_]+)\s*(?P<sign><=|>=|<|>)\s*"
    r"(?P<bound>[0-9.]+(?:[eE][+-]?[0-9]+)?)"
)
_SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_METRICS: Mapping[str, Callable[[TopologyResult], float]] = {
    "p50_s": lambda result: result.p50_s,
    "p95_s": lambda result: result.p95_s,
    "min_s": lambda result: min(result.times_s),
    "max_s": lambda result: max(result.times_s),
    "cross_link_bytes": lambda result: float(result.link_bytes),
    "goodput_bytes_per_s": lambda result: result.goodput_bytes_per_s,
}
SPEEDUP = "speedup"
"""Median of flat over median of hier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assertion:
    text: str
    topology: Topology | None
    """None means every topology that was measured."""
    metric: str
    sign: str
    bound: float

    @staticmethod
    def parse(text: str) -> Assertion:
        """UserError that names the metrics when `text` is none."""
        match = _EXPRESSION.fullmatch(text.strip())
        if match is None or match["metric"] not in (*_METRICS, SPEEDUP):
            raise UserError(
                f"{text!r} is not an assertion",
                hint=f"such as 'hier.p95_s<3'; metrics: {', '.join((*_METRICS, SPEEDUP))}",
            )
        name = match["topology"]
        if name is not None and name not in list(Topology):
            raise UserError(f"{name!r} in {text!r} is not a topology", hint="flat or hier")
        try:
            bound = float(match["bound"])
        except ValueError:
            raise UserError(f"{match['bound']!r} in {text!r} is not a number") from None
        return Assertion(
            text=text,
            topology=None if name is None else Topology(name),
            metric=match["metric"],
            sign=match["sign"],
            bound=bound,
        )

    def needs(self, topologies: Sequence[Topology]) -> None:
        """UserError when the bench does not measure what this is about."""
        wanted = list(Topology) if self.metric == SPEEDUP else [self.topology or topologies[0]]
        missing = [str(topology) for topology in wanted if topology not in topologies]
        if missing:
            raise UserError(
                f"{self.text!r} needs {' and '.join(missing)}, which is not measured",
                hint=f"--topology {','.join(Topology)}",
            )

    def holds(self, results: Sequence[TopologyResult]) -> bool:
        return all(_SIGNS[self.sign](value, self.bound) for value in self._values(results))

    def _values(self, results: Sequence[TopologyResult]) -> list[float]:
        if self.metric == SPEEDUP:
            value = speedup(results)
            return [] if value is None else [value]
        return [
            _METRICS[self.metric](result)
            for result in results
            if self.topology in (None, result.topology)
        ]


def speedup(results: Sequence[TopologyResult]) -> float | None:
    """How many times faster hier is than flat, by medians; None unless both were measured."""
    medians = {result.topology: result.p50_s for result in results}
    if len(medians) < 2:
        return None
    return medians[Topology.FLAT] / medians[Topology.HIER]
