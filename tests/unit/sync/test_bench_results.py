"""Numbers a bench reports, and the bounds one may put on them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmux.errors import UserError
from rmux.sync.assertions import Assertion, speedup
from rmux.sync.bench import TopologyResult, Verification, quantile
from rmux.sync.plan import Topology


def result(topology: Topology, *times_s: float, size_bytes: int = 1000) -> TopologyResult:
    return TopologyResult(
        topology=topology,
        size_bytes=size_bytes,
        times_s=times_s,
        link_bytes=size_bytes,
        sent_bytes=2 * size_bytes,
        verification=None,
    )


FLAT = result(Topology.FLAT, 4.0, 6.0, 5.0)
HIER = result(Topology.HIER, 1.0, 2.0, 9.0)


def test_quantiles_lie_between_the_nearest_values() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([1.0, 2.0], 0.95) == pytest.approx(1.95)
    assert quantile([7.0], 0.95) == 7.0
    with pytest.raises(UserError):
        quantile([], 0.5)


@given(st.lists(st.floats(0.001, 1e6), min_size=1), st.floats(0, 1))
def test_a_quantile_is_within_the_values(values: list[float], fraction: float) -> None:
    assert min(values) <= quantile(values, fraction) <= max(values) * (1 + 1e-12)


def test_goodput_is_one_copy_over_the_median_and_slow_runs_are_counted() -> None:
    assert HIER.p50_s == 2.0
    assert HIER.goodput_bytes_per_s == 500.0
    assert HIER.outliers == 1
    assert FLAT.outliers == 0
    assert speedup([FLAT, HIER]) == 2.5
    assert speedup([HIER]) is None


def test_nothing_checked_is_not_ok() -> None:
    assert Verification(checked=2, mismatched=0).ok
    assert not Verification(checked=2, mismatched=1).ok
    assert not Verification(checked=0, mismatched=0).ok


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("hier.p50_s<2.1", True),
        ("hier.p50_s<2", False),
        ("hier.p50_s <= 2", True),
        ("p50_s<3", False),
        ("p50_s<6", True),
        ("flat.min_s>=4e0", True),
        ("hier.max_s>9", False),
        ("cross_link_bytes<=1000", True),
        ("hier.goodput_bytes_per_s>499", True),
        ("speedup>2.4", True),
        ("speedup>2.6", False),
    ],
)
def test_an_assertion_without_a_topology_is_about_all(text: str, holds: bool) -> None:
    assertion = Assertion.parse(text)
    assertion.needs(list(Topology))
    assert assertion.holds([FLAT, HIER]) is holds


@pytest.mark.parametrize("text", ["", "p95_s", "p95_s<", "p95_s<1.2.3", "p96_s<1", "ring.p95_s<1"])
def test_what_is_no_assertion_is_refused_when_it_is_read(text: str) -> None:
    with pytest.raises(UserError):
        Assertion.parse(text)


def test_an_assertion_about_what_is_not_measured_is_refused() -> None:
    with pytest.raises(UserError, match="needs flat"):
        Assertion.parse("speedup>1").needs([Topology.HIER])
    with pytest.raises(UserError, match="needs flat"):
        Assertion.parse("flat.p50_s<1").needs([Topology.HIER])
    Assertion.parse("p50_s<1").needs([Topology.HIER])
