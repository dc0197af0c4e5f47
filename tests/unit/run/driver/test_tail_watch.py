"""What the tail's judgement is fed with, and what it must never order."""

import dataclasses

import pytest

from rmux.cluster import DeviceId
from rmux.errors import ConflictError, UserError
from rmux.job import EnvironmentSpec, RolloutSpec
from rmux.place.tail import TailDecision
from rmux.run.driver.engines import FinishedLength, InFlight
from rmux.run.driver.foreseen import Foreseen
from rmux.run.driver.tail import Move, TailWatch, numerics, trigger_of
from rmux.run.driver.tail_facts import Lengths, Pace
from rmux.run.messages import Grant
from rmux.run.nexts import Next, is_news

D0, D1 = DeviceId.parse("r/0"), DeviceId.parse("r/1")


def flight(key, device=D0, tokens=0):
    return InFlight(key=key, device=device, prompt_tokens=4, tokens=tokens)


def grant(device, seq=1):
    return Grant(
        device=device,
        epoch=1,
        seq=seq,
        job="j-1",
        attempt=1,
        iteration=0,
        phase="rollout",
        bound_s=60.0,
    )


def following(device, *, seq=1, start_s=100.0, **told):
    return Next(device=device, epoch=1, seq=seq, job="j-2", start_s=start_s, **told)


class Fleet:
    def __init__(self):
        self.flights, self.done = (), ()

    def in_flight(self):
        return self.flights

    def finished_lengths(self):
        return self.done


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def watching(make_config, tmp_path):
    def make(*, rollout=None, nexts=None, cores=((0,), (1,)), **changes):
        config = make_config(rollout=("r/0", "r/1"))
        rollout = rollout or RolloutSpec(devices=2, max_tokens=1000, max_num_seqs=8)
        spec = dataclasses.replace(config.spec, rollout=rollout, **changes.pop("spec", {}))
        nodes = tuple(dataclasses.replace(node, cores=cores) for node in config.nodes)
        config = dataclasses.replace(config, spec=spec, nodes=nodes, **changes)
        fleet, clock = Fleet(), Clock()
        lengths = Lengths(tmp_path / "lengths.json", limit_tokens=rollout.max_tokens)
        told = nexts or {device: following(device, ready_s=0.0) for device in ("r/0", "r/1")}
        watch = TailWatch(
            config,
            fleet=lambda: fleet,
            after=lambda one: told.get(one.device),
            lengths=lengths,
            now_s=clock,
        )
        watch.fleet, watch.clock, watch.config = fleet, clock, config
        return watch

    return make


def run_tail(watch, *, seconds=3.0, step_s=0.01):
    """One straggler on each device, 90 short ones done; the first move that is ordered."""
    watch.fleet.done = tuple(FinishedLength(tokens=5 + n % 9, at_limit=False) for n in range(90))
    watch.fleet.done += tuple(FinishedLength(tokens=900, at_limit=False) for _ in range(4))
    for _ in range(round(seconds / 0.1)):
        watch.clock.now_s += 0.1
        tokens = round(watch.clock.now_s / step_s)
        watch.fleet.flights = (flight(7, D0, tokens), flight(8, D1, tokens))
        if move := watch.look((grant("r/0"), grant("r/1"))):
            return move
    return None


def test_two_stragglers_move_together_by_their_keys(watching):
    move = run_tail(watching())
    [freed] = move.decision.freed
    [(key, home)] = move.homes.items()
    assert {freed, home} == {D0, D1}
    assert {7: D0, 8: D1}[key] == freed
    assert move.job == "j-2"
    assert move.done == pytest.approx(94 / 96)


def test_no_request_goes_to_a_device_of_another_numerics_class(watching):
    assert run_tail(watching(cores=((0,), (1, 2)))) is None
    watch = watching(cores=((0,), (1, 2)))
    order = Move(decision=TailDecision(reason=""), homes={7: D1}, job="", done=0.9)
    with pytest.raises(ConflictError, match=r"request 7 cannot go on at r/1: it is no cpu .* 1 t"):
        watch.check(order, (flight(7, D0),))
    assert numerics(watch.config, D0) != numerics(watch.config, D1)


