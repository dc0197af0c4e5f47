from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmux.errors import WorkerError
from rmux.run.driver.ledger import Ledger, Part
from rmux.run.workers.step_loop import Delta


def delta(part: Part, offset: int, tokens: list[int], reason: str = "") -> Delta:
    return Delta(
        request_id=part.id,
        offset=offset,
        tokens=tuple(tokens),
        logprobs=tuple(-token / 10 for token in tokens),
        finish_reason=reason,
    )


def book(*prompts: list[int], max_tokens: int = 4, call: int = 0) -> Ledger:
    ledger = Ledger(call=call)
    for key, prompt in enumerate(prompts):
        ledger.open(key, prompt, max_tokens=max_tokens)
    return ledger


def test_tokens_are_booked_in_order_with_their_logprobs_and_version() -> None:
    ledger = book([1, 2], [3])
    first, second = ledger.start(0), ledger.start(1)
    assert (first.prompt, first.max_tokens) == ((1, 2), 4)
    assert ledger.record(delta(first, 0, [10, 11]), version=7)
    assert ledger.record(delta(first, 2, [12, 13], "length"), version=7)
    assert ledger.unfinished() == [1]
    assert (ledger.finish_reason(0), ledger.finish_reason(1)) == ("length", "")
    response = ledger.take(0)
    assert response.tokens == (10, 11, 12, 13)
    assert response.logprobs == (-1.0, -1.1, -1.2, -1.3)
    assert (response.weight_version, response.finish_reason) == (7, "length")
    assert 0 not in ledger
    ledger.record(delta(second, 0, [5], "stop"), version=7)
    assert (ledger.num_done, ledger.num_tokens, ledger.unfinished()) == (2, 5, [])


def test_a_flush_that_comes_twice_counts_once() -> None:
    ledger = book([1])
    part = ledger.start(0)
    assert ledger.record(delta(part, 0, [10, 11]), version=0)
    assert not ledger.record(delta(part, 0, [10, 11]), version=0)
    assert ledger.record(delta(part, 0, [10, 11, 12]), version=0)
    assert (ledger.length(0), ledger.budget(0), ledger.num_tokens) == (3, 1, 3)


def test_a_flush_that_comes_too_early_waits_for_the_one_before() -> None:
    ledger = book([1])
    part = ledger.start(0)
    assert not ledger.record(delta(part, 2, [12, 13], "length"), version=0)
    assert ledger.length(0) == 0
    assert ledger.unfinished() == [0]
    assert ledger.record(delta(part, 0, [10, 11]), version=0)
    assert ledger.unfinished() == []
    assert ledger.take(0).tokens == (10, 11, 12, 13)


def test_a_second_part_starts_from_the_tokens_so_far_and_the_first_is_not_heard_again() -> None:
    ledger = book([1, 2], max_tokens=5, call=3)
    first = ledger.start(0)
    ledger.record(delta(first, 0, [10, 11]), version=4)
    second = ledger.start(0)
    assert second.id != first.id
    assert (second.prompt, second.max_tokens, second.start) == ((1, 2, 10, 11), 3, 2)
    assert not ledger.record(delta(first, 2, [99]), version=4)
    assert ledger.record(delta(second, 0, [12, 13, 14], "length"), version=4)
    response = ledger.take(0)
    assert (response.prompt_tokens, response.tokens) == ((1, 2), (10, 11, 12, 13, 14))
    assert response.weight_version == 4


def test_a_response_never_gets_tokens_of_two_weight_versions() -> None:
    ledger = book([1])
    ledger.record(delta(ledger.start(0), 0, [10]), version=4)
    assert ledger.version(0) == 4
    with pytest.raises(WorkerError, match=r"weight version 5, its response began under 4") as found:
        ledger.record(delta(ledger.start(0), 0, [11]), version=5)
    assert found.value.code == "ledger.version"


def test_a_response_that_begins_again_has_its_whole_budget_and_any_version() -> None:
    ledger = book([1])
    ledger.record(delta(ledger.start(0), 0, [10, 11]), version=4)
    assert ledger.restart(0) == 2
    assert (ledger.budget(0), ledger.version(0), ledger.num_tokens) == (4, None, 0)
    assert ledger.record(delta(ledger.start(0), 0, [12], "stop"), version=5)
    assert (ledger.take(0).tokens, ledger.num_done) == ((12,), 1)


def test_a_key_may_be_used_again_once_its_response_was_taken() -> None:
    ledger = book([1])
    first = ledger.start(0)
    ledger.record(delta(first, 0, [10], "stop"), version=0)
    ledger.take(0)
    ledger.open(0, [2], max_tokens=3)
    second = ledger.start(0)
    assert (second.id != first.id, second.prompt, ledger.num_opened) == (True, (2,), 2)
    assert not ledger.record(delta(first, 0, [10], "stop"), version=0)


def test_other_tokens_for_a_booked_position_are_an_error() -> None:
    ledger = book([1])
    part = ledger.start(0)
    ledger.record(delta(part, 0, [10, 11]), version=0)
    with pytest.raises(WorkerError, match="other tokens for positions 0 to 2") as caught:
        ledger.record(delta(part, 0, [10, 12]), version=0)
    assert caught.value.code == "ledger.conflict"


def test_parts_of_two_calls_have_different_names() -> None:
    assert book([1], call=1).start(0).id != book([1], call=2).start(0).id


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 6))
def test_any_order_and_doubling_of_flushes_gives_every_token_once(
    seed: int, length: int, pieces: int
) -> None:
    source = random.Random(seed)
    tokens = [source.randrange(1000) for _ in range(length)]
    ledger = book([1], max_tokens=length)
    part = ledger.start(0)
    cuts = sorted({0, length, *(source.randrange(length + 1) for _ in range(pieces))})
    deltas = [
        delta(part, begin, tokens[begin:end], "length" if end == length else "")
        for begin, end in itertools.pairwise(cuts)
    ]
    deltas += source.choices(deltas, k=pieces)
    source.shuffle(deltas)
    for one in deltas:
        ledger.record(one, version=0)
    assert (ledger.num_done, ledger.unfinished()) == (1, [])
    response = ledger.take(0)
    assert list(response.tokens) == tokens
    assert list(response.logprobs) == [-token / 10 for token in tokens]
