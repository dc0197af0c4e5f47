"""Emulated decoding with lengths: what is sampled, where, and that no token is lost in a move."""

from __future__ import annotations

import math
import random

import pytest

from rmux.cli import preflight
from rmux.clock import ManualClock, SystemClock
from rmux.cluster import DeviceId
from rmux.errors import ConflictError, UserError, WorkerError
from rmux.ids import NodeId
from rmux.job import EmulatedSpec, Engine, JobSpec
from rmux.place.tail import Speed
from rmux.run.driver.engines import Response, Sampling
from rmux.run.workers.emulated_fleet import LengthStream, read_lengths, tokens_of

A, B = (DeviceId(NodeId("r0"), index) for index in range(2))
LENGTHS = (2, 5, 9, 20)
SAMPLING = Sampling(max_tokens=16)


def stream(*devices: DeviceId, max_seqs: int = 4, version: int = 3, clock=None) -> LengthStream:
    return LengthStream(
        devices or (A, B),
        lengths=LENGTHS,
        speed=Speed(step_s=0.001, per_seq_s=0.0001, prefill_s_per_token=0.00001),
        max_seqs=max_seqs,
        version=lambda: version,
        now_s=(clock or SystemClock()).now_s,
    )


def ask(asked: LengthStream, count: int = 12) -> None:
    for key in range(count):
        asked.submit(key, (key, 7), sampling=SAMPLING, seed=100 + key)


def rest(asked: LengthStream, found: dict[int, Response] | None = None) -> dict[int, Response]:
    found = {} if found is None else found
    while (taken := asked.next(math.inf)) is not None:
        assert taken[0] not in found
        found[taken[0]] = taken[1]
    return found


def test_responses_follow_from_prompt_seed_and_weights_alone():
    with stream() as one, stream(A, max_seqs=2) as other, stream(version=4) as newer:
        for each in (one, other, newer):
            ask(each)
        first, second, third = rest(one), rest(other), rest(newer)
    assert first == second
    assert first != third
    assert {one.weight_version for one in third.values()} == {4}
    lengths = {len(one.tokens) for one in first.values()}
    assert lengths == {2, 5, 9, 16}
    for key, response in first.items():
        at_limit = len(response.tokens) == SAMPLING.max_tokens
        assert response.finish_reason == ("length" if at_limit else "stop")
        assert response.tokens == tokens_of(
            (key, 7), seed=100 + key, version=3, length=len(response.tokens)
        )


def test_nothing_is_sent_off_before_the_next_response_is_asked_for():
    clock = ManualClock()
    with stream(clock=clock) as asked:
        ask(asked, 4)
        clock.sleep_s(10.0)
        assert asked.in_flight() == ()
        assert asked.next(0.0) is None
        assert len(asked.in_flight()) == 4


@pytest.mark.parametrize("seed", range(4))
def test_no_token_is_missing_or_there_twice_whoever_leaves_and_joins(seed):
    draw, clock = random.Random(seed), ManualClock()
    with stream() as calm, stream(clock=clock, max_seqs=3) as stirred:
        ask(calm)
        ask(stirred)
        expected, found = rest(calm), {}
        here, moved = {A, B}, 0
        while len(found) < len(expected):
            clock.sleep_s(draw.random() * 0.004)
            taken = stirred.next(0.0)
            found |= {} if taken is None else {taken[0]: taken[1]}
            away = {A, B} - here
            if away and draw.random() < 0.5:
                stirred.join(list(away))
                here = {A, B}
            elif not away and draw.random() < 0.5:
                gone = draw.choice((A, B))
                report = stirred.leave([gone], {})
                assert report.exact == report.requests
                assert all(one.device != gone for one in stirred.in_flight())
                moved += report.tokens_carried
                here = {A, B} - {gone}
    assert moved > 0
    assert found == expected


def test_a_moved_request_goes_to_its_home_with_its_tokens():
    c = DeviceId(NodeId("r0"), 2)
    clock = ManualClock()
    with stream(A, B, c, clock=clock) as asked:
        for key, seed in enumerate((2, 3, 5)):
            asked.submit(key, (key,), sampling=Sampling(min_tokens=50, max_tokens=60), seed=seed)
        assert asked.next(0.0) is None
        clock.sleep_s(0.02)
        before = {one.key: one for one in asked.in_flight()}
        (moving,) = [one.key for one in before.values() if one.device == A]
        report = asked.leave([A], {moving: c})
        after = {one.key: one for one in asked.in_flight()}
        assert report.requests == 1
        assert report.tokens_carried == before[moving].tokens > 0
        assert report.tokens_recomputed == before[moving].tokens + 1
        assert after[moving].device == c
        assert after[moving].tokens == before[moving].tokens


def test_the_last_device_cannot_leave_while_requests_run():
    with stream(A) as asked:
        ask(asked, 2)
        asked.next(0.0)
        with pytest.raises(ConflictError):
            asked.leave([A], {})
        assert len(rest(asked)) in (1, 2)


def test_lengths_of_finished_responses_tell_which_ran_to_the_limit():
    with stream() as asked:
        ask(asked)
        found = rest(asked)
        told = sorted((one.tokens, one.at_limit) for one in asked.finished_lengths())
    assert told == sorted((len(one.tokens), len(one.tokens) == 16) for one in found.values())


def test_a_closed_engine_ends_the_wait():
    with stream(A) as asked:
        asked.submit(0, (1,), sampling=Sampling(min_tokens=10**6, max_tokens=10**6), seed=1)
        asked.stop()
        with pytest.raises(WorkerError):
            asked.next(math.inf)


def test_lengths_are_read_from_plain_lines_and_from_a_set_of_a_csv_file(tmp_path):
    plain, table = tmp_path / "plain", tmp_path / "table.csv"
    plain.write_text("3\n\n40\n")
    table.write_text("set,checkpoint,tokens\na,1,5\nb,1,6\na,2,7\n")
    assert read_lengths(str(plain)) == (3, 40)
    assert read_lengths(str(table)) == (5, 6, 7)
    assert read_lengths(f"{table}:a") == (5, 7)


@pytest.mark.parametrize(
    "text", ["", "length\n", "3\nmany\n", "0\n", "3.5\n", "²\n", "-5\n", "9" * 5000]
)
def test_a_file_of_anything_but_lengths_is_refused(tmp_path, text):
    file = tmp_path / "lengths"
    file.write_text(text)
    with pytest.raises(UserError, match="does not give lengths"):
        read_lengths(str(file))


def test_a_file_that_is_no_text_is_refused(tmp_path):
    file = tmp_path / "lengths"
    file.write_bytes(bytes(range(128, 256)))
    with pytest.raises(UserError, match="cannot read"):
        read_lengths(str(file))
    with pytest.raises(UserError, match="cannot read"):
        read_lengths(str(tmp_path))


def test_lengths_that_cannot_be_used_are_refused_before_the_job_is_stored(tmp_path):
    (tmp_path / "lengths").write_text("many\n")
    spec = JobSpec(
        name="a", engine=Engine.EMULATED, emulated=EmulatedSpec(lengths=str(tmp_path / "lengths"))
    )
    with pytest.raises(UserError, match="does not give lengths"):
        preflight.check(spec, hardware="cpu")
