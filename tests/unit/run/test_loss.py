"""The loss of GRPO and its advantages."""

import math

import pytest
import torch

from rmux.run.driver.advantage import group_advantages
from rmux.run.driver.engines import Response, Sample
from rmux.run.driver.loss import max_gap, policy_loss, token_logprobs
from rmux.run.workers.train_batch import deal

CLIP = {"clip_low": 0.2, "clip_high": 0.3}


def sample(tokens, *, prompt=(1, 2), advantage=1.0, seed=0):
    rng = torch.Generator().manual_seed(seed)
    logprobs = tuple((-torch.rand(tokens, generator=rng) * 3).tolist())
    ids = tuple(torch.randint(0, 11, (tokens,), generator=rng).tolist())
    response = Response(
        prompt_tokens=prompt,
        tokens=ids,
        logprobs=logprobs,
        weight_version=0,
        finish_reason="length",
    )
    return Sample(response=response, advantage=advantage)


def padded(samples, width):
    rows = max(1, len(samples))
    tokens = torch.zeros(rows, width, dtype=torch.long)
    sampled, mask = torch.zeros(rows, width), torch.zeros(rows, width, dtype=torch.bool)
    advantages = torch.zeros(rows)
    for row, each in enumerate(samples):
        count = len(each.response.tokens)
        tokens[row, :count] = torch.tensor(each.response.tokens)
        sampled[row, :count] = torch.tensor(each.response.logprobs)
        mask[row, :count], advantages[row] = True, each.advantage
    return tokens, sampled, mask, advantages


def gradient(samples, *, micro_batch, ranks):
    """Of a small net over one mini-batch, dealt as given; ranks are averaged as DeepSpeed does."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Embedding(11, 16), torch.nn.Tanh(), torch.nn.Linear(16, 11))
    total = [torch.zeros_like(param) for param in net.parameters()]
    for (batch,) in deal(samples, mini_batch=len(samples), micro_batch=micro_batch, ranks=ranks):
        net.zero_grad()
        for chosen in batch.passes:
            tokens, sampled, mask, advantages = padded(chosen, 9)
            logprobs = token_logprobs(net(tokens.roll(1, dims=1)), tokens)
            found = policy_loss(
                logprobs,
                sampled=sampled,
                advantages=advantages,
                mask=mask,
                denominator=batch.denominator,
                **CLIP,
            )
            (found.loss * ranks).backward()
        for sum_, param in zip(total, net.parameters(), strict=True):
            sum_ += param.grad / ranks
    return torch.cat([part.flatten() for part in total])


UNEVEN = [
    sample(n, advantage=a, seed=n)
    for n, a in ((9, 1.0), (1, -2.0), (4, 0.5), (7, 3.0), (2, -1.0), (5, 0.1), (8, -0.7), (3, 2.0))
]


@pytest.mark.parametrize(("micro_batch", "ranks"), [(1, 1), (2, 1), (3, 1), (4, 2), (1, 3), (2, 5)])
def test_the_gradient_does_not_depend_on_passes_or_ranks(micro_batch, ranks):
    whole = gradient(UNEVEN, micro_batch=8, ranks=1)
    assert whole.norm() > 0.01
    torch.testing.assert_close(
        gradient(UNEVEN, micro_batch=micro_batch, ranks=ranks), whole, rtol=1e-5, atol=1e-7
    )


def test_a_mean_per_pass_would_depend_on_the_split():
    """Guards the test above: uneven lengths do tell the two apart."""
    parts = [gradient(UNEVEN[i : i + 2], micro_batch=2, ranks=1) for i in range(0, 8, 2)]
    whole = gradient(UNEVEN, micro_batch=8, ranks=1)
    assert not torch.allclose(torch.stack(parts).mean(0), whole, rtol=1e-2)


def test_log_probabilities_are_those_of_the_tempered_distribution():
    logits, tokens = torch.randn(2, 3, 7), torch.randint(0, 7, (2, 3))
    for temperature in (1.0, 0.5):
        expected = torch.log_softmax(logits / temperature, -1).gather(-1, tokens[..., None])
        torch.testing.assert_close(
            token_logprobs(logits, tokens, temperature=temperature), expected[..., 0]
        )


def loss_of(ratio, advantage):
    logprobs = torch.tensor([[math.log(ratio)]], requires_grad=True)
    found = policy_loss(
        logprobs,
        sampled=torch.zeros(1, 1),
        advantages=torch.tensor([advantage]),
        mask=torch.ones(1, 1, dtype=torch.bool),
        denominator=1,
        **CLIP,
    )
    found.loss.backward()
    return found, logprobs.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (1.0, 1.0, True),
        (1.29, 1.0, True),
        (1.31, 1.0, False),  # good and already likelier than clip_high allows
        (0.5, 1.0, True),
        (0.81, -1.0, True),
        (0.79, -1.0, False),  # bad and already rarer than clip_low allows
        (2.0, -1.0, True),
    ],
)
def test_the_ratio_is_clipped_on_each_side_by_its_own_bound(ratio, advantage, moves):
    found, slope = loss_of(ratio, advantage)
    assert (slope != 0) is moves
    assert float(found.clipped_tokens) == (0 if moves else 1)
    if moves:
        assert slope == pytest.approx(-ratio * advantage, rel=1e-5)


def test_padding_changes_nothing_however_wild_it_is():
    _, sampled, mask, advantages = padded(UNEVEN[:3], 9)
    logprobs = torch.where(mask, sampled - 0.1, torch.tensor(1000.0)).requires_grad_()
    found = policy_loss(
        logprobs, sampled=sampled, advantages=advantages, mask=mask, denominator=14, **CLIP
    )
    found.loss.backward()
    assert torch.isfinite(found.loss)
    assert torch.isfinite(logprobs.grad).all()
    assert (logprobs.grad[~mask] == 0).all()


def test_the_largest_gap_counts_only_response_tokens_and_fears_nan():
    sampled = torch.tensor([[0.0, -1.0, -2.0]])
    mask = torch.tensor([[False, True, True]])
    assert max_gap(torch.tensor([[9.0, -1.5, -2.0]]), sampled, mask) == pytest.approx(0.5)
    assert max_gap(torch.tensor([[9.0, float("nan"), -2.0]]), sampled, mask) == math.inf
    assert max_gap(torch.tensor([[9.0, 0.0, 0.0]]), sampled, torch.zeros_like(mask)) == 0


def test_every_rank_gets_as_many_passes_and_every_sequence_is_dealt_once():
    samples = [*UNEVEN[:5], sample(0), *UNEVEN[5:]]
    dealt = deal(samples, mini_batch=5, micro_batch=2, ranks=3)
    assert len({tuple(len(batch.passes) for batch in rank) for rank in dealt}) == 1
    seen = [each for rank in dealt for batch in rank for chosen in batch.passes for each in chosen]
    assert sorted(map(id, seen)) == sorted(map(id, UNEVEN))  # all but the one without tokens
    assert [batch.denominator for batch in dealt[0]] == [23, 16]


def test_advantages_are_relative_to_the_other_responses_of_the_prompt():
    assert group_advantages([1.0, 3.0]) == pytest.approx([-1.0, 1.0], abs=1e-5)
    assert group_advantages([0.4, 0.4, 0.4]) == pytest.approx([0.0] * 3, abs=1e-9)
    assert group_advantages([]) == []


def test_a_response_without_a_reward_is_nobodys_measure():
    with_failed = group_advantages([1.0, None, 3.0])
    assert with_failed[1] is None
    assert [with_failed[0], with_failed[2]] == group_advantages([1.0, 3.0])
    assert group_advantages([None, None]) == [None, None]