def test_the_tail_moves_when_the_next_job_is_about_to_come_and_not_before(watching):
    told = {device: following(device, ready_s=2.0) for device in ("r/0", "r/1")}
    watch = watching(nexts=told)
    assert run_tail(watch, seconds=1.0) is None
    told |= {device: following(device, ready_s=0.09) for device in told}
    assert run_tail(watch, seconds=0.1) is not None


def test_nothing_moves_where_the_worst_case_would_pass_the_planned_start(watching):
    late = {device: following(device, ready_s=0.0, start_s=6.0) for device in ("r/0", "r/1")}
    assert run_tail(watching(nexts=late)) is None, "1000 tokens take 10 s"


def test_refills_to_come_are_left_time_for(watching):
    """100 s to the planned start: one refill of 16 waves of 1000 tokens takes 160 s on one."""
    refilled = RolloutSpec(devices=2, max_tokens=1000, max_num_seqs=8, refills=1)
    assert run_tail(watching(rollout=refilled)) is None


def test_episodes_of_several_turns_and_jobs_with_tails_off_stay_where_they_are(watching):
    assert run_tail(watching(tail_trigger="off")) is None
    episodes = {"environment": EnvironmentSpec(function="env.py:make")}
    assert run_tail(watching(spec=episodes)) is None


def test_a_fixed_trigger_moves_at_its_share_of_finished_responses(watching):
    assert run_tail(watching(tail_trigger="0.99")) is None
    assert run_tail(watching(tail_trigger="0.9")).done > 0.9


def test_nothing_is_asked_while_a_device_has_no_word_of_what_comes_next(watching):
    assert run_tail(watching(nexts={"r/0": following("r/0", ready_s=0.0)})) is None


@pytest.mark.parametrize(("text", "share"), [("gain", None), ("off", None), ("0.8", 0.8)])
def test_a_trigger_is_a_word_or_a_share(text, share):
    assert trigger_of(text) == share


@pytest.mark.parametrize("text", ["1", "0", "80%", "nan", "", "-0.5"])
def test_other_triggers_are_refused(text):
    with pytest.raises(UserError, match="tail trigger"):
        trigger_of(text)


def test_pace_tells_the_time_of_a_step_from_that_of_a_further_sequence():
    pace, tokens = Pace(), {}
    now_s = 0.0
    for width in (8, 4, 2, 1):
        for _ in range(30):
            now_s += 10 * (0.01 + 0.002 * width)
            for key in range(width):
                tokens[key] = tokens.get(key, 0) + 10
            pace.take([flight(key, tokens=tokens[key]) for key in range(width)], now_s=now_s)
    speed = pace.speed()
    assert speed.step_s == pytest.approx(0.01, rel=0.05)
    assert speed.per_seq_s == pytest.approx(0.002, rel=0.05)


def test_pace_counts_neither_those_that_wait_nor_what_happened_before_a_move():
    pace = Pace()
    assert pace.speed() is None
    pace.take([flight(1, tokens=0), flight(2, tokens=0)], now_s=0.0)
    pace.take([flight(1, tokens=50), flight(2, tokens=0)], now_s=1.0)
    assert pace.speed().of(1) == pytest.approx(0.02)
    pace.restart()
    pace.take([flight(1, tokens=50)], now_s=100.0)
    pace.take([flight(1, tokens=100)], now_s=101.0)
    assert pace.speed().of(1) == pytest.approx(0.02)


