"""The cheapest division of jobs into groups, against every division there is."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from rmux.cluster import DeviceId
from rmux.errors import InternalError
from rmux.ids import JobId, NodeId
from rmux.place.nodes_needed import Item, fewest_nodes, on_fewest_nodes
from rmux.place.packing import Columns, Prices, pack, partition, shared_limit_s
from rmux.place.period import CLOSE, Loop, period_of

PRICES = Prices(rollout_usd_per_h=14.8, train_usd_per_h=42.24)
TRAIN = frozenset({DeviceId(NodeId("t"), 0)})


def item(name, rollout_s, train_s, *, slo=2.0, nodes=1, train_nodes=1, **more):
    off_s = more.get("off_device_s", 0.0)
    solo_s = rollout_s + train_s + off_s
    return Item(
        job_id=JobId(name),
        rollout_s=rollout_s,
        train_s=train_s,
        solo_s=solo_s,
        cap_s=slo * solo_s,
        rollout_nodes=nodes,
        train_nodes=train_nodes,
        **more,
    )


def drawn(rng, count, **more):
    return [
        item(
            f"j{number}",
            rng.randrange(20, 400),
            rng.randrange(20, 300),
            slo=rng.uniform(1, 2),
            **more,
        )
        for number in range(count)
    ]


def divisions(items):
    """Every way to divide a list."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for division in divisions(rest):
        yield [[first], *division]
        for at, part in enumerate(division):
            yield [*division[:at], [first, *part], *division[at + 1 :]]


def group_usd_per_h(members, *, max_members=5):
    """By trying every node of every job, with the period of the best order; None: not feasible."""
    if len(members) > max_members or len({m.train_nodes for m in members}) > 1:
        return None
    limit_s = min(m.cap_s for m in members) * CLOSE
    most = sum(m.rollout_nodes for m in members)
    for count in range(max(m.rollout_nodes for m in members), most + 1):
        choices = [itertools.combinations(range(count), m.rollout_nodes) for m in members]
        for nodes in itertools.product(*map(list, choices)):
            loops = [m.loop(where) for m, where in zip(members, nodes, strict=True)]
            if period_of(loops).period_s <= limit_s:
                return (
                    count * PRICES.rollout_usd_per_h
                    + members[0].train_nodes * PRICES.train_usd_per_h
                )
    return None


def cheapest_usd_per_h(items, **options):
    best = float("inf")
    known = {}
    for division in divisions(items):
        total = 0.0
        for part in division:
            key = tuple(m.job_id for m in part)
            if key not in known:
                known[key] = group_usd_per_h(part, **options)
            cost = known[key]
            total += float("inf") if cost is None else cost
        best = min(best, total)
    return best


@pytest.mark.parametrize("seed", range(12))
def test_no_division_of_one_node_jobs_is_cheaper(seed):
    rng = random.Random(seed)
    items = drawn(rng, rng.randrange(3, 7))
    found = pack(items, PRICES)
    assert found.proven
    assert found.usd_per_h == pytest.approx(cheapest_usd_per_h(items))
    assert found.lp_usd_per_h <= found.usd_per_h + 1e-6
    assert sorted(job for column in found.columns for job in column.jobs) == sorted(
        one.job_id for one in items
    )


@pytest.mark.parametrize("seed", range(6))
def test_no_division_of_jobs_of_unequal_size_is_cheaper(seed):
    rng = random.Random(100 + seed)
    items = [
        item(
            f"j{number}",
            rng.randrange(20, 300),
            rng.randrange(20, 200),
            slo=rng.uniform(1, 2),
            nodes=rng.choice((1, 1, 2)),
            train_nodes=rng.choice((1, 1, 1, 2)),
        )
        for number in range(4)
    ]
    assert pack(items, PRICES).usd_per_h == pytest.approx(cheapest_usd_per_h(items))


def test_groups_hold_no_more_than_they_may():
    items = [item(f"j{number}", 10, 10, slo=20) for number in range(6)]
    found = pack(items, PRICES, max_members=2)
    assert [len(column.jobs) for column in found.columns] == [2, 2, 2]


def test_a_margin_costs_groups():
    pair = [item("a", 100, 100, slo=1.05), item("b", 100, 100, slo=1.05)]
    assert len(pack(pair, PRICES).columns) == 1
    assert len(pack(pair, PRICES, margin=0.1).columns) == 2


def test_host_memory_limits_who_shares_a_train_node():
    pair = [item("a", 100, 100, train_bytes=600), item("b", 100, 100, train_bytes=600)]
    roomy = Prices(rollout_usd_per_h=1, train_usd_per_h=4, host_memory_bytes=1200)
    tight = Prices(rollout_usd_per_h=1, train_usd_per_h=4, host_memory_bytes=1199)
    assert len(pack(pair, roomy).columns) == 1
    assert len(pack(pair, tight).columns) == 2


def test_host_memory_of_rollout_nodes_asks_for_another_node():
    pair = [item("a", 50, 100, rollout_bytes=600), item("b", 50, 100, rollout_bytes=600)]
    assert fewest_nodes(pair, 300, memory_bytes=1200) == 1
    assert fewest_nodes(pair, 300, memory_bytes=1199) == 2


