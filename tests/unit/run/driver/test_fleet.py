"""The fleet over stand-ins for its workers: what is sent where, and that no token is lost."""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmux.errors import BackendError, ConflictError, StaleWeightsError, UserError
from rmux.run.driver.engines import Exactness, Sampling
from rmux.run.driver.fleet_lease import Lease
from rmux.run.driver.fleet_stream import RayStream
from tests.support.rollout_workers import alone, check_response, device, make_fleet

SEEDED = Sampling(max_tokens=40, min_tokens=3)
GREEDY = dataclasses.replace(SEEDED, temperature=0.0)
PROMPTS = [[at, 2 * at, 7] for at in range(24)]
SEEDS = list(range(100, 124))


def sent(session: Any) -> list[list[list[str]]]:
    return [[[one.id for one in batch] for batch in w.submits] for w in session.workers]


def test_where_nothing_joins_or_leaves_the_same_requests_meet_the_same_batches() -> None:
    runs = []
    for order in (1, 2):
        fleet, session, _ = make_fleet(seed=order)
        responses = fleet.generate(PROMPTS, sampling=SEEDED, seeds=SEEDS)
        runs.append((sent(session), responses))
    assert runs[0] == runs[1]
    assert [len(batches) for batches in runs[0][0]] == [1, 1, 1]
    assert [len(batches[0]) for batches in runs[0][0]] == [8, 8, 8]
    for prompt, seed, response in zip(PROMPTS, SEEDS, runs[0][1], strict=True):
        assert list(response.tokens) == alone(prompt, sampling=SEEDED, seed=seed)


class Storm:
    """Leaves, joins and deaths, drawn from a seed; one worker always stays."""

    def __init__(self, fleet: Any, session: Any, handles: Any, *, seed: int, deaths: int) -> None:
        self.fleet, self.session, self.handles = fleet, session, handles
        self.random = random.Random(seed)
        self.deaths = deaths
        self.moved = 0

    def __call__(self, progress: Mapping[str, Any]) -> None:
        draw = self.random.random()
        awake = [one for one in self.handles if one.usable]
        chosen = self.random.choice(self.handles)
        if draw < 0.25 and chosen in awake and len(awake) > 1:
            try:
                self.moved += self.fleet.leave([chosen.id]).requests
            except ConflictError:
                return  # of two versions: its responses could go on nowhere
            # Nothing runs there, and nothing is sent there.
            assert not chosen.actor.worker.serves
            assert chosen.id not in {one.device for one in self.fleet.in_flight()}
        elif draw < 0.5 and chosen not in awake and chosen.dead is None:
            self.moved += self.fleet.join([chosen.id])
        elif draw < 0.6 and self.deaths and chosen in awake and len(awake) > 1:
            chosen.actor.worker.dead = True
            self.deaths -= 1


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(2, 4),
    deaths=st.integers(0, 1),
    greedy=st.booleans(),
    versions=st.lists(st.integers(0, 1), min_size=4, max_size=4),
)
def test_whatever_leaves_joins_or_dies_every_token_is_sampled_once_in_its_place(
    seed: int, count: int, deaths: int, greedy: bool, versions: list[int]
) -> None:
    fleet, session, handles = make_fleet(count, seed=seed, versions=versions)
    storm = Storm(fleet, session, handles, seed=seed, deaths=deaths)
    sampling = GREEDY if greedy else SEEDED
    responses = fleet.generate(PROMPTS, sampling=sampling, seeds=SEEDS, on_progress=storm)
    for prompt, seed_, response in zip(PROMPTS, SEEDS, responses, strict=True):
        check_response(response, prompt=prompt, sampling=sampling)
        if response.exactness is Exactness.EXACT:
            version = response.weight_version
            expected = alone(prompt, sampling=sampling, seed=seed_, version=version)
            assert list(response.tokens) == expected
    if storm.deaths == deaths or greedy:
        assert {response.exactness for response in responses} == {Exactness.EXACT}
    assert len(fleet.finished_lengths()) == len(PROMPTS)
    assert fleet.in_flight() == ()
    assert not any(handle.actor.worker.serves for handle in handles if handle.dead is None)


def test_workers_leave_and_join_from_another_thread_meanwhile() -> None:
    fleet, _, handles = make_fleet(3)
    prompts = [[at, 3] for at in range(90)]
    over, moved = threading.Event(), []

    def churn() -> None:
        at = 0
        while not over.wait(0.001):
            moved.append(fleet.leave([handles[at % 3].id]).requests)
            fleet.join([handles[at % 3].id])
            at += 1

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        responses = fleet.generate(prompts, sampling=SEEDED, seeds=range(90))
    finally:
        over.set()
        thread.join()
    assert sum(moved) > 0
    for at, response in enumerate(responses):
        assert list(response.tokens) == alone(prompts[at], sampling=SEEDED, seed=at)
        assert response.exactness is Exactness.EXACT


