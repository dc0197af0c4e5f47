"""Remaining lengths from a job's own history."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmux.place.lengths import Survival


def test_finished_lengths_give_the_empirical_distribution():
    history = Survival.of([10, 20, 20, 40], limit_tokens=100)
    assert [history.at(tokens) for tokens in (9, 10, 19, 20, 40)] == [1.0, 0.75, 0.75, 0.25, 0.0]
    assert history.left(10, 5) == 1.0
    assert history.left(10, 10) == pytest.approx(1 / 3)


def test_stopped_responses_count_as_at_risk_until_they_were_stopped():
    """Kaplan and Meier by hand: of 4 one ends at 10, one is stopped at 15, of the 2 left one ends
    at 20."""
    history = Survival.of([10, 20], stopped=[15, 30], limit_tokens=100)
    assert history.at(10) == pytest.approx(3 / 4)
    assert history.at(20) == pytest.approx(3 / 4 * 1 / 2)
    assert history.at(99) == pytest.approx(3 / 8)
    assert history.at(100) == 0.0


def test_lengths_at_the_limit_end_there():
    history = Survival.of([10, 100, 130], limit_tokens=100)
    assert history.at(99) == pytest.approx(2 / 3)
    assert history.mean_left(50) == pytest.approx(50)


def test_without_a_history_every_response_goes_to_the_limit():
    assert Survival.of([], limit_tokens=100).mean_left(30) == 70
    assert Survival.of([10, 20], limit_tokens=100).mean_left(30) == 70
    assert Survival.of([], limit_tokens=100).longest_left([30, 90]) == 70


def test_the_mean_rest_is_that_of_the_longer_lengths():
    history = Survival.of([10, 20, 30, 50], limit_tokens=100)
    assert history.mean_left(15) == pytest.approx((5 + 15 + 35) / 3)


def test_the_longest_of_several_lasts_longer_than_one_and_no_longer_than_the_limit():
    history = Survival.of(range(1, 200), limit_tokens=150)
    means = [history.longest_left([20] * count) for count in (1, 4, 30, 1000)]
    assert means == sorted(means)
    assert means[-1] == pytest.approx(130, abs=2)
    rng = random.Random(1)
    drawn = [max(min(rng.randint(21, 199), 150) for _ in range(4)) - 20 for _ in range(4000)]
    assert means[1] == pytest.approx(sum(drawn) / len(drawn), rel=0.03)


@given(
    ended=st.lists(st.integers(1, 120), max_size=30),
    stopped=st.lists(st.integers(1, 120), max_size=10),
    so_far=st.integers(0, 99),
)
def test_what_is_left_falls_from_one_to_zero(ended, stopped, so_far):
    history = Survival.of(ended, stopped=stopped, limit_tokens=100)
    left = [history.left(so_far, more) for more in range(101 - so_far)]
    assert left[0] == 1.0
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0.0
    assert 0.0 <= history.mean_left(so_far) <= 100 - so_far
