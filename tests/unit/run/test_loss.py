"""The losses of all recipes, and that none depends on how a batch is split."""

import dataclasses
import math

import pytest
import torch

from rmux.job import TrainSpec
from rmux.run.driver import gae
from rmux.run.driver.engines import Response, Sample
from rmux.run.driver.loss import (
    Target,
    max_gap,
    mean_denominator,
    policy_loss,
    reference_loss,
    token_logprobs,
    total_loss,
    value_loss,
)
from rmux.run.workers.train_batch import deal
from rmux.run.workers.train_tensors import pad

CLIP = {"clip_low": 0.2, "clip_high": 0.3}


def sample(tokens, *, prompt=(1, 2), advantage=1.0, reward=0.0, seed=0, said=0):
    """`said` tokens in the middle are an environment's."""
    rng = torch.Generator().manual_seed(seed)
    logprobs = (-torch.rand(tokens, generator=rng) * 3).tolist()
    mask = [not tokens // 2 <= at < tokens // 2 + said for at in range(tokens)]
    response = Response(
        prompt_tokens=prompt,
        tokens=tuple(torch.randint(0, 11, (tokens,), generator=rng).tolist()),
        logprobs=tuple(value * here for value, here in zip(logprobs, mask, strict=True)),
        weight_version=0,
        finish_reason="length",
        mask=tuple(mask) if said else (),
    )
    return Sample(response=response, advantage=advantage, reward=reward)


UNEVEN = [
    sample(n, advantage=a, reward=a, seed=n, said=n // 3 if n % 2 else 0)
    for n, a in ((9, 1.0), (1, -2.0), (4, 0.5), (7, 3.0), (2, -1.0), (5, 0.1), (8, -0.7), (3, 2.0))
]

RECIPES = {
    "grpo": TrainSpec(clip_high=0.3),
    "dapo": TrainSpec(clip_high=0.28),
    "ppo": TrainSpec(gamma=0.99, gae_lambda=0.9),
    "grpo, sequence mean": TrainSpec(mean="sequence"),
    "dapo, reference": TrainSpec(kl=0.3),
    "ppo, reference": TrainSpec(kl=0.3, gae_lambda=0.5),
}


@pytest.fixture(autouse=True)
def one_thread():
    """Threads cost more than they save here, most of all where the cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = torch.nn.Sequential(torch.nn.Embedding(11, 16), torch.nn.Tanh())
        self.policy, self.value = torch.nn.Linear(16, 11), torch.nn.Linear(16, 1)
        self.double()

    def forward(self, tokens):
        hidden = self.trunk(tokens[:, :-1])
        logits = self.policy(hidden)
        chosen = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
        return chosen, self.value(hidden)[..., 0]


def gradient(samples, *, train, has_values, micro_batch, ranks):
    """Of a small net over one mini-batch, dealt as given; ranks are averaged as DeepSpeed does."""
    net, frozen = Net(), Net()
    with torch.no_grad():
        for param in frozen.parameters():
            param.mul_(0.7)
    parts = deal(samples, mini_batch=len(samples), micro_batch=micro_batch, ranks=ranks)
    passes = [(batch, pad(chosen)) for (batch,) in parts for chosen in batch.passes]
    moments, estimates = gae.Moments(count=0, total=0, squares=0), []
    for _, padded in passes if has_values else ():
        values = net(padded.tokens)[1].detach()
        advantages = gae.token_advantages(
            values,
            rewards=padded.rewards.double(),
            mask=padded.mask,
            gamma=train.gamma,
            lam=train.gae_lambda,
        )
        moments += gae.Moments.of(advantages, padded.mask)
        estimates.append((values, advantages))
    for index, (batch, padded) in enumerate(passes):
        logprobs, values = net(padded.tokens)
        target = Target(
            sampled=padded.sampled,
            mask=padded.mask,
            advantages=padded.advantages,
            denominator=mean_denominator(
                train.mean, padded.mask, tokens=batch.tokens, sequences=batch.sequences
            ),
            reference=frozen(padded.tokens)[0].detach() if train.kl else None,
        )
        if has_values:
            before, advantages = estimates[index]
            target = dataclasses.replace(
                target,
                advantages=gae.normalised(advantages, padded.mask, moments),
                before=before,
                returns=advantages + before,
            )
        found = total_loss(logprobs, values if has_values else None, target, train=train)
        (found.loss * ranks).backward()
    grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in net.parameters()]
    return torch.cat([grad.flatten() for grad in grads]) / ranks


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_gradient_does_not_depend_on_passes_or_ranks(recipe):
    known = {"train": RECIPES[recipe], "has_values": recipe.startswith("ppo")}
    whole = gradient(UNEVEN, micro_batch=8, ranks=1, **known)
    assert whole.norm() > 0.01
    for micro_batch, ranks in ((1, 1), (3, 1), (4, 2), (1, 3), (2, 5)):
        split = gradient(UNEVEN, micro_batch=micro_batch, ranks=ranks, **known)
        torch.testing.assert_close(split, whole, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_gradient_is_that_recipes_own(recipe):
    """Guards the test above: each of its cases is another gradient."""
    found = [
        gradient(UNEVEN, train=train, has_values=name.startswith("ppo"), micro_batch=8, ranks=1)
        for name, train in RECIPES.items()
    ]
    mine = found.pop(list(RECIPES).index(recipe))
    # The upper clips of GRPO and DAPO bind for the same tokens here.
    near = [other for other in found if torch.allclose(other, mine, rtol=1e-3)]
    assert len(near) == (recipe in ("grpo", "dapo"))


def test_a_mean_per_pass_would_depend_on_the_split():
    """Guards the first test: uneven lengths do tell the two apart."""
    known = {"train": RECIPES["dapo"], "has_values": False, "ranks": 1}
    parts = [gradient(UNEVEN[i : i + 2], micro_batch=2, **known) for i in range(0, 8, 2)]
    whole = gradient(UNEVEN, micro_batch=8, **known)
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
        advantages=torch.tensor([[advantage]]),
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
    padded = pad(UNEVEN[:3])
    wild = torch.where(padded.mask, padded.sampled - 0.1, torch.tensor(1000.0)).requires_grad_()
    values = torch.where(padded.mask, padded.sampled, torch.tensor(1e30)).requires_grad_()
    target = Target(
        sampled=padded.sampled,
        mask=padded.mask,
        advantages=padded.advantages,
        denominator=torch.tensor(14.0),
        reference=-wild.detach(),
        before=-values.detach(),
        returns=-values.detach(),
    )
    found = total_loss(wild, values, target, train=TrainSpec(kl=1.0))
    found.loss.backward()
    for part in (found.policy.loss, found.value, found.reference):
        assert torch.isfinite(part)
    for grad in (wild.grad, values.grad):
        assert torch.isfinite(grad).all()
        assert (grad[~padded.mask] == 0).all()
        assert (grad[padded.mask] != 0).any()


def test_the_largest_gap_counts_only_sampled_tokens_and_fears_nan():
    sampled = torch.tensor([[0.0, -1.0, -2.0]])
    mask = torch.tensor([[False, True, True]])
    assert max_gap(torch.tensor([[9.0, -1.5, -2.0]]), sampled, mask) == pytest.approx(0.5)
    assert max_gap(torch.tensor([[9.0, float("nan"), -2.0]]), sampled, mask) == math.inf
    assert max_gap(torch.tensor([[9.0, 0.0, 0.0]]), sampled, torch.zeros_like(mask)) == 0


def test_what_an_environment_said_is_no_part_of_mask_or_denominator():
    padded = pad([sample(6, said=2), sample(3)])
    assert padded.mask.sum(-1).tolist() == [4, 3]
    assert padded.mask[0].tolist() == [False, True, True, True, False, False, True]
    (batches,) = deal([sample(6, said=2), sample(3)], mini_batch=2, micro_batch=2, ranks=1)
    assert (batches[0].tokens, batches[0].sequences) == (7, 2)


def test_the_mean_over_sequences_weighs_short_and_long_ones_alike():
    mask = torch.tensor([[True, True, True, True], [True, False, False, False]])
    by_token = 1 / mean_denominator("token", mask, tokens=5, sequences=2)
    by_sequence = 1 / mean_denominator("sequence", mask, tokens=5, sequences=2)
    assert (by_token * mask).sum(-1).tolist() == pytest.approx([0.8, 0.2])
    assert (by_sequence * mask).sum(-1).tolist() == pytest.approx([0.5, 0.5])


def test_a_value_that_moved_far_enough_is_pulled_no_further():
    mask = torch.ones(1, 1, dtype=torch.bool)

    def slope(value):
        values = torch.tensor([[value]], requires_grad=True)
        value_loss(
            values,
            before=torch.zeros(1, 1),
            returns=torch.ones(1, 1),
            mask=mask,
            clip=0.2,
            denominator=1,
        ).backward()
        return values.grad.item()

    assert slope(0.1) == pytest.approx(-0.9)
    assert slope(0.3) == 0  # beyond the clip, towards what came
    assert slope(-0.3) == pytest.approx(-1.3)  # beyond it, away from what came
    assert slope(2.0) == pytest.approx(1.0)  # past what came


def test_the_divergence_from_the_reference_is_never_negative_and_pulls_towards_it():
    mask = torch.ones(1, 3, dtype=torch.bool)
    reference = torch.tensor([[-1.0, -2.0, -0.5]])
    logprobs = torch.tensor([[-1.5, -2.0, -0.1]], requires_grad=True)
    found = reference_loss(logprobs, reference=reference, mask=mask, denominator=3)
    found.backward()
    terms = [math.exp(d) - d - 1 for d in (0.5, 0.0, -0.4)]
    assert found.item() == pytest.approx(sum(terms) / 3, rel=1e-5)
    assert logprobs.grad[0, 0] < 0 < logprobs.grad[0, 2]
    assert logprobs.grad[0, 1] == 0


def test_every_rank_gets_as_many_passes_and_every_sequence_is_dealt_once():
    samples = [*UNEVEN[:5], sample(0), *UNEVEN[5:]]
    dealt = deal(samples, mini_batch=5, micro_batch=2, ranks=3)
    assert len({tuple(len(batch.passes) for batch in rank) for rank in dealt}) == 1
    seen = [each for rank in dealt for batch in rank for chosen in batch.passes for each in chosen]
    assert sorted(map(id, seen)) == sorted(map(id, UNEVEN))  # all but the one without tokens
    sampled = [each.response.num_sampled for each in UNEVEN]
    assert [batch.tokens for batch in dealt[0]] == [sum(sampled[:5]), sum(sampled[5:])]
    assert [batch.sequences for batch in dealt[0]] == [5, 3]
