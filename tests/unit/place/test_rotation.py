"""Strict cyclic order: who gets which device next."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmux.cluster import DeviceId
from rmux.estimate import JobProfile, PhaseEstimate, ProfileSource
from rmux.group import Member, Placement
from rmux.ids import JobId, NodeId, ProfileId
from rmux.job import Phase
from rmux.place import rotation
from rmux.place.period import Loop, period_of
from rmux.place.rotation import Rotation, Turn, Wanted


def device(name: str) -> DeviceId:
    return DeviceId(NodeId(name), 0)


def member(name: str, rollout: Iterable[str], train: Iterable[str] = ("t",)) -> Member:
    flat = PhaseEstimate(worst_s=1.0, expected_s=1.0)
    return Member(
        job_id=JobId(name),
        name=name,
        slo=2.0,
        profile=JobProfile(
            id=ProfileId(f"p-{name}"),
            spec_hash="x3:0",
            source=ProfileSource.ANALYTIC,
            rollout_hardware="cpu",
            train_hardware="cpu",
            rollout=flat,
            train=flat,
            sync_s=0.0,
            sync_bytes=0,
            rollout_resident_bytes=0,
            train_resident_bytes=0,
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
        ),
        placement=Placement(rollout=tuple(map(device, rollout)), train=tuple(map(device, train))),
    )


def rollout_of(one: Member, iteration: int = 1) -> Wanted:
    return Wanted(phase=Phase.ROLLOUT, iteration=iteration, devices=one.placement.rollout)


def train_of(one: Member, iteration: int = 1) -> Wanted:
    return Wanted(phase=Phase.TRAIN, iteration=iteration, devices=one.placement.train)


def give(
    rota: Rotation,
    wants: Mapping[str, Wanted],
    *,
    busy: Iterable[str] = (),
    absent: Iterable[str] = (),
    late: Iterable[str] = (),
) -> tuple[list[str], Rotation]:
    turns, after = rotation.next_turns(
        rota,
        wants={JobId(job): want for job, want in wants.items()},
        busy={device(name) for name in busy},
        absent={JobId(job) for job in absent},
        late={JobId(job) for job in late},
    )
    return [f"{turn.job_id}:{turn.phase}@{turn.device.node}" for turn in turns], after


A, B, C = member("a", ["r"]), member("b", ["r"]), member("c", ["r"])


def test_jobs_get_a_device_in_the_order_of_the_list_however_early_others_ask():
    rota = rotation.start([A, B, C])
    assert give(rota, {"b": rollout_of(B), "c": rollout_of(C)})[0] == []
    given_turns, rota = give(rota, {"a": rollout_of(A), "c": rollout_of(C)})
    assert given_turns == ["a:rollout@r"]
    given_turns, rota = give(rota, {"c": rollout_of(C)})
    assert given_turns == []
    given_turns, rota = give(rota, {"b": rollout_of(B), "c": rollout_of(C)})
    assert given_turns == ["b:rollout@r"]


def test_a_busy_device_is_not_given_again():
    rota = rotation.start([A, B])
    assert give(rota, {"a": rollout_of(A)}, busy=["r"])[0] == []


def test_a_turn_carries_the_phase_and_the_iteration_asked_for():
    turns, _ = rotation.next_turns(
        rotation.start([A]), wants={A.job_id: rollout_of(A, 7)}, busy=set(), absent=set()
    )
    assert turns == (Turn(device=device("r"), job_id=A.job_id, phase=Phase.ROLLOUT, iteration=7),)


def test_an_absent_job_is_skipped_and_loses_its_turn():
    rota = rotation.start([A, B])
    given_turns, rota = give(rota, {"b": rollout_of(B)}, absent=["a"])
    assert given_turns == ["b:rollout@r"]
    assert rota.next_job(device("r")) == "a"


def test_a_job_back_from_absence_waits_for_its_next_turn_while_the_other_is_waited_for():
    rota = rotation.start([A, B])
    _, rota = give(rota, {}, absent=["a"])
    assert give(rota, {"a": rollout_of(A)})[0] == []
    assert rota.next_job(device("r")) == "b"


def test_a_late_job_loses_its_turn_even_when_it_asks_at_last():
    rota = rotation.start([A, B])
    given_turns, rota = give(rota, {"a": rollout_of(A), "b": rollout_of(B)}, late=["a"])
    assert given_turns == ["b:rollout@r"]
    assert give(rota, {"a": rollout_of(A)})[0] == ["a:rollout@r"]


def test_nothing_moves_while_every_job_is_away():
    rota = rotation.start([A, B])
    _, after = give(rota, {}, absent=["a", "b"])
    assert after.cursors == rota.cursors


def test_a_job_that_is_present_but_not_ready_is_waited_for():
    rota = rotation.start([A, B])
    for _ in range(3):
        given_turns, rota = give(rota, {"b": rollout_of(B)})
        assert given_turns == []
    assert give(rota, {"a": rollout_of(A), "b": rollout_of(B)})[0] == ["a:rollout@r"]


def test_both_pools_turn_at_once():
    rota = rotation.start([A, B])
    _, rota = give(rota, {"a": rollout_of(A)})
    given_turns, _ = give(rota, {"a": train_of(A), "b": rollout_of(B)})
    assert sorted(given_turns) == ["a:train@t", "b:rollout@r"]


def test_a_job_that_lost_its_rollout_turn_is_not_waited_for_on_the_train_side():
    rota = rotation.start([A, B])
    _, rota = give(rota, {"b": rollout_of(B)}, absent=["a"])
    given_turns, _ = give(rota, {"a": rollout_of(A), "b": train_of(B)}, busy=["r"])
    assert given_turns == ["b:train@t"]


def test_a_job_that_lost_its_train_turn_leaves_its_next_rollout_turn_to_the_others():
    rota = rotation.start([A, B])
    _, rota = give(rota, {"a": rollout_of(A)})
    _, rota = give(rota, {"b": rollout_of(B)})
    given_turns, rota = give(rota, {"b": train_of(B)}, late=["a"])
    assert given_turns == ["b:train@t"]
    given_turns, _ = give(rota, {"a": train_of(A), "b": rollout_of(B, 2)}, busy=["t"])
    assert given_turns == ["b:rollout@r"]


def test_a_gang_collects_its_devices_one_by_one_in_turn():
    wide = member("w", ["r0", "r1"])
    narrow = member("n", ["r1"])
    rota = rotation.start([narrow, wide])
    given_turns, rota = give(rota, {"w": rollout_of(wide), "n": rollout_of(narrow)})
    assert given_turns == ["w:rollout@r0", "n:rollout@r1"]
    rest = Wanted(phase=Phase.ROLLOUT, iteration=1, devices=(device("r1"),))
    assert give(rota, {"w": rest}, busy=["r0", "r1"])[0] == []
    assert give(rota, {"w": rest}, busy=["r0"])[0] == ["w:rollout@r1"]


def test_a_gang_that_was_skipped_on_one_device_gives_up_the_same_turn_on_the_others():
    one, two = member("x", ["r0", "r1"]), member("y", ["r0", "r1"])
    rota = rotation.start([one, two])
    _, rota = give(rota, {"y": rollout_of(two)}, busy=["r1"], absent=["x"])
    rest = Wanted(phase=Phase.ROLLOUT, iteration=1, devices=(device("r1"),))
    given_turns, _ = give(rota, {"x": rollout_of(one), "y": rest}, busy=["r0"])
    assert given_turns == ["y:rollout@r1"]


def test_a_gang_that_holds_a_device_keeps_its_turn_until_that_device_is_free():
    one, two = member("x", ["r0", "r1"]), member("y", ["r0", "r1"])
    rota = rotation.start([one, two])
    _, rota = give(rota, {"x": rollout_of(one)}, busy=["r1"])
    wants = {"y": rollout_of(two)}
    assert give(rota, wants, busy=["r0"], absent=["x"])[0] == []
    assert give(rota, wants, absent=["x"])[0] == ["y:rollout@r0", "y:rollout@r1"]


def test_init_uses_the_jobs_own_turns_of_both_pools():
    rota = rotation.start([A, B])
    wants = {"a": Wanted(phase=Phase.INIT, iteration=0, devices=A.placement.devices)}
    given_turns, rota = give(rota, wants)
    assert given_turns == ["a:init@r", "a:init@t"]
    wants = {"b": Wanted(phase=Phase.INIT, iteration=0, devices=B.placement.devices)}
    assert give(rota, wants)[0] == ["b:init@r", "b:init@t"]


def test_a_joiner_comes_last_and_the_next_job_stays_the_next():
    rota = rotation.start([A, B])
    _, rota = give(rota, {"a": rollout_of(A)})
    rota = rotation.with_members(rota, [A, B, C])
    assert rota.order == ("a", "b", "c")
    assert rota.version == 2
    assert rota.next_job(device("r")) == "b"
    given_turns, _ = give(rota, {"b": rollout_of(B), "c": rollout_of(C)})
    assert given_turns == ["b:rollout@r"]


def test_a_leaver_is_dropped_and_the_next_job_moves_up():
    rota = rotation.start([A, B, C])
    _, rota = give(rota, {"a": rollout_of(A)})
    rota = rotation.with_members(rota, [A, C])
    assert rota.next_job(device("r")) == "c"
    assert rota.next_job(device("t")) == "a"


def test_the_last_of_the_list_may_leave_on_its_turn():
    rota = rotation.start([A, B])
    _, rota = give(rota, {"a": rollout_of(A)})
    rota = rotation.with_members(rota, [A])
    assert rota.next_job(device("r")) == "a"


def test_members_that_did_not_change_leave_the_rotation_alone():
    rota = rotation.start([A, B])
    assert rotation.with_members(rota, [A, B]) is rota


def test_a_job_with_another_placement_joins_anew():
    rota = rotation.start([A, B])
    rota = rotation.with_members(rota, [member("a", ["r2"]), B])
    assert rota.order == ("b", "a")
    assert rota.next_job(device("r2")) == "a"


def test_an_empty_group_can_fill_again():
    rota = rotation.with_members(rotation.start([A]), [])
    assert give(rota, {})[0] == []
    rota = rotation.with_members(rota, [B])
    assert give(rota, {"b": rollout_of(B)})[0] == ["b:rollout@r"]


def test_a_controller_that_takes_over_finds_the_holders_past_their_turn():
    one, two = member("x", ["r0", "r1"]), member("y", ["r0", "r1"])
    rota = rotation.start([one, two], held={device("r0"): two.job_id})
    rest = Wanted(phase=Phase.ROLLOUT, iteration=1, devices=(device("r1"),))
    given_turns, _ = give(rota, {"x": rollout_of(one), "y": rest}, busy=["r0"])
    assert given_turns == ["y:rollout@r1"]


# --- a small world that drives the rotation -----------------------------------------------------


@dataclass
class World:
    """Jobs with fixed phase times; absent at random; the driver's side of the contract."""

    members: list[Member]
    times: Mapping[str, tuple[float, float, float]]
    """job -> rollout, train, off-device seconds"""
    rota: Rotation = field(init=False)
    now: float = 0.0
    busy: dict[DeviceId, JobId] = field(default_factory=dict)
    wants: dict[JobId, Wanted] = field(default_factory=dict)
    absent: set[JobId] = field(default_factory=set)
    late: set[JobId] = field(default_factory=set)
    """In the next call only."""
    finished: dict[JobId, list[float]] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    _queue: list[tuple[float, int, JobId, str]] = field(default_factory=list)
    _counter: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.rota = rotation.start(self.members)
        for one in self.members:
            self.finished[one.job_id] = []
            self.wants[one.job_id] = rollout_of(one)

    def set_members(self, members: list[Member]) -> None:
        for one in members:
            if one.job_id not in self.finished:
                self.finished[one.job_id] = []
                self.wants[one.job_id] = rollout_of(one)
        gone = {one.job_id for one in self.members} - {one.job_id for one in members}
        for job in gone:
            self.crash(job)
        self.members = members
        self.rota = rotation.with_members(self.rota, members)
        self.absent -= gone

    def crash(self, job: JobId) -> None:
        """The driver dies: devices are fenced at once, the iteration starts again later."""
        self.absent.add(job)
        self.wants.pop(job, None)
        self._queue = [item for item in self._queue if item[2] != job]
        heapq.heapify(self._queue)
        self.busy = {d: holder for d, holder in self.busy.items() if holder != job}

    def come_back(self, job: JobId) -> None:
        self.absent.discard(job)
        self.wants[job] = rollout_of(self.member(job), len(self.finished[job]) + 1)

    def member(self, job: JobId) -> Member:
        return next(one for one in self.members if one.job_id == job)

    def dispatch(self) -> None:
        turns, self.rota = rotation.next_turns(
            self.rota,
            wants=self.wants,
            busy=set(self.busy),
            absent=self.absent,
            late=self.late,
        )
        self.late = set()
        for turn in turns:
            assert turn.device not in self.busy
            self.busy[turn.device] = turn.job_id
            self.turns.append(turn)
            want = self.wants[turn.job_id]
            rest = tuple(d for d in want.devices if d != turn.device)
            self.wants[turn.job_id] = Wanted(
                phase=want.phase, iteration=want.iteration, devices=rest
            )
            if not rest:
                del self.wants[turn.job_id]
                rollout_s, train_s, _ = self.times[turn.job_id]
                seconds = rollout_s if want.phase is Phase.ROLLOUT else train_s
                self.push(seconds, turn.job_id, want.phase)

    def push(self, seconds: float, job: JobId, what: str) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._counter), job, what))

    def step(self) -> bool:
        """To the next instant; False when nothing is running."""
        self.dispatch()
        if not self._queue:
            return False
        self.now = self._queue[0][0]
        while self._queue and self._queue[0][0] <= self.now:
            _, _, job, what = heapq.heappop(self._queue)
            self.busy = {d: holder for d, holder in self.busy.items() if holder != job}
            one = self.member(job)
            if what == Phase.ROLLOUT:
                self.wants[job] = train_of(one, len(self.finished[job]) + 1)
            elif what == Phase.TRAIN:
                self.push(self.times[job][2], job, "off")
            else:
                self.finished[job].append(self.now)
                self.wants[job] = rollout_of(one, len(self.finished[job]) + 1)
        return True


