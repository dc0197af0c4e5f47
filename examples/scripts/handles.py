"""A job that uses rmux's engines: the loop is the script's, generation and training are not.

    rmux job submit handles.toml            two devices, granted phase by phase
    RMUX_SPEC=handles.toml python handles.py       alone, on this host

The prompt is eight letters, the reward the share of the response's letters that stand in it.
"""

import os
import random
import statistics

import rmux
from rmux.run.driver.advantage import group_advantages
from rmux.run.driver.engines import Sample, Sampling
from rmux.run.driver.tokenizer import CharTokenizer

START = int(os.environ.get("RMUX_START_ITERATION", "0"))
ITERATIONS = int(os.environ.get("RMUX_ITERATIONS", "3"))
PROMPTS, SAMPLES, LETTERS = 16, 8, "abcdefghijklmnop"


@rmux.runtime_hook
def on_progress(progress):
    """Called a few times a second; rmux shows the numbers in `rmux group watch`."""


@rmux.phase("rollout")
def rollout(iteration):
    rng = random.Random(iteration)
    prompts = ["".join(rng.sample(LETTERS, 8)) for _ in range(PROMPTS)]
    prompts = [prompt for prompt in prompts for _ in range(SAMPLES)]
    responses = fleet.generate(
        [tokenizer.encode(prompt) for prompt in prompts],
        sampling=Sampling(max_tokens=32),
        seeds=[iteration * len(prompts) + index for index in range(len(prompts))],
        on_progress=on_progress,
    )
    rewards = [
        sum(letter in prompt for letter in tokenizer.decode(response.tokens)) / len(response.tokens)
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    found["responses"], found["rewards"] = responses, rewards
    return {"reward": statistics.fmean(rewards)}


@rmux.phase("train")
def train():
    groups = range(0, len(found["rewards"]), SAMPLES)
    advantages = [a for g in groups for a in group_advantages(found["rewards"][g : g + SAMPLES])]
    return trainer.step(
        [
            Sample(response=response, advantage=advantage)
            for response, advantage in zip(found["responses"], advantages, strict=True)
        ]
    )


@rmux.phase("sync")
def sync():
    return trainer.publish(fleet)


tokenizer = CharTokenizer()
fleet, trainer = rmux.fleet(), rmux.trainer()
found = {}
for iteration in range(START, ITERATIONS):
    reward = rollout(iteration)["reward"]
    train()
    sync()
    print(f"iteration {iteration} reward {reward:.3f}", flush=True)
