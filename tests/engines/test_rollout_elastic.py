"""Rollout workers that leave and join while requests run: nothing lost, nothing sampled twice."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from rmux.cluster import DeviceId
from rmux.errors import ConflictError, StaleWeightsError, UserError
from rmux.run.driver.engines import Exactness, MoveReport, Response, Sampling

PROMPTS = [[(7 * at + 3 * i) % 64 for i in range(5 + at)] for at in range(20)]
SEEDS = list(range(500, 520))
GREEDY = Sampling(temperature=0.0, max_tokens=150, ignore_eos=True)
LONG = dataclasses.replace(GREEDY, max_tokens=380)
SEEDED = Sampling(temperature=1.0, max_tokens=150, min_tokens=60)
FIRST, SECOND = DeviceId.parse("r0/0"), DeviceId.parse("r0/1")


@pytest.fixture(scope="module")
def rollout(start_rollout: Callable[..., Any]) -> Iterator[Any]:
    """Two workers, in two processes on two cores, that run 8 of 10 requests at once."""
    one = start_rollout(rollout_devices=2, max_num_seqs=8)
    one.wake()
    yield one
    one.session.close()


class Mover:
    """Makes workers leave and join from a thread of its own, at given counts of tokens."""

    def __init__(self, fleet: Any, moves: Mapping[int, tuple[str, DeviceId]]) -> None:
        self._fleet = fleet
        self._moves = sorted(moves.items())
        self.reports: list[MoveReport] = []
        self.taken: list[int] = []
        self.after: list[set[DeviceId]] = []

    def __call__(self, progress: Mapping[str, Any]) -> None:
        while self._moves and progress["tokens"] >= self._moves[0][0]:
            _, (what, device) = self._moves.pop(0)
            thread = threading.Thread(target=self._move, args=(what, device))
            thread.start()
            thread.join()

    def _move(self, what: str, device: DeviceId) -> None:
        if what == "leave":
            self.reports.append(self._fleet.leave([device]))
        else:
            self.taken.append(self._fleet.join([device]))
        self.after.append({one.device for one in self._fleet.in_flight()})


def begin(stream: Any, fleet: Any, *, count: int) -> None:
    """So many long requests, each of which has tokens by now and none its last."""
    for key, prompt in enumerate(PROMPTS[:count]):
        stream.submit(key, prompt, sampling=LONG, seed=0)
    while (under_way := fleet.in_flight()) == () or not all(one.tokens for one in under_way):
        assert stream.next(0.02) is None


def generate(rollout: Any, sampling: Sampling, mover: Mover | None = None) -> list[Response]:
    found: list[Response] = rollout.fleet.generate(
        PROMPTS, sampling=sampling, seeds=SEEDS, on_progress=mover
    )
    return found


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_responses_are_token_for_token_the_same_when_workers_leave_and_join(
    rollout: Any, sampling: Sampling
) -> None:
    whole = generate(rollout, sampling)
    mover = Mover(
        rollout.fleet,
        {300: ("leave", FIRST), 700: ("join", FIRST), 1100: ("leave", SECOND)},
    )
    moved = generate(rollout, sampling, mover)
    rollout.fleet.join([SECOND])
    assert [r.tokens for r in moved] == [r.tokens for r in whole]
    assert [len(r.logprobs) for r in moved] == [len(r.tokens) for r in whole]
    assert {(r.exactness, r.weight_version) for r in moved} == {(Exactness.EXACT, 0)}
    assert [r.finish_reason for r in moved] == [r.finish_reason for r in whole]
    assert min(len(r.tokens) for r in moved) >= 60
    assert max(map(abs, _gaps(whole, moved))) < 1e-4
    assert mover.after == [{SECOND}, {FIRST, SECOND}, {FIRST}]
    first, second = mover.reports
    assert first.requests == first.exact > 4
    assert second.requests == second.exact > 0
    assert first.tokens_recomputed > first.tokens_carried > 0
    assert mover.taken[0] >= 4
    lengths = rollout.fleet.finished_lengths()
    assert sorted(one.tokens for one in lengths) == sorted(len(r.tokens) for r in whole)
    assert sum(one.at_limit for one in lengths) == sum(r.finish_reason == "length" for r in whole)


def _gaps(whole: list[Response], moved: list[Response]) -> list[float]:
    return [
        a - b
        for one, other in zip(whole, moved, strict=True)
        for a, b in zip(one.logprobs, other.logprobs, strict=True)
    ]


def test_without_its_random_numbers_a_continued_response_says_what_it_is_worth(
    rollout: Any,
) -> None:
    whole = generate(rollout, SEEDED)
    worker = rollout.handles[1].actor
    assert rollout.session.get(worker.carry_states.remote(False))
    try:
        mover = Mover(rollout.fleet, {500: ("leave", FIRST)})
        moved = generate(rollout, SEEDED, mover)
    finally:
        rollout.session.get(worker.carry_states.remote(True))
        rollout.fleet.join([FIRST])
    assert mover.reports[0].exact < mover.reports[0].requests
    drawn = [r for r in moved if r.exactness is Exactness.SAME_DISTRIBUTION]
    assert len(drawn) == mover.reports[0].requests - mover.reports[0].exact
    for one, other in zip(whole, moved, strict=True):
        if other.exactness is Exactness.EXACT:
            assert other.tokens == one.tokens
    assert any(r.tokens not in [one.tokens for one in whole] for r in drawn)


def test_a_repetition_penalty_goes_on_exactly(rollout: Any) -> None:
    sampling = dataclasses.replace(GREEDY, repetition_penalty=1.3)
    whole = generate(rollout, sampling)
    assert [r.tokens for r in whole] != [r.tokens for r in generate(rollout, GREEDY)]
    moved = generate(rollout, sampling, Mover(rollout.fleet, {900: ("leave", FIRST)}))
    rollout.fleet.join([FIRST])
    assert [r.tokens for r in moved] == [r.tokens for r in whole]


def test_turns_are_sent_singly_and_come_as_they_end(rollout: Any) -> None:
    short, long = (dataclasses.replace(GREEDY, max_tokens=n) for n in (10, 190))
    with rollout.fleet.stream() as stream:
        for key in range(4):
            stream.submit(key, PROMPTS[key], sampling=long if key == 3 else short, seed=key)
        first = {stream.next(30.0)[0] for _ in range(3)}
        assert first == {0, 1, 2}
        stream.submit(0, PROMPTS[7], sampling=short, seed=9)
        with pytest.raises(UserError, match="request 3 is in flight already"):
            stream.submit(3, PROMPTS[7], sampling=short, seed=9)
        key, response = stream.next(30.0)
        assert (key, list(response.prompt_tokens)) == (0, PROMPTS[7])
        assert [one.key for one in rollout.fleet.in_flight()] == [3]
        assert stream.next(30.0)[0] == 3
        assert stream.next(30.0) is None
    assert rollout.fleet.in_flight() == ()


def test_a_worker_tells_which_of_its_requests_wait_for_their_turn(rollout: Any) -> None:
    with rollout.fleet.stream() as stream:
        for key, prompt in enumerate(PROMPTS):
            stream.submit(key, prompt, sampling=GREEDY, seed=0)
        assert stream.next(0.1) is None
        handle = rollout.handles[0]
        ids = [f"{rollout.fleet._calls}-{key}-{key}" for key in range(20)]
        waiting = rollout.session.get(handle.actor.queued.remote([*ids, "gone"]))
        mine = [one for one in rollout.fleet.in_flight() if one.device == FIRST]
        assert 0 < len(waiting) <= len(mine) - 8
        keys = {int(each.split("-")[1]) for each in waiting}
        assert keys == {one.key for one in mine[-len(waiting) :]}
        assert all(one.tokens == 0 for one in mine if one.key in keys)


def test_more_prompt_tokens_than_one_step_takes_are_no_problem_for_seeded_requests(
    rollout: Any,
) -> None:
    prompts = [[(at + i) % 64 for i in range(190)] for at in range(30)]
    responses = rollout.fleet.generate(prompts, sampling=dataclasses.replace(SEEDED, min_tokens=5))
    assert {r.exactness for r in responses} == {Exactness.EXACT}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"presence_penalty": 0.5}, "presence_penalty = 0.5 is not supported: it counts"),
        ({"frequency_penalty": -1.0}, "frequency_penalty = -1 is not supported: it counts"),
        ({"stop": ("\n",)}, "the engines have no tokenizer"),
        ({"min_tokens": 300}, "min_tokens 300 must be 0 to 150"),
    ],
)
def test_sampling_that_cannot_be_continued_is_refused_before_anything_runs(
    rollout: Any, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        generate(rollout, dataclasses.replace(GREEDY, **change))
    with (
        rollout.fleet.stream() as stream,
        pytest.raises(UserError, match=message),
    ):
        stream.submit(0, [1], sampling=dataclasses.replace(GREEDY, **change), seed=0)


def test_every_prompt_that_does_not_fit_is_named_before_anything_runs(rollout: Any) -> None:
    prompts = [[1], [], [1] * 260, [2]]
    with pytest.raises(UserError, match="prompt 1 has 0 tokens, prompt 2 has 260 tokens") as found:
        rollout.fleet.generate(prompts, sampling=GREEDY)
    assert found.value.details == {"prompts": [1, 2]}
    with pytest.raises(UserError, match="outside the engine's vocabulary of 64"):
        rollout.fleet.generate([[1, 64]], sampling=GREEDY)


def test_a_worker_leaves_only_when_its_requests_have_somewhere_to_go(rollout: Any) -> None:
    with rollout.fleet.stream() as stream:
        begin(stream, rollout.fleet, count=4)
        with pytest.raises(ConflictError, match="can go on nowhere: no other worker is awake"):
            rollout.fleet.leave([FIRST, SECOND])
        homes = {one.key: SECOND for one in rollout.fleet.in_flight() if one.device == FIRST}
        assert rollout.fleet.leave([FIRST], homes=homes).requests == len(homes) == 2
        assert {one.device for one in rollout.fleet.in_flight()} == {SECOND}
        rollout.handles[0].awake = False
        assert rollout.session.get(rollout.handles[0].actor.park.remote()) == 0
        assert len([stream.next(30.0) for _ in range(4)]) == 4
    with pytest.raises(UserError, match="r9/0 is no rollout device"):
        rollout.fleet.leave([DeviceId.parse("r9/0")])
    rollout.wake()


def test_a_worker_of_other_weights_gets_no_response_that_began_with_these(
    rollout: Any, reference: Any
) -> None:
    """As when a job is one step off-policy and a device is woken after the next sync."""
    held = rollout.handles[0].version
    rollout.fleet.leave([SECOND])
    rollout.session.get(rollout.handles[1].actor.park.remote())
    reference.move(3)
    rollout.publish(held + 1, reference.tensors())
    rollout.trainer_version[0] = held
    (report,) = rollout.wake_only(1)
    assert report.version == held + 1
    taken: list[int] = []

    def join(progress: Mapping[str, Any]) -> None:
        if not taken:
            taken.append(rollout.fleet.join([SECOND]))

    rollout.fleet.leave([SECOND])
    responses = generate(rollout, GREEDY, join)
    assert 0 < taken[0] < 20
    assert {r.weight_version for r in responses} == {held, held + 1}
    with rollout.fleet.stream() as stream:
        begin(stream, rollout.fleet, count=2)
        with pytest.raises(ConflictError, match=f"no other worker holds weight version {held}"):
            rollout.fleet.leave([FIRST])
    rollout.trainer_version[0] = held + 1
    with pytest.raises(StaleWeightsError, match=f"r0/0 holds weight version {held}"):
        generate(rollout, GREEDY)
