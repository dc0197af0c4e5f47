"""What the controller tells of the devices of a rollout that may give single ones back."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest

from rmux.cluster import DeviceId
from rmux.events import EventType
from rmux.group import Member, Placement
from rmux.ids import GroupId, NodeId
from rmux.job import Engine, JobState, RolloutSpec
from rmux.run.controller.state import (
    AppendEvents,
    GroupView,
    Inputs,
    MemberView,
    Send,
    State,
    Write,
)
from rmux.run.controller.step import step
from rmux.run.messages import DeviceReport, DriverStatus, Grants, NodeReport, Want
from rmux.run.runner.gate import Gate

ROLL = (DeviceId(NodeId("r"), 0), DeviceId(NodeId("r"), 1))
TRAIN = (DeviceId(NodeId("t"), 0),)
ROLLOUT_S, TRAIN_S, SYNC_S = 30.0, 10.0, 2.0


class Controller:
    """Jobs a and b on both rollout devices, with gates and drivers of a few words."""

    def __init__(self, samples, *, migrate=True):
        self.now_s, self.jobs, self.statuses, self.held = 0.0, {}, {}, {}
        self.released, self.sends, self.events = {}, [], []
        state = State(group_id=GroupId("g-1"), epoch=1, started_s=0.0)
        limits = dataclasses.replace(state.limits, heartbeat_s=0.5, silent_s=1e9)
        self.state = dataclasses.replace(state, limits=limits)
        views = tuple(self.view(samples, job, migrate) for job in ("j-a", "j-b"))
        self.first = GroupView(members=views, nodes=(NodeId("r"), NodeId("t")))
        self.whole = self.first
        self.say("j-a", "running")
        self.say("j-b", "running")

    def view(self, samples, job_id, migrate):
        job = samples.job(job_id, name=job_id, state=JobState.RUNNING, profile="p-1")
        rollout = RolloutSpec(devices=2, migrate=migrate)
        spec = dataclasses.replace(job.spec, rollout=rollout, engine=Engine.REAL)
        job = dataclasses.replace(job, spec=spec)
        profile = samples.profile()

        def phase(seconds):
            return dataclasses.replace(profile.rollout, worst_s=seconds, switch_s=0.0, cold_s=0.0)

        profile = dataclasses.replace(
            profile, rollout=phase(ROLLOUT_S), train=phase(TRAIN_S), sync_s=SYNC_S, checkpoint_s=0.0
        )
        member = Member(
            job_id=job.id,
            name=job_id,
            slo=2.0,
            profile=profile,
            placement=Placement(rollout=ROLL, train=TRAIN),
        )
        return MemberView(job=job, member=member)

    def say(self, job_id, state, *wants, iteration=0):
        self.statuses[job_id] = DriverStatus(
            job=job_id, attempt=1, state=state, iteration=iteration, wants=wants
        )

    def want(self, job_id, phase, *devices, iteration=0):
        names = tuple(map(str, devices))
        want = Want(phase=phase, iteration=iteration, devices=names)
        self.say(job_id, "running", want, iteration=iteration)

    def turn(self, *, after_s=0.0):
        """Reports, a step, and the word sent to the rollout node if any was."""
        self.now_s += after_s
        reports = tuple(
            NodeReport(
                node=node,
                runner=f"runner-{node}",
                epoch=1,
                devices=tuple(self.report(device) for device in devices),
                drivers=tuple(self.statuses.values()) if node == "t" else (),
            )
            for node, devices in (("r", ROLL), ("t", TRAIN))
        )
        inputs = Inputs(now_s=self.now_s, utc=datetime.now(UTC), reports=reports, view=self.first)
        self.first = None
        self.state, commands = step(self.state, inputs)
        for command in commands:
            if isinstance(command, Write):
                for operation in command.operations:
                    if isinstance(operation, AppendEvents):
                        self.events += operation.events
        sent = [one.grants for one in commands if isinstance(one, Send) and one.node == "r"]
        self.sends += sent
        return sent[-1] if sent else None

    def report(self, device):
        grant = self.state.held.get(device)
        if grant is None or self.released.get(device) == grant.order:
            seq = self.state.seqs.get(device, 0)
            return DeviceReport(device=str(device), epoch=1, seq=seq, state="released")
        return DeviceReport(device=str(device), epoch=1, seq=grant.seq, state="running")

    def release(self, *devices):
        for device in devices:
            self.released[device] = self.state.held[device].order

    def holders(self):
        return {str(device): grant.job for device, grant in self.state.held.items()}


@pytest.fixture
def both(samples):
    """A rolls out on both devices, since 4 s."""
    controller = Controller(samples)
    controller.want("j-a", "rollout", *ROLL)
    controller.turn()
    assert controller.holders() == {"r/0": "j-a", "r/1": "j-a"}
    controller.say("j-a", "running")
    controller.turn(after_s=4.0)
    return controller


def told(controller):
    return {one.device: one for one in controller.sends[-1].nexts}


def test_a_rollout_hears_who_is_next_and_when_that_is_planned(both):
    for device in ("r/0", "r/1"):
        one = told(both)[device]
        assert (one.job, one.waits, one.ready_s) == ("j-b", False, None)
        assert one.start_s == ROLLOUT_S - 4.0
        assert (one.epoch, one.seq) == both.state.held[DeviceId.parse(device)].order


def test_that_the_next_job_waits_now_is_sent_at_once_and_time_going_by_is_not(both):
    both.want("j-b", "rollout", *ROLL)
    both.turn(after_s=0.01)
    assert (told(both)["r/1"].waits, told(both)["r/1"].ready_s) == (True, 0.0)
    count = len(both.sends)
    for _ in range(20):
        both.turn(after_s=0.02)
    assert len(both.sends) == count, "less than a heartbeat has gone by"
    both.turn(after_s=0.2)
    assert len(both.sends) == count + 1
    assert told(both)["r/0"].start_s == pytest.approx(ROLLOUT_S - 4.61)


def test_the_next_jobs_train_and_sync_foretell_when_it_is_ready(both):
    both.release(*ROLL)
    both.want("j-b", "rollout", *ROLL)
    both.want("j-a", "train", *TRAIN)
    both.turn()
    assert both.holders() == {"r/0": "j-b", "r/1": "j-b", "t/0": "j-a"}
    both.say("j-a", "running")
    both.say("j-b", "running")
    both.turn(after_s=3.0)
    assert told(both)["r/0"].job == "j-a"
    assert told(both)["r/0"].ready_s == TRAIN_S + SYNC_S - 3.0
    both.release(*TRAIN)
    both.turn(after_s=1.0)
    assert told(both)["r/0"].ready_s == SYNC_S


def test_a_freed_device_goes_to_the_next_job_at_once_while_the_tail_stays(both):
    both.want("j-b", "rollout", *ROLL)
    both.release(ROLL[1])
    both.turn(after_s=0.01)
    assert both.holders() == {"r/0": "j-a", "r/1": "j-b"}
    assert [one.device for one in both.sends[-1].nexts] == ["r/0"], "b has not all of its devices"
    both.want("j-b", "rollout", ROLL[0])
    both.release(ROLL[0])
    both.turn(after_s=0.01)
    assert both.holders() == {"r/0": "j-b", "r/1": "j-b"}
    ahead_s = ROLLOUT_S - both.now_s
    assert told(both)["r/1"].start_s == pytest.approx(ahead_s + ROLLOUT_S), "by the worst-case plan"


@pytest.fixture
def ahead(both):
    """A was over 26 s before it had to be; b rolls out on both devices since then."""
    both.release(*ROLL)
    both.want("j-b", "rollout", *ROLL)
    both.turn()
    both.say("j-b", "running")
    both.turn(after_s=1.0)
    assert told(both)["r/0"].start_s == 2 * ROLLOUT_S - 5.0
    return both


def test_a_phase_that_began_on_time_by_the_plan_has_its_own_length_alone(both):
    both.release(*ROLL)
    both.want("j-b", "rollout", *ROLL)
    both.turn(after_s=ROLLOUT_S)
    both.turn(after_s=1.0)
    assert told(both)["r/0"].start_s == ROLLOUT_S - 1.0


@pytest.mark.parametrize("change", ["order", "members"])
def test_nobody_is_ahead_of_the_plan_of_another_group(ahead, change):
    if change == "order":
        ahead.first = dataclasses.replace(ahead.whole, turns=("j-b", "j-a"))
    else:
        view = ahead.whole.members[0]
        view = dataclasses.replace(view, member=dataclasses.replace(view.member, slo=3.0))
        members = (view, *ahead.whole.members[1:])
        ahead.first = dataclasses.replace(ahead.whole, members=members)
    ahead.turn(after_s=1.0)
    assert told(ahead)["r/0"].start_s == ROLLOUT_S - 2.0


def test_the_same_view_again_changes_nothing_of_the_plan(ahead):
    ahead.first = ahead.whole
    ahead.turn(after_s=1.0)
    assert told(ahead)["r/0"].start_s == 2 * ROLLOUT_S - 6.0


def test_a_turn_leaves_the_plan_of_the_state_before_as_it_was(both):
    before = both.state
    kept = before.latest.copy()
    both.release(*ROLL)
    both.want("j-b", "rollout", *ROLL)
    both.turn(after_s=1.0)
    assert before.latest == kept != both.state.latest


def test_a_rollout_that_ended_without_a_device_leaves_it_to_others_and_is_not_late(both):
    both.want("j-b", "rollout", *ROLL)
    both.release(ROLL[1])
    both.turn(after_s=0.01)
    both.want("j-b", "rollout", ROLL[0])
    both.turn(after_s=40.0)
    both.say("j-b", "running")
    both.release(ROLL[1])
    both.turn(after_s=0.01)
    assert both.state.runs["j-b"].due_s > both.now_s + ROLLOUT_S
    both.want("j-a", "train", *TRAIN)
    both.release(ROLL[0])
    both.turn(after_s=0.01)
    both.say("j-a", "running")
    both.release(*TRAIN)
    both.want("j-b", "train", *TRAIN)
    both.turn(after_s=0.01)
    assert both.holders() == {"t/0": "j-b"}
    both.want("j-a", "rollout", *ROLL, iteration=1)
    both.turn(after_s=0.01)
    assert both.holders() == {"t/0": "j-b", "r/0": "j-a", "r/1": "j-a"}


def test_one_device_of_two_may_be_held_for_as_long_as_the_work_takes_there_alone(both):
    grant = both.state.held[ROLL[0]]
    assert grant.bound_s >= 2 * ROLLOUT_S


def test_nothing_is_told_of_a_rollout_that_keeps_its_devices(samples):
    controller = Controller(samples, migrate=False)
    controller.want("j-a", "rollout", *ROLL)
    controller.turn()
    assert controller.sends[-1].nexts == ()
    assert any(event.type is EventType.GRANT for event in controller.events)


def test_a_gate_passes_on_what_is_said_of_the_grants_it_honours_less_the_time_since(both):
    gate = Gate(["r/0", "r/1"], emit=lambda *_, **__: None)
    word = both.sends[-1]
    assert isinstance(word, Grants)
    gate.take_grants(word, now_s=100.0)
    passed = gate.nexts(gate.passed_on("j-a", 1), now_s=103.0)
    assert [one.start_s for one in passed] == [ROLLOUT_S - 7.0] * 2
    assert gate.nexts((), now_s=103.0) == ()
