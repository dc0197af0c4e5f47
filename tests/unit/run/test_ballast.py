"""What an emulated job holds: spilled and back it is the same, whatever happened in between."""

from __future__ import annotations

import pytest

from rmux.errors import WorkerError
from rmux.job import EmulatedSpec
from rmux.run.driver.engines import ShedKind
from rmux.run.workers.ballast import Ballast

SPEC = EmulatedSpec(held_bytes=200_000, leak_bytes=10_000, cache_bytes=50_000)


@pytest.fixture
def make(tmp_path):
    def make(name="a", spec=SPEC, seed=1):
        ballast = Ballast(spec, seed=seed, file=tmp_path / name / "state")
        ballast.fill(steps=0)
        return ballast

    return make


def train(ballast, steps):
    for step in steps:
        ballast.use()
        ballast.step(step)
        ballast.rest()


def test_a_state_that_was_spilled_between_its_steps_ends_as_one_that_never_was(make):
    plain, spilled = make(), make("b")
    train(plain, range(1, 6))
    for step in range(1, 6):
        assert spilled.shed(ShedKind.SPILL).freed_bytes == 200_000 + (step - 1) * 10_000
        assert spilled.is_spilled
        train(spilled, [step])
    assert spilled.checksum() == plain.checksum()
    assert make("c", seed=2).checksum() != make("d").checksum()


def test_a_later_attempt_fills_it_to_where_the_first_one_was(make):
    first, later = make(), make("b")
    train(first, range(1, 4))
    later.fill(steps=3)
    assert later.checksum() == first.checksum()


def test_the_state_is_not_spilled_while_it_is_in_use_but_caches_may_go(make):
    ballast = make()
    ballast.use()
    assert ballast.shed(ShedKind.SPILL) is None
    assert ballast.shed(ShedKind.CACHES).freed_bytes == 50_000
    assert ballast.shed(ShedKind.CACHES).freed_bytes == 0
    ballast.use()
    assert ballast.shed(ShedKind.CACHES).freed_bytes == 50_000, "each wake makes them again"


def test_a_damaged_file_is_noticed(make, tmp_path):
    ballast = make()
    ballast.shed(ShedKind.SPILL)
    file = tmp_path / "a" / "state"
    file.write_bytes(b"x" + file.read_bytes()[1:])
    with pytest.raises(WorkerError, match="damaged"):
        ballast.use()


def test_a_job_that_holds_nothing_has_nothing_to_give(make):
    ballast = make(spec=EmulatedSpec())
    assert ballast.shed(ShedKind.SPILL).freed_bytes == 0
    assert not ballast.is_spilled
    assert ballast.checksum() == ""
