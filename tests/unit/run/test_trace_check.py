from __future__ import annotations

from rmux.events import EventType
from rmux.job import Phase
from rmux.run.trace_check import check

CYCLE = (Phase.ROLLOUT, Phase.TRAIN, Phase.SYNC)


class Trace:
    """A journal written line by line; instants are seconds."""

    def __init__(self, samples) -> None:
        self.samples, self.events = samples, []

    def add(self, kind, at_s, job, phase, device, *, iteration=0, **data):
        self.events.append(
            self.samples.event(
                len(self.events) + 1,
                kind,
                job=job,
                at_s=at_s,
                iteration=iteration,
                phase=phase,
                device=device,
                **{"epoch": 1, "attempt": 1, **data},
            )
        )

    def phase(self, job, phase, device, seq, from_s, until_s, **more):
        self.add(EventType.GRANT, from_s, job, phase, device, seq=seq, **more)
        self.add(EventType.PHASE_START, from_s + 0.1, job, phase, device, seq=seq, **more)
        self.add(EventType.PHASE_END, until_s - 0.1, job, phase, device, seq=seq, **more)
        self.add(EventType.RELEASED, until_s, job, phase, device, seq=seq, **more)

    def sync(self, job, at_s, **more):
        self.add(EventType.PHASE_START, at_s, job, Phase.SYNC, None, **more)

    @property
    def rules(self):
        return [violation.rule for violation in check(self.events)]


def good(samples) -> Trace:
    """Two jobs, two iterations, one device per pool."""
    trace = Trace(samples)
    for iteration in range(2):
        t = 10.0 * iteration
        seq = 2 * iteration
        trace.phase("a", Phase.ROLLOUT, "r/0", seq + 1, t, t + 2, iteration=iteration)
        trace.phase("b", Phase.ROLLOUT, "r/0", seq + 2, t + 2, t + 4, iteration=iteration)
        trace.phase("a", Phase.TRAIN, "t/0", seq + 1, t + 2, t + 4, iteration=iteration)
        trace.phase("b", Phase.TRAIN, "t/0", seq + 2, t + 4, t + 6, iteration=iteration)
        trace.sync("a", t + 5, iteration=iteration)
        trace.sync("b", t + 7, iteration=iteration)
    return trace


def test_a_good_trace_has_no_violations_in_whatever_order_it_is_read(samples):
    trace = good(samples)
    assert check(trace.events) == []
    assert check(reversed(trace.events)) == []


def test_two_grants_at_once_on_a_device_overlap(samples):
    trace = good(samples)
    trace.phase("b", Phase.ROLLOUT, "r/0", 5, 30.0, 32.0, iteration=2)
    trace.phase("a", Phase.ROLLOUT, "r/0", 6, 31.0, 33.0, iteration=2)
    assert trace.rules == ["overlap", "early-start"]


def test_a_grant_that_was_never_released_holds_its_device(samples):
    trace = Trace(samples)
    trace.add(EventType.GRANT, 0.0, "a", Phase.ROLLOUT, "r/0", seq=1)
    trace.add(EventType.GRANT, 5.0, "b", Phase.ROLLOUT, "r/0", seq=2)
    assert trace.rules == ["overlap"]


def test_numbers_that_do_not_grow_are_told(samples):
    trace = Trace(samples)
    trace.phase("a", Phase.ROLLOUT, "r/0", 2, 0.0, 1.0)
    trace.phase("b", Phase.ROLLOUT, "r/0", 1, 2.0, 3.0)
    assert trace.rules == ["order"]


def test_a_new_epoch_may_begin_its_numbers_again(samples):
    trace = Trace(samples)
    trace.phase("a", Phase.ROLLOUT, "r/0", 2, 0.0, 1.0)
    trace.phase("b", Phase.ROLLOUT, "r/0", 1, 2.0, 3.0, epoch=2)
    assert trace.rules == []


def test_a_start_without_a_grant_is_told(samples):
    trace = Trace(samples)
    trace.add(EventType.PHASE_START, 0.0, "a", Phase.ROLLOUT, "r/0", seq=1)
    assert trace.rules == ["no-grant"]


def test_every_device_of_a_phase_needs_its_grant(samples):
    trace = Trace(samples)
    trace.add(EventType.GRANT, 0.0, "a", Phase.ROLLOUT, "r/0", seq=4)
    trace.add(EventType.PHASE_START, 1.0, "a", Phase.ROLLOUT, "r/0", seq=4, devices=["r/0", "r/1"])
    assert trace.rules == ["no-grant"]


def test_a_successor_that_starts_before_the_release_is_told_on_its_other_device_too(samples):
    trace = Trace(samples)
    trace.phase("a", Phase.ROLLOUT, "r/1", 1, 0.0, 3.0)
    trace.add(EventType.GRANT, 0.5, "b", Phase.ROLLOUT, "r/0", seq=1)
    trace.add(EventType.GRANT, 3.0, "b", Phase.ROLLOUT, "r/1", seq=2)
    trace.add(EventType.PHASE_START, 2.0, "b", Phase.ROLLOUT, "r/0", seq=2, devices=["r/0", "r/1"])
    assert trace.rules == ["early-start"]


def test_a_repeated_grant_and_release_count_once(samples):
    trace = good(samples)
    trace.add(EventType.GRANT, 25.0, "b", Phase.TRAIN, "t/0", seq=4, iteration=1)
    trace.add(EventType.RELEASED, 25.0, "b", Phase.TRAIN, "t/0", seq=4, iteration=1)
    assert trace.rules == []


