"""One engine process of the switch bench: the very workers that run under Ray, driven by lines.

Each line of stdin is JSON [method, *arguments]; each answer a line of JSON on the first stdout. The
process reports when it is ready, with the seconds of its parts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

PROMPT = tuple(range(8))
RESPONSES, TOKENS = 16, 64


class RolloutSide:
    def __init__(self, *, model: str, core: int, stem: str) -> None:
        from rmux.run.workers.cache import CacheFiles
        from rmux.run.workers.vllm import RolloutWorker
        from rmux.run.workers.vllm_engine import EngineOptions

        self._files = CacheFiles(stem=stem)
        self._worker = RolloutWorker(device="r0/0", cores=(core,), environ={})
        options = EngineOptions(
            model_path=model, max_model_len=256, max_num_seqs=32, kv_cache_bytes=128 * 2**20
        )
        self._worker.prepare(options)

    def load(self) -> None:
        self._worker.init()
        self._worker.wake(None)
        self._worker.score([PROMPT])

    def warm(self) -> dict[str, float]:
        """From the grant to the first token, with the weights that the cache holds now."""
        begun_s = time.monotonic()
        report = self._worker.wake(self._files)
        woken_s = time.monotonic()
        self._worker.score([PROMPT])
        return {
            "warm_s": time.monotonic() - begun_s,
            "first_s": time.monotonic() - woken_s,
            "reloaded": float(report.reloaded),
        }

    def park(self, moved: bool) -> dict[str, float]:
        begun_s = time.monotonic()
        moved_bytes = self._worker.park_discarded(self._files) if moved else self._worker.park() * 0
        return {"park_s": time.monotonic() - begun_s, "bytes": moved_bytes}

    def phase(self) -> float:
        from rmux.run.driver.engines import Sampling
        from rmux.run.workers.vllm_engine import Request

        begun_s = time.monotonic()
        sampling = Sampling(max_tokens=TOKENS, ignore_eos=True)
        self._worker.submit(
            [
                Request(id=f"{begun_s}-{at}", prompt=PROMPT, seed=at, sampling=sampling)
                for at in range(RESPONSES)
            ]
        )
        cursor, done = 0, 0
        while done < RESPONSES:
            cursor, deltas = self._worker.poll(cursor, 5.0)
            done += sum(bool(delta.finish_reason) for delta in deltas)
        return time.monotonic() - begun_s


class TrainSide:
    def __init__(self, *, model: str, core: int, stage: int) -> None:
        from rmux.job import TrainSpec
        from rmux.run.workers.deepspeed import TrainRank
        from rmux.run.workers.train_terms import RankSettings

        self._rank = TrainRank(
            RankSettings(
                model_path=model,
                rank=0,
                ranks=1,
                cores=(core,),
                address="127.0.0.1",
                seed=1,
                train=TrainSpec(devices=1, mini_batch=16, micro_batch=8, zero_stage=stage),
                temperature=1.0,
            )
        )
        self._rank.prepare()

    def load(self) -> None:
        self._rank.init(self._rank.listen())

    def warm(self) -> dict[str, float]:
        begun_s = time.monotonic()
        self._rank.wake()
        return {"warm_s": time.monotonic() - begun_s}

    def park(self, moved: bool) -> dict[str, float]:
        begun_s = time.monotonic()
        moved_bytes = self._rank.park_moved() if moved else self._rank.park() * 0
        return {"park_s": time.monotonic() - begun_s, "bytes": moved_bytes}

    def phase(self) -> float:
        from rmux.run.driver.engines import Response, Sample
        from rmux.run.workers.train_batch import deal

        samples = [
            Sample(
                response=Response(
                    prompt_tokens=PROMPT,
                    tokens=tuple((7 * at + step) % 64 for step in range(TOKENS)),
                    logprobs=(-8.0,) * TOKENS,
                    weight_version=0,
                    finish_reason="length",
                ),
                advantage=(-1.0) ** at,
            )
            for at in range(RESPONSES)
        ]
        (batches,) = deal(samples, mini_batch=16, micro_batch=8, ranks=1)
        begun_s = time.monotonic()
        self._rank.step(batches, None)
        return time.monotonic() - begun_s

    def checksum(self) -> str:
        return self._rank.checksum()


def main() -> int:
    told = json.loads(sys.argv[1])
    started_s = told.pop("started_s")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engines print is no answer

    def answer(found: Any) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    side: Any = TrainSide(**told) if "stage" in told else RolloutSide(**told)
    prepared_s = time.monotonic()
    with (Path(told["model"]) / "model.safetensors").open("rb") as file:
        while file.read(2**24):
            pass
    read_s = time.monotonic() - prepared_s
    side.load()
    ready_s = time.monotonic()
    answer(
        {
            "cold_s": ready_s - started_s - read_s,
            "control_s": prepared_s - started_s,
            "load_s": ready_s - prepared_s - read_s,
            "disk_s": read_s,
        }
    )
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        answer(getattr(side, method)(*arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