def test_a_dead_workers_random_numbers_are_lost_and_never_drawn_twice() -> None:
    fleet, session, handles = make_fleet(2)
    struck: list[int] = []

    def kill(progress: Mapping[str, Any]) -> None:
        if not struck and progress["tokens"] > 30:
            struck.extend(one.tokens for one in fleet.in_flight() if one.device == device(0))
            session.workers[0].dead = True

    responses = fleet.generate(PROMPTS, sampling=SEEDED, seeds=SEEDS, on_progress=kill)
    drawn = [r for r in responses if r.exactness is Exactness.SAME_DISTRIBUTION]
    assert 0 < len(drawn) <= len(struck)
    assert handles[0].dead is not None
    continued = [one for batch in session.workers[1].submits[1:] for one in batch]
    for request in continued:
        key = int(request.id.split("-")[1])
        begun = len(request.prompt) > len(PROMPTS[key])
        assert (request.seed != SEEDS[key]) == begun


def test_a_continued_request_asks_for_the_rest_only() -> None:
    fleet, session, _ = make_fleet(2)
    sampling = dataclasses.replace(GREEDY, min_tokens=30, ignore_eos=True)

    def leave(progress: Mapping[str, Any]) -> None:
        if progress["tokens"] > 60:
            fleet.leave([device(0)])

    fleet.generate(PROMPTS, sampling=sampling, seeds=SEEDS, on_progress=leave)
    parts = [one for batch in session.workers[1].submits[1:] for one in batch]
    assert parts
    for part in parts:
        done = len(part.prompt) - 3
        assert part.sampling.max_tokens == 40 - done
        assert part.sampling.min_tokens == max(0, 30 - done)


def test_a_joiner_takes_waiting_requests_before_running_ones() -> None:
    fleet, _, handles = make_fleet(2)
    fleet.leave([device(1)])
    handles[1].awake = False
    with fleet.stream() as stream:
        for key in range(10):
            stream.submit(key, PROMPTS[key], sampling=GREEDY, seed=0)
        assert stream.next(0.0) is None
        handles[1].awake = True
        assert fleet.join([device(1)]) == 5
        moved = {one.key for one in fleet.in_flight() if one.device == device(1)}
        assert moved == {5, 6, 7, 8, 9}


def test_a_response_finishes_under_the_version_it_began_with() -> None:
    fleet, _, _ = make_fleet(3, versions=[0, 1, 0])
    with fleet.stream() as stream:
        for key in range(12):
            stream.submit(key, PROMPTS[key], sampling=GREEDY, seed=0)
        for _ in range(6):
            stream.next(0.0)
        begun = {one.key for one in fleet.in_flight() if one.device == device(0) and one.tokens}
        fleet.leave([device(0)])
        after = {one.key: one.device for one in fleet.in_flight()}
        assert begun
        assert {after[key] for key in begun if key in after} == {device(2)}
        with pytest.raises(ConflictError, match="no other worker holds weight version 0"):
            fleet.leave([device(2)])


def test_weights_that_are_too_old_are_refused_by_stream_and_join() -> None:
    newest = [0]
    fleet, _, _ = make_fleet(2, trainer_version=lambda: newest[0], versions=[1, 0])
    fleet.leave([device(1)])
    newest[0] = 2
    with fleet.stream(), pytest.raises(StaleWeightsError, match="r/1 holds weight version 0, the"):
        fleet.join([device(1)])
    newest[0] = 3
    with pytest.raises(StaleWeightsError, match="r/0 holds weight version 1"):
        fleet.stream()


def test_nothing_is_changed_when_requests_could_go_on_nowhere() -> None:
    fleet, session, _ = make_fleet(2)
    with fleet.stream() as stream:
        for key in range(4):
            stream.submit(key, PROMPTS[key], sampling=GREEDY, seed=0)
        stream.next(0.0)
        before = [worker.serves for worker in session.workers]
        with pytest.raises(ConflictError, match="no other worker is awake"):
            fleet.leave([device(0), device(1)])
        with pytest.raises(ConflictError, match="cannot go on at r/0"):
            fleet.leave([device(0)], homes={0: device(0)})
        with pytest.raises(UserError, match="r/7 is no rollout device"):
            fleet.leave([device(7)])
        with pytest.raises(ConflictError, match="another stream of the fleet is open"):
            fleet.stream()
        assert [worker.serves for worker in session.workers] == before
    assert [worker.serves for worker in session.workers] == [[], []]
    fleet.leave([device(0), device(1)])
    with pytest.raises(ConflictError, match="no rollout worker is awake"):
        fleet.generate(PROMPTS, sampling=GREEDY)