def world_of(sets: list[list[int]], times: list[tuple[int, int, int]]) -> World:
    members = [
        member(f"j{i}", [f"r{node}" for node in nodes], ["t0", "t1"])
        for i, nodes in enumerate(sets)
    ]
    return World(members, {f"j{i}": item for i, item in enumerate(times)})


node_sets = st.lists(
    st.sets(st.integers(0, 3), min_size=1, max_size=3).map(sorted), min_size=1, max_size=5
)
phase_times = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 4)), min_size=8, max_size=8
)


@settings(max_examples=40, deadline=None)
@given(sets=node_sets, times=phase_times)
def test_gangs_on_any_device_sets_never_deadlock_and_take_equal_turns(sets, times):
    world = world_of(sets, times)
    for _ in range(12 * len(sets)):
        assert world.step(), "nothing runs and nothing is given"
    counts = [len(ends) for ends in world.finished.values()]
    assert max(counts) - min(counts) <= 2
    by_device: dict[DeviceId, list[JobId]] = {}
    for turn in world.turns:
        by_device.setdefault(turn.device, []).append(turn.job_id)
    for used, jobs in by_device.items():
        ring = [one.job_id for one in world.members if used in one.placement.devices]
        assert jobs == [ring[i % len(ring)] for i in range(len(jobs))]


