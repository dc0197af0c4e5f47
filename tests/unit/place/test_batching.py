"""Continuous batching in numbers: steps, places, and requests that go on elsewhere."""

from __future__ import annotations

import pytest

from rmux.cluster import DeviceId
from rmux.errors import InternalError
from rmux.ids import NodeId
from rmux.place.batching import Batching, Request
from rmux.place.tail import Speed

A, B = (DeviceId(NodeId("r0"), index) for index in range(2))


def batching(*devices: DeviceId, max_seqs: int = 4, **speed: float) -> Batching:
    made = Batching(speed=Speed(**{"step_s": 1.0, **speed}), max_seqs=max_seqs)
    made.join(devices, now_s=0.0)
    return made


def requests(*lengths: float, prompt_tokens: int = 0) -> list[Request]:
    return [
        Request(key=key, length=length, prompt_tokens=prompt_tokens)
        for key, length in enumerate(lengths)
    ]


def ends(made: Batching) -> dict[int, float]:
    found: dict[int, float] = {}
    while (next_s := made.next_s()) is not None:
        found |= {key: at_s for at_s, key in made.advance(next_s)}
    return found


def test_every_request_ends_after_its_length_in_steps():
    made = batching(A)
    made.submit(requests(3, 5, 2), now_s=0.0)
    assert ends(made) == pytest.approx({2: 2.0, 0: 3.0, 1: 5.0})


def test_a_step_is_shorter_when_fewer_decode_together():
    made = batching(A, per_seq_s=0.5)
    made.submit(requests(2, 4), now_s=0.0)
    assert ends(made) == pytest.approx({0: 2 * 2.0, 1: 2 * 2.0 + 2 * 1.5})


def test_a_request_without_a_place_waits_for_one():
    made = batching(A, max_seqs=1)
    made.submit(requests(3, 2), now_s=0.0)
    assert ends(made) == pytest.approx({0: 3.0, 1: 5.0})


def test_requests_of_a_device_that_leaves_go_on_from_their_tokens_after_a_prefill():
    made = batching(A, B, prefill_s_per_token=0.1, move_s=0.5)
    made.submit(requests(10, 10), now_s=0.0)
    moved = made.leave([B], now_s=4.0, homes={1: A})
    assert (moved.requests, moved.tokens_carried, moved.tokens_recomputed) == (1, 4, 4)
    assert made.devices == (A,)
    pause_s = 0.5 + 0.4
    assert ends(made) == pytest.approx({0: 10 + pause_s, 1: 10 + pause_s})


def test_what_no_device_has_room_for_waits_and_keeps_its_tokens():
    made = batching(A, B, max_seqs=1)
    made.submit(requests(10, 10), now_s=0.0)
    made.leave([B], now_s=4.0)
    assert ends(made) == pytest.approx({0: 10.0, 1: 16.0})


def test_a_device_that_joins_takes_what_waits_once_it_is_awake():
    made = batching(A, max_seqs=1)
    made.submit(requests(10, 10), now_s=0.0)
    made.join([B], now_s=2.0, ready_s=3.0)
    assert ends(made) == pytest.approx({0: 10.0, 1: 13.0})


def test_a_device_that_joins_evens_out_running_requests_only_where_that_is_faster():
    for per_seq_s, share in ((0.0, {A: 4}), (0.1, {A: 2, B: 2})):
        made = batching(A, per_seq_s=per_seq_s)
        made.submit(requests(10, 10, 10, 10), now_s=0.0)
        made.join([B], now_s=1.0)
        where = [device for device, _ in made.in_flight(now_s=1.0)]
        assert {device: where.count(device) for device in where} == share


def test_dropped_requests_end_nowhere_and_leave_their_place():
    made = batching(A, max_seqs=1)
    made.submit(requests(10, 2, 3), now_s=0.0)
    made.abort([0, 1], now_s=1.0)
    assert ends(made) == pytest.approx({2: 4.0})


def test_tokens_so_far_are_told_at_any_instant():
    made = batching(A, max_seqs=1)
    made.submit(requests(10, 10), now_s=0.0)
    found = {one.key: (device, one.tokens) for device, one in made.in_flight(now_s=2.5)}
    assert found == {0: (A, pytest.approx(2.5)), 1: (None, 0.0)}


def test_time_does_not_go_back():
    made = batching(A)
    made.advance(5.0)
    with pytest.raises(InternalError, match="go back"):
        made.advance(4.0)