@pytest.mark.parametrize("ratio", [0.001, 0.05])
def test_what_a_prefill_takes_is_learned_from_how_late_moved_responses_go_on(ratio):
    """Two of 500 tokens move onto the device of two others: 4 prompt tokens each."""
    pace, now_s, step_s = Pace(), 0.0, 0.01
    for _ in range(12):
        flights = [flight(key, D0 if key < 2 else D1, tokens=500) for key in range(4)]
        pace.take(flights, now_s=now_s)
        now_s += 1.0
        grown = [dataclasses.replace(one, tokens=600) for one in flights]
        pace.take(grown, now_s=now_s)
        pace.note_move(grown, {2: D0, 3: D0}, asked_s=now_s, seconds=0.5)
        pause_s = 0.5 + 2 * 604 * ratio * step_s
        for after_s in (0.2, pause_s + 10 * step_s):
            tokens = 600 + (10 if after_s > pause_s else 0)
            here = [flight(key, D0, tokens=tokens) for key in range(4)]
            pace.take(here, now_s=now_s + after_s)
        now_s += 100.0
        pace.restart()
    assert pace.speed().step_s == pytest.approx(step_s)
    assert pace.speed().prefill_s_per_token == pytest.approx(ratio * step_s, rel=0.05)
    assert pace.speed().move_s == pytest.approx(0.5, rel=0.01)


def test_a_move_whose_responses_end_unseen_teaches_nothing_of_prefills():
    pace = Pace()
    pace.take([flight(1, D0, 0), flight(2, D1, 0)], now_s=0.0)
    pace.take([flight(1, D0, 100), flight(2, D1, 100)], now_s=1.0)
    before = pace.speed()
    pace.note_move([flight(2, D1, 100)], {2: D0}, asked_s=1.0, seconds=before.move_s)
    pace.take([flight(1, D0, 200)], now_s=50.0)
    pace.take([flight(1, D0, 300)], now_s=51.0)
    assert pace.speed() == before


def test_a_move_of_no_response_is_no_sample_of_what_moves_take():
    pace = Pace()
    pace.take([flight(1, tokens=0)], now_s=0.0)
    pace.take([flight(1, tokens=100)], now_s=1.0)
    before = pace.speed()
    pace.note_move([flight(1, tokens=100)], {}, asked_s=1.0, seconds=9.0)
    assert pace.speed() == before


def test_lengths_survive_a_restart_and_stopped_ones_count_as_at_least_so_long(tmp_path):
    path = tmp_path / "lengths.json"
    lengths = Lengths(path, limit_tokens=100)
    ended = [FinishedLength(tokens=10, at_limit=False), FinishedLength(tokens=20, at_limit=True)]
    lengths.add(ended, running=[5])
    lengths.save()
    again = Lengths(path, limit_tokens=100)
    assert len(again) == 3
    survival = again.survival((), ())
    assert survival.at(9) == 1.0
    assert survival.at(10) == pytest.approx(1 / 2), "the one of 20 had a lower limit"
    path.write_text("{")
    assert len(Lengths(path, limit_tokens=100)) == 0


def test_of_several_words_the_newest_counts_but_the_earliest_start():
    foreseen = Foreseen()
    foreseen.take([following("r/0", start_s=50.0)], at_s=10.0)
    foreseen.take([following("r/0", start_s=55.0, waits=True, ready_s=2.0)], at_s=12.0)
    found = foreseen.after(grant("r/0"), now_s=13.0)
    assert (found.waits, found.ready_s, found.start_s) == (True, 1.0, 47.0)
    assert foreseen.after(grant("r/0", seq=2), now_s=13.0) is None
    foreseen.take([following("r/0", seq=2, start_s=90.0)], at_s=20.0)
    foreseen.take([following("r/0", seq=1, start_s=1.0)], at_s=21.0)
    assert foreseen.after(grant("r/0", seq=2), now_s=20.0).start_s == 90.0


def test_time_going_by_is_no_news():
    @dataclasses.dataclass(frozen=True)
    class Message:
        nexts: tuple[Next, ...]
        desired: str = "run"

    before = Message((following("r/0", ready_s=3.0, start_s=50.0),))
    assert not is_news(before, Message((before.nexts[0].aged(0.4),)), elapsed_s=0.4)
    assert is_news(None, before, elapsed_s=0.0)
    assert is_news(before, dataclasses.replace(before, desired="stop"), elapsed_s=0.0)
    for changes in ({"waits": True}, {"job": "j-3"}, {"ready_s": None}, {"ready_s": 1.0}):
        other = Message((dataclasses.replace(before.nexts[0], **changes),))
        assert is_news(before, other, elapsed_s=0.1)
