"""A job that brings its own engines: a small policy learns which letter follows which.

    rmux job submit own_engines.toml        two devices, granted phase by phase
    python own_engines.py                   alone, in this process

The prompt is a letter of eight, the answer four letters, the reward the share of them that
continue the alphabet. `sampler` lives on the rollout device, `learner` on the training device; each
is there only while its phase runs.
"""

import os
from pathlib import Path

import torch

import rmux

LETTERS, LENGTH, PROMPTS, SAMPLES = 8, 4, 64, 64
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
START = int(os.environ.get("RMUX_START_ITERATION", "0"))
ITERATIONS = int(os.environ.get("RMUX_ITERATIONS", "30"))
RUN_DIR = Path(os.environ.get("RMUX_RUN_DIR", "/nonexistent"))

torch.set_num_threads(1)
torch.manual_seed(START)


def policy() -> torch.nn.Module:
    """Logits of all the answer's letters from the prompt's letter."""
    return torch.nn.Sequential(
        torch.nn.Embedding(LETTERS, 64),
        torch.nn.Linear(64, LENGTH * LETTERS),
        torch.nn.Unflatten(-1, (LENGTH, LETTERS)),
    )


sampler, learner = policy(), policy()
optimizer = torch.optim.Adam(learner.parameters(), lr=1e-2)
weights = {name: value.clone() for name, value in learner.state_dict().items()}


def move_sampler(device: str) -> None:
    sampler.to(device)


def move_learner(device: str) -> None:
    learner.to(device)
    for state in optimizer.state.values():
        state.update({k: v.to(device) for k, v in state.items() if v.dim()})


@rmux.phase("rollout", wake=lambda: move_sampler(DEVICE), park=lambda: move_sampler("cpu"))
def rollout() -> dict:
    sampler.load_state_dict(weights)
    prompts = torch.randint(LETTERS, (PROMPTS, 1)).expand(-1, SAMPLES).to(DEVICE)
    with torch.no_grad():
        answers = torch.distributions.Categorical(logits=sampler(prompts)).sample()
    wanted = (prompts[..., None] + 1 + torch.arange(LENGTH, device=DEVICE)) % LETTERS
    rewards = (answers == wanted).float().mean(-1)
    batch.update(prompts=prompts.cpu(), answers=answers.cpu(), rewards=rewards.cpu())
    return {"reward": rewards.mean().item(), "tokens": answers.numel()}


@rmux.phase("train", wake=lambda: move_learner(DEVICE), park=lambda: move_learner("cpu"))
def train() -> dict:
    prompts, answers, rewards = (batch[k].to(DEVICE) for k in ("prompts", "answers", "rewards"))
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std() + 1e-3)
    chosen = torch.distributions.Categorical(logits=learner(prompts)).log_prob(answers)
    loss = -(advantages[..., None] * chosen).sum(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return {"loss": loss.item()}


@rmux.phase("sync")
def sync() -> None:
    weights.update({name: value.clone() for name, value in learner.state_dict().items()})


def save(finished: int) -> None:
    if RUN_DIR.is_dir():
        state = {"learner": learner.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, RUN_DIR / f"own-{finished}.tmp")
        (RUN_DIR / f"own-{finished}.tmp").rename(RUN_DIR / f"own-{finished}.pt")
        (RUN_DIR / f"own-{finished - 2}.pt").unlink(missing_ok=True)


def load() -> None:
    state = torch.load(RUN_DIR / f"own-{START}.pt")
    learner.load_state_dict(state["learner"])
    optimizer.load_state_dict(state["optimizer"])
    weights.update({name: value.clone() for name, value in learner.state_dict().items()})


batch: dict[str, torch.Tensor] = {}
if START:
    load()
if "RMUX_JOB_ID" not in os.environ:  # alone: nobody wakes the engines or parks them
    move_sampler(DEVICE)
    move_learner(DEVICE)
for iteration in range(START, ITERATIONS):
    report = rollout()
    train()
    save(iteration + 1)
    sync()
    print(f"iteration {iteration} reward {report['reward']:.3f}", flush=True)
