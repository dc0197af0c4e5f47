"""A tail that moves to one of two real engines: are its tokens the very same, is none missing?

Two vLLM engines on two cores, no train running; responses as long as those of a reasoning model,
scaled down. Each is sampled on one engine alone, on two, and on two of which one is given up once
80 % of the responses are there. About a minute.
"""

from __future__ import annotations

import csv
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmux.cluster import DeviceId
from rmux.run.driver.engines import MoveReport, Response, Sampling
from rmux.run.driver.fleet import RayFleet, RolloutHandle
from rmux.run.driver.ray_session import RaySession
from rmux.run.workers.vllm import RolloutWorker
from rmux.run.workers.vllm_engine import EngineOptions
from scripts.benches._document import finish, flags, row

_LENGTHS = Path("tests/data/lengths/skythought.csv")
_SET = "math-7b-math500"
_LONGEST_TOKENS = 600
_REQUESTS = 64
_MOVE_AT = 0.8
_VOCABULARY = 64
_PROMPT_TOKENS = 12
_KINDS = {"greedy": 0.0, "seeded": 1.0}
"""By temperature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    responses: tuple[Response, ...]
    seconds: float
    freed_s: float
    """When the second engine had nothing left to do."""
    move: MoveReport | None = None


def rows(*, repetitions: int = 3) -> list[dict[str, Any]]:
    """A row per kind of sampling, each with `tokens_missing` and `exact_fraction`."""
    with two_workers() as fleet:
        return [_row(fleet, kind, repetitions) for kind in _KINDS]


def tokens_missing(reference: Sequence[Response], found: Sequence[Response]) -> int:
    """Tokens of the uninterrupted responses that the others lack."""
    pairs = zip(reference, found, strict=True)
    return sum(max(0, len(one.tokens) - len(other.tokens)) for one, other in pairs)


def exact_fraction(reference: Sequence[Response], found: Sequence[Response]) -> float:
    """Share of the responses that are token for token what they are uninterrupted."""
    pairs = list(zip(reference, found, strict=True))
    return sum(one.tokens == other.tokens for one, other in pairs) / len(pairs)


@contextmanager
def two_workers() -> Iterator[RayFleet]:
    """A fleet of two engines that are awake, each on a core of its own (one, if there is one)."""
    folder = Path(tempfile.mkdtemp(prefix="rmux-", dir="/tmp"))
    session = RaySession(job_id="j-tail", temp_dir=folder, run_tag=folder.name)
    try:
        _make_model(folder / "model")
        session.start()
        cores = sorted(os.sched_getaffinity(0))
        handles = []
        for index in range(2):
            device = f"r0/{index}"
            actor = session.actor(
                RolloutWorker,
                device=device,
                cores=(cores[index % len(cores)],),
                environ={},
                name=f"rollout worker {device}",
                threads=6,
            )
            session.meet(actor)
            handles.append(RolloutHandle(device=device, actor=actor))
        options = EngineOptions(
            model_path=str(folder / "model"),
            max_model_len=_LONGEST_TOKENS + _PROMPT_TOKENS,
            max_num_seqs=_REQUESTS,
            kv_cache_bytes=256 * 2**20,
        )
        session.get([handle.actor.prepare.remote(options) for handle in handles])
        session.get([handle.actor.init.remote() for handle in handles])
        session.get([handle.actor.wake.remote(None) for handle in handles])
        for handle in handles:
            handle.awake = True
        yield RayFleet(
            session,
            handles,
            max_model_len=options.max_model_len,
            max_num_seqs=options.max_num_seqs,
            max_staleness=0,
            seed=0,
            trainer_version=lambda: 0,
        )
    finally:
        session.close()
        shutil.rmtree(folder, ignore_errors=True)


def run(fleet: RayFleet, kind: str, *, move: bool) -> Run:
    """One rollout; with `move` the second engine is given up once most responses are there."""
    second = DeviceId.parse("r0/1")
    begun_s = time.monotonic()
    freed_s, report = 0.0, None
    found: dict[int, Response] = {}
    with fleet.stream() as stream:
        for key, length in enumerate(_lengths()):
            sampling = Sampling(temperature=_KINDS[kind], max_tokens=length, ignore_eos=True)
            prompt = [(7 * key + 3 * at) % _VOCABULARY for at in range(_PROMPT_TOKENS)]
            stream.submit(key, prompt, sampling=sampling, seed=1000 + key)
        while (taken := stream.next(60.0)) is not None:
            found[taken[0]] = taken[1]
            if move and report is None and len(found) >= _MOVE_AT * _REQUESTS:
                report = fleet.leave([second])
            if not freed_s and all(one.device != second for one in fleet.in_flight()):
                freed_s = time.monotonic() - begun_s
    if move:
        fleet.join([second])
    return Run(
        responses=tuple(found[key] for key in sorted(found)),
        seconds=time.monotonic() - begun_s,
        freed_s=freed_s,
        move=report,
    )


def _row(fleet: RayFleet, kind: str, repetitions: int) -> dict[str, Any]:
    second = [DeviceId.parse("r0/1")]
    fleet.leave(second)
    reference = run(fleet, kind, move=False).responses
    fleet.join(second)
    stayed, moved = [], []
    for _ in range(repetitions):
        stayed.append(run(fleet, kind, move=False))
        moved.append(run(fleet, kind, move=True))
    everything = [*stayed, *moved]
    missing = sum(tokens_missing(reference, one.responses) for one in everything)
    exact = [exact_fraction(reference, one.responses) for one in moved]
    reports = [one.move for one in moved if one.move is not None]
    return row(
        f"responses that are the same token for token, {kind}, tail moved to one of two engines",
        exact,
        unit="ratio",
        seconds=_seconds(stayed, moved),
        facts={
            "responses": _REQUESTS,
            "tokens": sum(_lengths()),
            "moved": [one.requests for one in reports],
            "moved exactly": [one.exact for one in reports],
            "tokens carried": [one.tokens_carried for one in reports],
            "tokens recomputed": [one.tokens_recomputed for one in reports],
            "exact without a move": [exact_fraction(reference, one.responses) for one in stayed],
        },
        keys={"engine": "real", "tokens_missing": missing, "exact_fraction": min(exact)},
    )


def _seconds(stayed: Sequence[Run], moved: Sequence[Run]) -> Mapping[str, float]:
    """Of the fastest run each: the others waited for something else."""
    return {
        "second engine free, moved": min(one.freed_s for one in moved),
        "second engine free, not moved": min(one.freed_s for one in stayed),
        "rollout, moved": min(one.seconds for one in moved),
        "rollout, not moved": min(one.seconds for one in stayed),
        "the move": min(one.move.seconds for one in moved if one.move is not None),
    }


def _lengths() -> list[int]:
    """Of the file's heaviest tail, every so many, scaled to `_LONGEST_TOKENS`."""
    with _LENGTHS.open() as file:
        found = [int(each["approx_tokens"]) for each in csv.DictReader(file) if each["set"] == _SET]
    chosen = sorted(found)[:: max(1, len(found) // _REQUESTS)][-_REQUESTS:]
    # Mixed, but the same each time: sorted, one engine would get all the long ones.
    mixed = [chosen[(7 * at) % len(chosen)] for at in range(len(chosen))]
    return [max(4, round(length * _LONGEST_TOKENS / max(found))) for length in mixed]


def _make_model(folder: Path) -> None:
    """0.3 M parameters, random."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = Qwen3Config(
        vocab_size=_VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    asked = parser.parse_args()
    finish("tail-real", rows(repetitions=asked.repetitions), asked=asked)


if __name__ == "__main__":
    main()
