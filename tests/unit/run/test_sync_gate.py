from __future__ import annotations

import math

import pytest

from rmux.errors import WorkerError
from rmux.run.workers.vllm_gate import check_sequences, compare


def test_numbers_within_the_bound_pass_with_their_gap() -> None:
    assert compare([[-1.0, -2.0]], [[-1.0, -2.000004]], version=1, where="r0/0") == pytest.approx(
        4e-6
    )


def test_the_bound_grows_with_how_unlikely_a_token_is() -> None:
    """Rounding does; the same gap at a likely token is refused."""
    assert compare([[-0.1, -20.0]], [[-0.1, -20.00015]], version=1, where="r0/0") > 1e-4
    with pytest.raises(WorkerError, match="is not the trainer's"):
        compare([[-0.1, -20.0]], [[-0.10015, -20.0]], version=1, where="r0/0")


@pytest.mark.parametrize("engine", [[[-1.0, -2.1]], [[-1.0, math.nan]], [[-1.0]], []])
def test_other_numbers_are_refused(engine: list[list[float]]) -> None:
    with pytest.raises(WorkerError) as caught:
        compare([[-1.0, -2.0]], engine, version=3, where="r0/0")
    assert caught.value.code == "sync.gate"


def test_the_refusal_carries_the_number() -> None:
    with pytest.raises(WorkerError, match=r"weight version 3 at r0/0 .* by up to 0\.1, 1e-05"):
        compare([[-1.0, -2.0]], [[-1.0, -2.1]], version=3, where="r0/0")


def test_too_few_or_too_short_sequences_prove_nothing() -> None:
    check_sequences([[0] * 129, [0] * 127], max_model_len=512)
    with pytest.raises(WorkerError, match="got 128 with one of 128"):
        check_sequences([[0] * 128], max_model_len=512)
    with pytest.raises(WorkerError, match="one sequence of 129, got 300 with one of 100"):
        check_sequences([[0] * 100] * 3, max_model_len=512)


def test_an_engine_of_short_sequences_is_checked_with_the_longest_that_fit() -> None:
    check_sequences([[0] * 63] * 5, max_model_len=64)
    with pytest.raises(WorkerError):
        check_sequences([[0] * 40] * 8, max_model_len=64)
