"""Advantages: of responses against their group, and of tokens against values."""

import pytest
import torch

from rmux.run.driver.advantage import group_advantages, grouped_advantages
from rmux.run.driver.gae import Moments, normalised, token_advantages


def test_advantages_are_relative_to_the_other_responses_of_the_prompt():
    assert group_advantages([1.0, 3.0]) == pytest.approx([-1.0, 1.0], abs=1e-5)
    assert group_advantages([0.4, 0.4, 0.4]) == pytest.approx([0.0] * 3, abs=1e-9)
    assert group_advantages([]) == []


def test_a_response_without_a_reward_is_nobodys_measure():
    with_failed = group_advantages([1.0, None, 3.0])
    assert with_failed[1] is None
    assert [with_failed[0], with_failed[2]] == group_advantages([1.0, 3.0])
    assert group_advantages([None, None]) == [None, None]


def test_groups_that_lie_side_by_side_are_measured_apart():
    found = grouped_advantages([1.0, 3.0, 50.0, 50.0], width=2)
    assert found == pytest.approx([-1.0, 1.0, 0.0, 0.0], abs=1e-5)


def by_hand(values, reward, *, gamma, lam):
    """The definition: discounted sum of the temporal differences."""
    ahead = [*values[1:], 0.0]
    rewards = [0.0] * (len(values) - 1) + [reward]
    deltas = [
        r + gamma * after - value for r, after, value in zip(rewards, ahead, values, strict=True)
    ]
    return [
        sum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[at:]))
        for at in range(len(values))
    ]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.0), (0.97, 0.8)])
def test_each_token_gets_the_discounted_sum_of_what_came_unexpected(gamma, lam):
    values = torch.tensor([[9.0, 0.5, -0.2, 0.7, 9.0], [9.0, 9.0, 0.1, 9.0, 9.0]])
    mask = torch.tensor([[False, True, True, True, False], [False, False, True, False, False]])
    found = token_advantages(
        values, rewards=torch.tensor([2.0, -1.0]), mask=mask, gamma=gamma, lam=lam
    )
    assert found[0, 1:4].tolist() == pytest.approx(
        by_hand([0.5, -0.2, 0.7], 2.0, gamma=gamma, lam=lam)
    )
    assert found[1, 2].item() == pytest.approx(-1.1)
    assert (found[~mask] == 0).all()


def test_what_an_environment_said_between_two_turns_is_skipped():
    values = torch.tensor([[0.5, 7.0, 7.0, -0.2, 0.7]])
    mask = torch.tensor([[True, False, False, True, True]])
    found = token_advantages(values, rewards=torch.tensor([1.0]), mask=mask, gamma=0.9, lam=0.8)
    assert found[mask].tolist() == pytest.approx(by_hand([0.5, -0.2, 0.7], 1.0, gamma=0.9, lam=0.8))


def test_advantages_of_all_ranks_together_have_mean_zero_and_deviation_one():
    torch.manual_seed(0)
    parts = [torch.randn(3, 7) * 5 + 2, torch.randn(2, 4) - 8]
    masks = [torch.rand(3, 7) > 0.3, torch.rand(2, 4) > 0.3]
    moments = Moments(count=0, total=0, squares=0)
    for values, mask in zip(parts, masks, strict=True):
        moments += Moments.of(values, mask)
    scaled = [normalised(v, m, moments) for v, m in zip(parts, masks, strict=True)]
    inside = torch.cat([values[mask] for values, mask in zip(scaled, masks, strict=True)])
    assert inside.mean().item() == pytest.approx(0, abs=1e-5)
    assert inside.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert all((values[~mask] == 0).all() for values, mask in zip(scaled, masks, strict=True))