def test_pinned_members_stay_and_the_others_come_to_them():
    members = [item("a", 100, 10), item("b", 100, 10), item("c", 90, 10)]
    found = on_fewest_nodes(members, 200, pinned={JobId("a"): (0,), JobId("b"): (3,)})
    assert found == {"a": (0,), "b": (3,), "c": (0,)}


def test_node_sets_that_overlap_in_part_pay_their_true_period():
    """The L-shape: loads allow 40 s, the period is 48 s."""
    members = [item("a", 20, 20), item("b", 19, 18), item("c", 19, 1, nodes=2)]
    assert fewest_nodes(members, 47.9) == 3
    assert fewest_nodes(members, 48) == 2


def test_much_time_off_the_devices_pays_its_true_period():
    members = [item("a", 1, 1), item("b", 2, 2), item("c", 1, 1, off_device_s=2)]
    assert fewest_nodes(members, 4.4) == 2
    assert fewest_nodes(members, 4.5) == 1


def test_columns_that_come_and_go_are_those_of_the_jobs_that_stay():
    rng = random.Random(5)
    columns = Columns(PRICES)
    standing = {}
    for number in range(60):
        if len(standing) > 7 or (standing and rng.random() < 0.3):
            gone = rng.choice(sorted(standing))
            columns.remove(gone)
            del standing[gone]
        else:
            one = item(f"n{number}", rng.randrange(20, 400), rng.randrange(20, 300), slo=1.5)
            columns.add(one)
            standing[one.job_id] = one
        if standing and number % 6 == 0:
            fresh = pack(standing.values(), PRICES)
            found = columns.solve()
            assert found.usd_per_h == pytest.approx(fresh.usd_per_h)
            assert found.lp_usd_per_h == pytest.approx(fresh.lp_usd_per_h)


def test_a_job_is_packed_once():
    columns = Columns(PRICES)
    columns.add(item("a", 1, 1))
    with pytest.raises(InternalError, match="packed already"):
        columns.add(item("a", 1, 1))


def test_the_bound_by_volume_is_below_the_cheapest_division():
    rng = random.Random(7)
    for _ in range(20):
        columns = Columns(PRICES)
        for one in drawn(rng, 6):
            columns.add(one)
        assert 0 < columns.volume_usd_per_h() <= columns.solve().usd_per_h + 1e-6


def test_more_groups_than_can_be_listed_leave_a_bound_and_say_so():
    columns = Columns(PRICES, most=20)
    items = [item(f"j{number}", 10, 10, slo=9) for number in range(8)]
    for one in items:
        columns.add(one)
    found = columns.solve()
    assert not found.proven
    assert found.usd_per_h == float("inf")
    assert 0 < found.lp_usd_per_h <= pack(items[:3], PRICES).usd_per_h * 3
    for one in items[3:]:
        columns.remove(one.job_id)
    assert columns.solve().proven


def test_a_job_takes_the_degree_of_others_where_its_batches_can_be_dealt_to_it():
    small = item("small", 50, 100, slo=3)
    wide = replace(item("wide", 50, 50, slo=3, train_nodes=2), batches=(32, 16))
    fixed = replace(wide, batches=(32, 32))
    together, apart = Columns(PRICES, degrees=(1, 2)), Columns(PRICES, degrees=(1, 2))
    for columns, other in ((together, wide), (apart, fixed)):
        columns.add(small)
        columns.add(other)
    (column,) = together.solve().columns
    assert (column.jobs, column.train_nodes) == (("small", "wide"), 1)
    assert [column.train_nodes for column in apart.solve().columns] == [1]
    with_two = Columns(PRICES, degrees=(1, 2))
    with_two.add(wide)
    assert [column.train_nodes for column in with_two.solve().columns] == [2]


def test_fewer_ranks_take_longer_and_hold_more():
    wide = replace(item("wide", 50, 60, train_nodes=2, train_bytes=100), batches=(32, 16))
    narrow = wide.on_degree(1)
    assert (narrow.train_s, narrow.solo_s, narrow.train_bytes) == (120, 170, 200)
    assert narrow.cap_s == wide.cap_s
    assert narrow.on_degree(2).train_s == 120


def test_a_label_is_chosen_once():
    sets = [("a",), ("b",), ("a",), ("b",)]
    free = partition(sets, [1.0, 1.0, 5.0, 5.0])
    held = partition(sets, [1.0, 1.0, 5.0, 5.0], at_most_once=["x", "x", None, None])
    assert (free.cost, held.cost) == (2.0, 6.0)


def test_solving_prints_nothing(capfd):
    pack(drawn(random.Random(1), 6), PRICES)
    assert capfd.readouterr() == ("", "")


def test_the_margin_is_taken_from_shared_groups_only():
    one = item("a", 50, 50, slo=2)
    assert shared_limit_s([one], margin=0.25) == 200
    assert shared_limit_s([one, one], margin=0.25) == 160


def test_an_item_names_its_loop_on_nodes():
    loop = item("a", 5, 6, off_device_s=1).loop((0, 2))
    assert isinstance(loop, Loop)
    assert (len(loop.rollout), loop.train, loop.solo_s) == (2, TRAIN, 12)
