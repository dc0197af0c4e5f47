"""What a job that has waited long keeps from the smaller ones behind it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from rmux.cluster import Policy
from rmux.group import ClusterState, PendingJob
from rmux.place import queue
from rmux.place.admit import admit

AGEING_S = 600.0


def decide(state: ClusterState, one: PendingJob):
    return admit(state, spec=one.spec, profile=one.profile, job_id=one.job.id)


def aged(state: ClusterState, ageing_s: float = AGEING_S) -> ClusterState:
    return replace(state, cluster=replace(state.cluster, policy=Policy(ageing_s=ageing_s)))


def alone(lab, name: str, number: int):
    """A group of one job that nobody fits beside."""
    member = lab.member(name, 10, 10, (f"r{number}",), (f"t{number}",), slo=1.0)
    return lab.group(member, name=f"g-{number}")


def crowded(lab, *, free: int = 1, groups: int = 3, ageing_s: float = AGEING_S) -> ClusterState:
    """Groups on a node of each pool, some nodes free, and a job that needs three of each."""
    made = [alone(lab, f"x{number}", number) for number in range(groups)]
    state = lab.state(*made, cluster=lab.cluster(groups + free, groups + free))
    big = lab.spec("big", slo=1.0, rollout=3, train=3)
    small = lab.spec("small", slo=1.0)
    waiting = lab.waiting(state, (big, lab.profile(11, 11)), (small, lab.profile(11, 11)))
    return aged(waiting, ageing_s)


def old_enough(state: ClusterState):
    return state.pending[0].job.created_at + timedelta(seconds=AGEING_S)


def test_a_job_that_waited_a_step_keeps_free_nodes_and_closes_enough_groups(lab):
    state = crowded(lab)
    kept = queue.reservation(state, state.pending[0], now=old_enough(state))
    assert kept.nodes == ("r3", "t3")
    assert kept.groups == ("g-0", "g-1")
    assert kept.missing == (
        "2 more devices of rollout pool rollout",
        "2 more devices of train pool train",
    )


def test_the_smaller_job_behind_does_not_take_a_kept_node(lab):
    state = crowded(lab)
    big, small = state.pending
    assert decide(state, small).admitted
    kept = queue.reservation(state, big, now=old_enough(state))
    assert not decide(queue.held_back(state, kept), small).admitted
    reason = queue.reserved(kept)
    assert reason.code == "reserved"
    for part in ("big (j-big)", "10m", "2 more devices of rollout pool rollout"):
        assert part in reason.message


def test_the_smaller_job_goes_on_where_there_are_nodes_to_spare(lab):
    """Three rollout nodes and three train nodes are wanted; train nodes are what is short."""
    state = crowded(lab, free=2, groups=2)
    cluster = lab.cluster(7, 4)
    state = aged(replace(state, cluster=cluster))
    big, small = state.pending
    kept = queue.reservation(state, big, now=old_enough(state))
    assert kept.nodes == ("r2", "r3", "r4", "t2", "t3")
    assert kept.groups == ("g-0",)
    behind = queue.held_back(state, kept)
    assert not decide(behind, small).admitted
    with_train = aged(replace(state, cluster=lab.cluster(7, 4)))
    more = replace(with_train, groups=with_train.groups[:1])
    assert queue.reservation(more, big, now=old_enough(state)) is None


def test_nothing_joins_a_closed_group_and_other_groups_stay_open(lab):
    state = crowded(lab)
    open_to_all = [
        lab.group(
            lab.member(f"y{n}", 10, 10, (f"r{n}",), (f"t{n}",), slo=9.0),
            lab.member(f"z{n}", 10, 10, (f"r{n}",), (f"t{n}",), slo=9.0),
            name=f"g-{n}",
        )
        if n == 0
        else lab.group(lab.member(f"y{n}", 10, 10, (f"r{n}",), (f"t{n}",), slo=9.0), name=f"g-{n}")
        for n in range(3)
    ]
    state = replace(state, groups=tuple(open_to_all))
    joiner = lab.waiting(state, (lab.spec("joiner", slo=9.0), lab.profile(10, 10))).pending[0]
    kept = queue.reservation(state, state.pending[0], now=old_enough(state))
    assert kept.groups == ("g-1", "g-2")
    assert decide(state, joiner).assignment.group_id == "g-1"
    assert decide(queue.held_back(state, kept), joiner).assignment.group_id == "g-0"


def test_the_start_is_reached_however_many_small_jobs_come(lab):
    """Each step one group ends; a small job comes at every step and would take its nodes."""
    state = crowded(lab)
    big, small = state.pending
    moment = old_enough(state)
    for _ in range(3):
        if decide(state, big).admitted:
            break
        kept = queue.reservation(state, big, now=moment)
        assert not decide(queue.held_back(state, kept), small).admitted
        state = replace(
            state, groups=tuple(group for group in state.groups if group.id != kept.groups[0])
        )
    assert decide(state, big).admitted


def test_without_ageing_nothing_is_kept(lab):
    state = crowded(lab, ageing_s=0.0)
    later = old_enough(state) + timedelta(days=100)
    assert queue.reservation(state, state.pending[0], now=later) is None


def test_a_young_job_keeps_nothing(lab):
    state = crowded(lab)
    early = old_enough(state) - timedelta(seconds=1)
    assert queue.reservation(state, state.pending[0], now=early) is None


@pytest.mark.parametrize("drained", [("r0", "r1"), ("t0", "t1")])
def test_a_job_that_waits_for_drained_nodes_keeps_nothing_from_others(lab, drained):
    state = crowded(lab)
    cluster = replace(lab.cluster(4, 4, drained=drained), policy=state.cluster.policy)
    state = replace(state, cluster=cluster)
    assert queue.reservation(state, state.pending[0], now=old_enough(state)) is None


def test_a_job_that_has_nodes_enough_keeps_none(lab):
    """It waits for something else, such as its quota."""
    state = crowded(lab, free=3)
    assert queue.reservation(state, state.pending[0], now=old_enough(state)) is None


def test_room_to_grow_is_kept_too(lab):
    """Rollout nodes could be made, train nodes cannot."""
    state = crowded(lab)
    rollout, train = state.cluster.pools
    grows = replace(rollout, max_nodes=7)
    state = replace(state, cluster=replace(state.cluster, pools=(grows, train)))
    kept = queue.reservation(state, state.pending[0], now=old_enough(state))
    assert kept.growth == {"rollout": 2}
    assert kept.missing == ("2 more devices of train pool train",)
    assert queue.held_back(state, kept).cluster.pools[0].max_nodes == 5