@settings(max_examples=40, deadline=None)
@given(sets=node_sets, times=phase_times, data=st.data())
def test_no_deadlock_while_jobs_are_late_crash_return_join_and_leave(sets, times, data):
    world = world_of(sets, times)
    spare = [
        member(f"j{len(sets) + i}", [f"r{node}" for node in nodes], ["t0", "t1"])
        for i, nodes in enumerate(data.draw(st.lists(node_sets.map(lambda s: s[0]), max_size=3)))
    ]
    for _ in range(25):
        world.step()
        change = data.draw(st.sampled_from(["none", "late", "crash", "back", "join", "leave"]))
        jobs = [one.job_id for one in world.members]
        if change == "late":
            world.late = {data.draw(st.sampled_from(jobs))}
        if change == "crash":
            world.crash(data.draw(st.sampled_from(jobs)))
        elif change == "back" and world.absent:
            world.come_back(data.draw(st.sampled_from(sorted(world.absent))))
        elif change == "join" and spare:
            world.set_members([*world.members, spare.pop()])
        elif change == "leave" and len(jobs) > 1:
            gone = data.draw(st.sampled_from(jobs))
            world.set_members([one for one in world.members if one.job_id != gone])
    world.late = set()
    for job in sorted(world.absent):
        world.come_back(job)
    before = {one.job_id: len(world.finished[one.job_id]) for one in world.members}
    # Each job must finish three whole iterations from here: nobody is starved.
    for _ in range(25 * len(world.members)):
        assert world.step(), "nothing runs and nothing is given"
    for one in world.members:
        assert len(world.finished[one.job_id]) >= before[one.job_id] + 3


