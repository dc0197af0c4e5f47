"""A plan brings every byte to every target; over the slow link it goes once."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmux.errors import UserError
from rmux.sync.plan import Plan, Rank, Side, Topology, plan, predict

MIB = 2**20
topologies = st.sampled_from(list(Topology))
ranks = st.integers(1, 9)
sizes = st.integers(1, 5000)


def filled(made: Plan) -> list[bytearray]:
    """What each target holds after the steps, taken in any order that `after` allows."""
    source = bytes(1 + index % 255 for index in range(made.size_bytes))
    held = {rank: bytearray(source) for rank in made.sources}
    held.update({rank: bytearray(made.size_bytes) for rank in made.targets})
    done: set[str] = set()
    waiting = list(reversed(made.steps))
    while waiting:
        ready = [step for step in waiting if step.after is None or step.after in done]
        assert ready, "steps wait for each other"
        for step in ready:
            begin, end = step.shard.begin, step.shard.end
            held[step.receiver][begin:end] = held[step.sender][begin:end]
            done.add(step.id)
            waiting.remove(step)
    return [held[rank] for rank in made.targets] + [bytearray(source)]


@given(topology=topologies, sources=ranks, targets=ranks, size_bytes=sizes)
@example(topology=Topology.HIER, sources=3, targets=5, size_bytes=4097)
@example(topology=Topology.HIER, sources=8, targets=2, size_bytes=4096)
@example(topology=Topology.HIER, sources=1, targets=1, size_bytes=1)
def test_every_byte_arrives_at_every_target(
    topology: Topology, sources: int, targets: int, size_bytes: int
) -> None:
    *copies, source = filled(
        plan(topology, size_bytes=size_bytes, num_sources=sources, num_targets=targets)
    )
    assert all(copy == source for copy in copies)


@given(topology=topologies, sources=ranks, targets=ranks, size_bytes=sizes)
def test_no_target_is_sent_a_byte_twice(
    topology: Topology, sources: int, targets: int, size_bytes: int
) -> None:
    made = plan(topology, size_bytes=size_bytes, num_sources=sources, num_targets=targets)
    for target in made.targets:
        assert sum(step.shard.num_bytes for step in made.received_by(target)) == size_bytes
    assert len({step.id for step in made.steps}) == len(made.steps)


@given(sources=ranks, targets=ranks, size_bytes=sizes)
def test_hier_sends_one_copy_over_the_slow_link_and_flat_one_per_target(
    sources: int, targets: int, size_bytes: int
) -> None:
    both = {
        topology: plan(topology, size_bytes=size_bytes, num_sources=sources, num_targets=targets)
        for topology in Topology
    }
    assert both[Topology.HIER].link_bytes == size_bytes
    assert both[Topology.HIER].local_bytes == size_bytes * (targets - 1)
    assert both[Topology.FLAT].link_bytes == size_bytes * targets
    assert both[Topology.FLAT].local_bytes == 0


@given(sources=ranks, targets=ranks, size_bytes=st.integers(1, 10**6))
def test_the_scatter_is_balanced_over_sources_and_over_targets(
    sources: int, targets: int, size_bytes: int
) -> None:
    made = plan(
        Topology.HIER,
        size_bytes=size_bytes,
        num_sources=sources,
        num_targets=targets,
        alignment_bytes=64,
    )
    crossing = [step for step in made.steps if step.crosses_link]
    for side, count in ((Side.SOURCE, sources), (Side.TARGET, targets)):
        loads = [
            sum(
                step.shard.num_bytes
                for step in crossing
                if Rank(side, index) in (step.sender, step.receiver)
            )
            for index in range(count)
        ]
        assert max(loads) - min(loads) <= 64
    assert len(crossing) <= sources + targets - 1


def test_targets_forward_only_what_has_begun_to_arrive() -> None:
    made = plan(Topology.HIER, size_bytes=MIB, num_sources=2, num_targets=3)
    by_id = {step.id: step for step in made.steps}
    forwards = [step for step in made.steps if not step.crosses_link]
    assert forwards
    for step in forwards:
        assert step.after is not None
        assert by_id[step.after].receiver == step.sender
        assert by_id[step.after].shard == step.shard


def test_no_peer_is_everybodys_first() -> None:
    made = plan(Topology.HIER, size_bytes=MIB, num_sources=4, num_targets=4)
    first = {
        rank: next(step.receiver for step in made.sent_by(rank) if not step.crosses_link)
        for rank in made.targets
    }
    assert len(set(first.values())) == 4


def test_the_prediction_is_bytes_over_the_link_that_takes_longest() -> None:
    hier = plan(Topology.HIER, size_bytes=10**9, num_sources=2, num_targets=4)
    flat = plan(Topology.FLAT, size_bytes=10**9, num_sources=2, num_targets=4)
    assert predict(hier, link_bps=8e9).total_s == pytest.approx(1.0)
    assert predict(flat, link_bps=8e9).total_s == pytest.approx(4.0)
    slow_inside = predict(hier, link_bps=8e9, local_bps=1e9)
    assert slow_inside.binding == "local"
    assert slow_inside.local_s == slow_inside.total_s == pytest.approx(6.0, rel=1e-3)


def test_nothing_to_plan_is_refused_with_the_numbers() -> None:
    with pytest.raises(UserError, match="0 bytes from 1 to 1"):
        plan(Topology.HIER, size_bytes=0, num_sources=1, num_targets=1)
    with pytest.raises(UserError, match="from 0 to 2"):
        plan(Topology.FLAT, size_bytes=8, num_sources=0, num_targets=2)
    with pytest.raises(UserError, match="more than 0"):
        predict(plan(Topology.FLAT, size_bytes=8, num_sources=1, num_targets=1), link_bps=0)
