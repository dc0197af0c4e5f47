"""The best packing: never dearer than what has to stay where it is, and all promises kept."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmux.errors import InfeasibleError
from rmux.ids import JobId
from rmux.job import JobSpec, RolloutSpec, TrainSpec
from rmux.place import packing
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.policies.catalogue import Setting, make
from rmux.place.sim.policies.optimal import Optimal, moved
from rmux.place.sim.replay import SLACK, replay
from rmux.place.sim.workload import profile_of
from rmux.place.sim.world import World


def job(name, times, *, arrival_s=0.0, slo=2.0, rollout=1, train=1, duration_s=3600.0):
    return SimJob(
        id=JobId(name),
        arrival_s=arrival_s,
        duration_s=duration_s,
        spec=JobSpec(
            name=name,
            slo=slo,
            rollout=RolloutSpec(devices=rollout),
            train=TrainSpec(devices=train),
        ),
        profile=profile_of(*times),
    )


def rates(name, jobs, **setting):
    """USD/h by time."""
    world, found = World(), {}
    policy = make(name, Setting(world=world, **setting))

    def watch(point):
        found[point.at_s] = point.usd_per_h

    replay(jobs, policy, world=world, watch=watch)
    return found


@st.composite
def traces(draw):
    phase_s = st.floats(20, 400)
    return [
        job(
            f"j{index}",
            (draw(phase_s), draw(phase_s)),
            arrival_s=300.0 * index,
            slo=draw(st.floats(1, 2)),
            rollout=draw(st.sampled_from([1, 1, 2])),
            duration_s=draw(st.sampled_from([1000.0, 2500.0, 9000.0])),
        )
        for index in range(draw(st.integers(1, 8)))
    ]


@settings(max_examples=30, deadline=None)
@given(jobs=traces(), max_members=st.sampled_from([2, 5]))
def test_the_best_packing_costs_at_most_rmux_and_rmux_at_most_solo_at_every_event(
    jobs, max_members
):
    best, solo = (rates(name, jobs, max_members=max_members) for name in ("optimal", "solo"))
    for name in ("rollmux", "rollmux-static", "rollmux-paper"):
        found = rates(name, jobs, max_members=max_members)
        assert set(best) == set(found) == set(solo)
        for at_s, usd_per_h in found.items():
            assert best[at_s] <= usd_per_h * SLACK + 1e-9
            assert usd_per_h <= solo[at_s] * SLACK + 1e-9


def test_jobs_are_packed_anew_when_one_leaves():
    short = job("short", (100.0, 100.0), duration_s=1000.0, slo=1.0)
    first = job("first", (100.0, 100.0), duration_s=9000.0, slo=1.0)
    late = job("late", (95.0, 95.0), arrival_s=10.0, duration_s=9000.0, slo=1.1)
    later = rates("optimal", [short, first, late])
    assert later[10.0] == pytest.approx(2 * 57.04)
    assert later[1000.0] == pytest.approx(57.04)


def test_groups_are_no_larger_than_allowed():
    jobs = [job(f"j{index}", (30.0, 20.0)) for index in range(4)]
    assert rates("optimal", jobs, max_members=2)[0.0] == pytest.approx(2 * 57.04)
    assert rates("optimal", jobs, max_members=4)[0.0] == pytest.approx(57.04 + 14.80)


def test_pools_of_fixed_size_are_refused():
    with pytest.raises(InfeasibleError, match="pools that grow"):
        make("optimal", Setting(world=World(rollout_nodes=3, train_nodes=3)))


def test_more_groups_than_are_listed_is_an_error():
    policy = Optimal(World(), max_members=0, most_columns=100)
    # Any of them may share: 2^8 groups.
    jobs = [job(f"j{index}", (1.0, 1.0), slo=1000.0) for index in range(8)]
    with pytest.raises(InfeasibleError, match="best packing of 8 jobs"):
        policy.step(0.0, arrived=jobs, departed=())


def test_a_job_that_changes_its_group_pays_a_cold_start_where_moves_are_priced():
    short = job("short", (100.0, 100.0), duration_s=1000.0, slo=1.0)
    first = job("first", (100.0, 100.0), duration_s=9000.0, slo=1.0)
    late = job("late", (95.0, 95.0), arrival_s=10.0, duration_s=9000.0, slo=1.1)
    done = {}
    for name in ("optimal", "optimal-priced"):
        done[name] = replay([short, first, late], make(name, Setting(world=World())), world=World())
    priced, free = done["optimal-priced"], done["optimal"]
    assert (free.moves, free.lost_s, priced.moves) == (0, 0, 1)
    assert priced.lost_s == pytest.approx(60.4 + 59.0)
    assert priced.cost_usd == pytest.approx(free.cost_usd + 119.4 / 3600 * 57.04)


def test_jobs_stay_where_no_other_division_is_cheaper():
    # Any two of the four may pair: what stays after the fifth leaves is as cheap as any.
    pairs = [job(f"j{index}", (100.0, 100.0), slo=1.0, duration_s=9000.0) for index in range(4)]
    brief = job("brief", (50.0, 50.0), slo=1.0, duration_s=100.0, arrival_s=5.0)
    policy = make("optimal-priced", Setting(world=World(), max_members=2))
    assert replay([*pairs, brief], policy, world=World()).moves == 0


def column(*jobs):
    return packing.Column(jobs, 1, 1, 57.04, True)


def test_the_nodes_of_a_group_go_to_the_one_with_most_of_its_jobs():
    old = [column("a", "b", "c"), column("d")]
    assert moved(old, [column("a", "b", "d"), column("c")]) == {"c", "d"}
    assert moved(old, [column("a"), column("b", "c"), column("d", "new")]) == {"a", "new"}
    assert moved(old, old) == set()


def test_pairs_are_matched_exactly():
    """Against every matching: eight jobs of which any two may share at their own price."""
    names = [f"j{index}" for index in range(8)]
    rng = np.random.default_rng(3)
    pair_usd = {pair: float(rng.uniform(40, 100)) for pair in combinations(names, 2)}
    sets = [(name,) for name in names] + list(pair_usd)
    found = packing.partition(sets, [57.0] * 8 + list(pair_usd.values()))

    def cheapest(left):
        if not left:
            return 0.0
        first, *rest = left
        return (
            min(
                57.0 + cheapest(rest),
                *(
                    pair_usd[first, one] + cheapest([other for other in rest if other != one])
                    for one in rest
                ),
            )
            if rest
            else 57.0
        )

    assert found.cost == pytest.approx(cheapest(names))
    assert found.bound <= found.cost + 1e-9