@settings(max_examples=15, deadline=None)
@given(sets=st.lists(node_sets.map(lambda s: s[0]), min_size=1, max_size=4), times=phase_times)
def test_the_rotation_runs_a_group_in_exactly_its_period(sets, times):
    world = world_of(sets, times)
    ends = world.finished[JobId("j0")]
    while len(ends) < 60:
        world.step()
    loops = [
        Loop(
            job_id=one.job_id,
            rollout_s=world.times[one.job_id][0],
            train_s=world.times[one.job_id][1],
            off_device_s=world.times[one.job_id][2],
            rollout=frozenset(one.placement.rollout),
            train=frozenset(one.placement.train),
        )
        for one in world.members
    ]
    planned_s = period_of(loops, order=world.rota.order).period_s
    # 12 rounds hold whole patterns of 1, 2, 3 or 4 rounds.
    assert (ends[-1] - ends[-13]) / 12 == pytest.approx(planned_s)


def test_after_a_lost_turn_jobs_overlap_again_as_before():
    """A crash in mid-rollout must not leave the pair one phase out of step for good."""
    world = world_of([[0], [0]], [(10, 10, 0), (10, 10, 0)])
    for _ in range(10):
        world.step()
    world.crash(JobId("j0"))
    world.step()
    world.come_back(JobId("j0"))
    for _ in range(20):
        world.step()
    for ends in world.finished.values():
        assert ends[-1] - ends[-2] == 20