def test_phases_out_of_order_are_told(samples):
    trace = Trace(samples)
    trace.phase("a", Phase.ROLLOUT, "r/0", 1, 0.0, 1.0)
    trace.sync("a", 2.0)
    assert trace.rules == ["phase-order"]


def test_an_iteration_left_out_is_told(samples):
    trace = good(samples)
    trace.phase("a", Phase.ROLLOUT, "r/0", 5, 30.0, 31.0, iteration=3)
    assert trace.rules == ["phase-order"]


def test_a_restart_may_repeat_its_unfinished_iteration(samples):
    trace = good(samples)
    trace.phase("a", Phase.ROLLOUT, "r/0", 5, 30.0, 31.0, iteration=1, attempt=2)
    trace.phase("a", Phase.TRAIN, "t/0", 5, 31.0, 32.0, iteration=1, attempt=2)
    assert trace.rules == []


def test_a_restart_beyond_what_was_reached_is_told(samples):
    trace = good(samples)
    trace.phase("a", Phase.ROLLOUT, "r/0", 5, 30.0, 31.0, iteration=5, attempt=2)
    assert trace.rules == ["phase-order"]


def test_a_script_without_sync_is_in_order(samples):
    trace = Trace(samples)
    for iteration in range(2):
        t = 10.0 * iteration
        trace.phase("a", Phase.ROLLOUT, "r/0", iteration + 1, t, t + 1, iteration=iteration)
        trace.phase("a", Phase.TRAIN, "t/0", iteration + 1, t + 1, t + 2, iteration=iteration)
    assert trace.rules == []


def test_a_grant_lost_with_its_controller_is_known_from_its_release(samples):
    trace = good(samples)
    lost = {"seq": 5, "iteration": 2}
    trace.add(EventType.PHASE_START, 30.1, "a", Phase.ROLLOUT, "r/0", **lost)
    trace.add(EventType.RELEASED, 32.0, "a", Phase.ROLLOUT, "r/0", granted_s=30.0, **lost)
    assert trace.rules == []
    trace.phase("b", Phase.ROLLOUT, "r/0", 6, 31.0, 33.0, iteration=2)
    assert trace.rules == ["overlap", "early-start"]


def one_ahead(samples, *, rollout_s=((0.0, 4.0), (4.0, 8.0), (9.0, 12.0)), sync_s=(7.0, 12.5)):
    """One step off-policy, three rollouts and two trains: the second rollout beside the train."""
    trace = Trace(samples)
    for number, (from_s, until_s) in enumerate(rollout_s):
        about = {"iteration": number, "max_staleness": 1}
        trace.phase("a", Phase.ROLLOUT, "r/0", number + 1, from_s, until_s, **about)
    for number, from_s in enumerate((4.0, 9.0)):
        about = {"iteration": number, "max_staleness": 1}
        trace.phase("a", Phase.TRAIN, "t/0", number + 1, from_s, from_s + 3, **about)
        trace.sync("a", sync_s[number], iteration=number)
        trace.add(EventType.PHASE_END, sync_s[number] + 1, "a", Phase.SYNC, None, iteration=number)
    return trace


def test_one_step_off_policy_a_rollout_may_run_beside_the_train_before_it(samples):
    assert one_ahead(samples).rules == []


def test_one_step_off_policy_a_rollout_waits_for_the_sync_of_two_iterations_before(samples):
    early = ((0.0, 4.0), (4.0, 7.0), (7.0, 12.0))
    assert one_ahead(samples, rollout_s=early).rules == ["phase-order"]


def test_one_step_off_policy_a_train_waits_for_its_rollout_and_the_sync_before_it(samples):
    late = ((0.0, 4.0), (4.0, 9.5), (10.0, 12.0))
    assert one_ahead(samples, rollout_s=late).rules == ["phase-order"]
    assert one_ahead(samples, sync_s=(8.5, 12.5)).rules == ["phase-order"] * 2


def test_an_on_policy_job_may_not_do_what_one_step_off_policy_allows(samples):
    trace = one_ahead(samples)
    for event in trace.events:
        event.data.pop("max_staleness", None)
    assert "phase-order" in trace.rules


def test_a_device_that_joins_a_rollout_under_way_needs_a_grant_and_a_free_device(samples):
    trace = Trace(samples)
    trace.phase("b", Phase.ROLLOUT, "r/1", 1, 0.0, 3.0)
    trace.phase("a", Phase.ROLLOUT, "r/0", 1, 0.0, 9.0)
    trace.add(EventType.GRANT, 3.0, "a", Phase.ROLLOUT, "r/1", seq=2)
    joined = {"kind": EventType.DEVICE_JOINED, "job": "a", "phase": Phase.ROLLOUT}
    trace.add(at_s=3.1, device="r/1", seq=2, **joined)
    trace.add(EventType.RELEASED, 5.0, "a", Phase.ROLLOUT, "r/1", seq=2)
    trace.phase("b", Phase.TRAIN, "t/0", 1, 3.0, 4.0)
    assert trace.rules == [], "it gave that device back while the other went on"
    trace.events = [one for one in trace.events if one.type is not EventType.DEVICE_JOINED]
    trace.add(at_s=2.0, device="r/1", seq=2, **joined)
    assert trace.rules == ["early-start"]
    trace.add(at_s=6.0, device="r/2", seq=1, **joined)
    assert sorted(trace.rules) == ["early-start", "no-grant"]
