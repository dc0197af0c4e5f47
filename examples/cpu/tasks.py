"""Prompts and rewards of the two example jobs.

A prompt source is called as name(rng, count) in the job's driver; a reward as name(prompt,
response) in a sandbox of its own. Both jobs start from random weights.
"""

import itertools
import random
import string

COPY_LETTERS = string.ascii_lowercase[:16]


def copy_prompts(rng: random.Random, count: int) -> list[str]:
    """Eight different letters, of sixteen."""
    return ["".join(rng.sample(COPY_LETTERS, 8)) for _ in range(count)]


def copy_reward(prompt: str, response: str) -> float:
    """Fraction of the response's characters that stand in the prompt; 1/8 by chance."""
    return sum(character in prompt for character in response) / max(1, len(response))


def sort_prompts(rng: random.Random, count: int) -> list[str]:
    """Ten characters in any order."""
    symbols = string.ascii_letters + string.digits
    return ["".join(rng.choices(symbols, k=10)) for _ in range(count)]


def sort_reward(prompt: str, response: str) -> float:
    """Fraction of adjacent pairs that are small letters in ascending order; 0.086 by chance."""
    letters = set(string.ascii_lowercase)
    pairs = list(itertools.pairwise(response))
    ascending = sum(a in letters and b in letters and a <= b for a, b in pairs)
    return ascending / max(1, len(pairs))