def test_an_init_turn_in_one_pool_leaves_the_turn_in_the_other_pool_open() -> None:
    """Jobs on partly shared devices arrive one after the other, all wanting init on both pools."""
    wide, left, right = (
        member("wide", ("a", "b"), ("t", "u")),
        member("left", ("b", "c"), ("t",)),
        member("right", ("c", "a"), ("u",)),
    )
    state, busy, given = rotation.start((wide, left, right)), set[DeviceId](), set[Turn]()
    wants = {
        one.job_id: Wanted(phase=Phase.INIT, iteration=0, devices=one.placement.devices)
        for one in (wide, left, right)
    }

    def turns(*present: Member) -> list[str]:
        nonlocal state
        here = {one.job_id for one in present}
        open_wants = {job: want for job, want in wants.items() if job in here and want.devices}
        absent = {one.job_id for one in (wide, left, right)} - here
        found, state = rotation.next_turns(state, wants=open_wants, busy=busy, absent=absent)
        for turn in found:
            busy.add(turn.device)
            given.add(turn)
            rest = tuple(d for d in wants[turn.job_id].devices if d != turn.device)
            wants[turn.job_id] = Wanted(phase=turn.phase, iteration=0, devices=rest)
        return sorted(f"{turn.job_id} {turn.device.node}" for turn in found)

    def free(*names: str) -> None:
        busy.difference_update(map(device, names))

    assert turns(wide) == ["wide a", "wide b", "wide t", "wide u"]
    assert turns(wide, left) == ["left c"]
    assert turns(wide, left, right) == []
    free("a", "b", "t", "u")
    wants[wide.job_id] = rollout_of(wide, iteration=0)
    assert turns(wide, left, right) == ["left b", "left t", "right a", "right u"]
    free("b", "c", "t", "u")
    wants[left.job_id] = rollout_of(left, iteration=0)
    # right holds a and must get c next, or it would hold a for ever
    assert "right c" in turns(wide, left, right)