def test_the_homes_that_were_chosen_are_taken() -> None:
    fleet, _, _ = make_fleet(3)
    with fleet.stream() as stream:
        for key in range(9):
            stream.submit(key, PROMPTS[key], sampling=GREEDY, seed=0)
        stream.next(0.0)
        keys = [one.key for one in fleet.in_flight() if one.device == device(0)]
        report = fleet.leave([device(0)], homes=dict.fromkeys(keys, device(2)))
        placed = {one.key: one.device for one in fleet.in_flight()}
        assert report.requests == len(keys) == 3
        assert {placed[key] for key in keys} == {device(2)}


class Impatient(Lease):
    """Overdue is what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[int] = []
        self.excused: list[int] = []

    def excuse(self, key: int) -> None:
        self.excused.append(key)

    def overdue(self, served: Mapping[int, int], *, watched_s: float) -> list[int]:
        keys, self.keys = self.keys, []
        return keys


def leased(lease: Lease) -> tuple[RayStream, Any]:
    _, session, handles = make_fleet(2)
    stream = RayStream(
        session,  # type: ignore[arg-type]
        handles,
        call=1,
        max_num_seqs=4,
        check=lambda key, prompt, sampling: None,
        check_version=lambda handle: None,
        lease=lease,
    )
    return stream, session


def test_a_request_that_waits_for_room_in_the_cache_is_left_where_it_is() -> None:
    lease = Impatient()
    stream, session = leased(lease)
    with stream:
        for key in range(4):
            stream.submit(key, PROMPTS[key], sampling=SEEDED, seed=SEEDS[key])
        stream.next(0.0)
        session.workers[0].starved = {session.workers[0].serves[0]}
        lease.keys = [0]
        while lease.excused != [0]:
            stream.next(0.0)
        assert len(session.workers[1].submits) == 1
        session.workers[0].starved.clear()
        while (taken := stream.next(10.0)) is not None:
            check_response(taken[1], prompt=PROMPTS[taken[0]], sampling=SEEDED)


def test_a_request_that_its_worker_forgot_is_asked_for_again_elsewhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lease = Impatient()
    stream, session = leased(lease)
    with stream, caplog.at_level(logging.WARNING):
        for key in range(4):
            stream.submit(key, PROMPTS[key], sampling=SEEDED, seed=SEEDS[key])
        assert stream.next(0.0) is None
        forgotten = session.workers[0].serves[0]
        session.workers[0].forget(forgotten)
        lease.keys = [0]
        found = {}
        while (taken := stream.next(10.0)) is not None:
            found[taken[0]] = taken[1]
    assert "request 0 got no token at r/0" in caplog.text
    assert sorted(found) == [0, 1, 2, 3]
    for key, response in found.items():
        check_response(response, prompt=PROMPTS[key], sampling=SEEDED)


def test_a_lease_ends_only_while_others_get_on_and_not_for_ever() -> None:
    lease = Lease(lease_s=10.0, max_renewals=1)
    tokens = {1: 0, 2: 0}

    def watch(seconds: int, *, growing: tuple[int, ...]) -> list[int]:
        found = []
        for _ in range(seconds):
            for key in growing:
                tokens[key] += 1
            found += lease.overdue(tokens, watched_s=1.0)
        return found

    assert watch(30, growing=()) == []
    assert watch(5, growing=(1, 2)) == []
    assert watch(10, growing=(1,)) == []
    assert watch(5, growing=(1,)) == [2]
    lease.excuse(2)
    assert watch(12, growing=(1,)) == [2]
    with pytest.raises(BackendError, match="request 2 made no progress for 10 s, 2 times"):
        watch(15, growing=(1,))


def test_time_in_which_nobody_looked_ends_no_lease() -> None:
    lease = Lease(lease_s=10.0)
    for at in range(5):
        assert lease.overdue({1: at, 2: 0}, watched_s=100.0) == []


def test_a_failure_of_a_move_reaches_the_thread_that_waits_too() -> None:
    fleet, session, _ = make_fleet(2)
    with fleet.stream() as stream:
        for key in range(4):
            stream.submit(key, PROMPTS[key], sampling=GREEDY, seed=0)
        stream.next(0.0)
        for worker in session.workers:
            worker.dead = True
        with pytest.raises(BackendError, match="the stand-in died"):
            fleet.leave([device(0)])
        with pytest.raises(BackendError, match="the stand-in died"):
            stream.next(1.0)
