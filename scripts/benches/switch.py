"""Cold starts and warm ones of the real engines on the CPU, by model size, in seconds.

Cold: from the start of a process to its first token, or to a rank that can step; what needs no
device (imports, configuration) and the load of the model apart, the file read once before (`disk`).
Warm: from the grant to the same point. A rollout worker loads its weights from the host cache, as
after every sync; `discarded` says that the park had given the memory of the old ones back. On the
CPU a training rank's park moves nothing; `moved` is a park that moved all state to host memory of
its own and a wake that moved it back.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmux.run.workers.cache import HostWeightCache, WeightEntry
from rmux.sync.transport.base import Endpoint
from rmux.sync.transport.tcp import send
from scripts.benches._document import finish, flags, row

SIZES = {
    "1 M": {"hidden": 192, "layers": 3, "vocabulary": 512},
    "55 M": {"hidden": 640, "layers": 11, "vocabulary": 4096},
    "110 M": {"hidden": 768, "layers": 15, "vocabulary": 8192},
}
MIDDLE = "55 M"
_MODEL = """
import json, sys, torch
from transformers import Qwen3Config, Qwen3ForCausalLM
size = json.loads(sys.argv[1])
torch.manual_seed(0)
Qwen3ForCausalLM(Qwen3Config(vocab_size=size["vocabulary"], hidden_size=size["hidden"],
    intermediate_size=3 * size["hidden"], num_hidden_layers=size["layers"],
    num_attention_heads=size["hidden"] // 64, num_key_value_heads=size["hidden"] // 64, head_dim=64,
    max_position_embeddings=256, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    pad_token_id=None)).save_pretrained(sys.argv[2])
"""


class Engine:
    """One process of `_switch_process`; `cold` holds the seconds of its start."""

    def __init__(self, **told: Any) -> None:
        argument = json.dumps({**told, "started_s": time.monotonic()})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "scripts.benches._switch_process", argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.cold: dict[str, float] = self._answer()

    def call(self, method: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"an engine process ended with {self._process.wait()}")
        return json.loads(line)


@contextmanager
def engine(**told: Any) -> Iterator[Engine]:
    made = Engine(**told)
    try:
        yield made
    finally:
        made.end()


@dataclass
class Cache:
    """The host cache of a model; each `publish` is a new version of the same weights."""

    model: Path
    version: int = 0

    def __post_init__(self) -> None:
        self._cache = HostWeightCache(run_tag=f"rmux-switch-{os.getpid()}", node="r0")
        self.stem = self._cache._files.stem
        raw = (self.model / "model.safetensors").read_bytes()
        size = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + size])
        self._blob = memoryview(raw)[8 + size :]
        self._entries = [
            WeightEntry(
                name=name,
                dtype="float32",
                shape=tuple(entry["shape"]),
                offset=entry["data_offsets"][0],
            )
            for name, entry in sorted(
                ((n, e) for n, e in header.items() if n != "__metadata__"),
                key=lambda pair: pair[1]["data_offsets"][0],
            )
        ]

    def publish(self) -> None:
        self.version += 1
        name = self._cache.begin(self.version, self._entries, num_bytes=len(self._blob))
        endpoint = Endpoint.parse(self._cache.endpoint())
        sent = send(endpoint, self._blob, transfer_id=name, deadline_s=60.0)
        self._cache.commit(self.version, sent.checksum)

    def close(self) -> None:
        self._cache.close()


def cycles(engines: list[Engine], *, runs: int, moved: bool, before: Callable[[], None]) -> dict:
    """Parks and wakes of all engines at once; the slowest of each run counts."""
    found: dict[str, list[float]] = {"warm_s": [], "park_s": [], "bytes": []}
    with ThreadPoolExecutor(len(engines)) as pool:
        for _ in range(runs + 1):
            parked = list(pool.map(lambda each: each.call("park", moved), engines))
            before()
            woken = list(pool.map(lambda each: each.call("warm"), engines))
            found["park_s"].append(max(each["park_s"] for each in parked))
            found["bytes"].append(max(each["bytes"] for each in parked))
            found["warm_s"].append(max(each["warm_s"] for each in woken))
    # The first makes the buffers that the others use again.
    return {name: values[1:] for name, values in found.items()}


def switch_row(what: str, cold: list[dict[str, float]], warm: dict[str, list[float]]) -> dict:
    cold_s = statistics.median(each["cold_s"] for each in cold)
    warm_s = statistics.median(warm["warm_s"])
    parts = {name: statistics.median(each[name] for each in cold) for name in cold[0]}
    return row(
        what,
        [value / cold_s for value in warm["warm_s"]],
        unit="ratio",
        seconds={
            "cold": cold_s,
            "of it without a device": parts["control_s"],
            "of it the load": parts["load_s"],
            "disk": parts["disk_s"],
            "warm": warm_s,
            "park": statistics.median(warm["park_s"]),
        },
        facts={"bytes": int(max(warm["bytes"])), "cold over warm": cold_s / warm_s},
        keys={"cold_s": cold_s, "warm_s": warm_s},
    )


def rollout_rows(name: str, model: Path, *, runs: int, colds: int) -> tuple[list[dict], dict]:
    cache = Cache(model)
    told = {"model": str(model), "core": CORES[0], "stem": cache.stem}
    try:
        cold = []
        for _ in range(colds - 1):
            with engine(**told) as made:
                cold.append(made.cold)
        with engine(**told) as made:
            cold.append(made.cold)
            cache.publish()
            loaded = cycles([made], runs=runs, moved=False, before=cache.publish)
            moved = cycles([made], runs=runs, moved=True, before=cache.publish)
            phase_s = made.call("phase") if name == MIDDLE else 0.0
        loaded["bytes"] = [len(cache._blob)]
    finally:
        cache.close()
    rows = [
        switch_row(f"rollout {name}: warm over cold, new weights", cold, loaded),
        switch_row(f"rollout {name}: warm over cold, discarded", cold, moved),
    ]
    return rows, {"cold": rows[0]["cold_s"], "warm": rows[0]["warm_s"], "phase": phase_s}


def train_rows(
    name: str, model: Path, *, stages: tuple[int, ...], runs: int, colds: int
) -> tuple[list[dict], dict]:
    rows, facts = [], {}
    for stage in stages:
        told = {"model": str(model), "core": CORES[-1], "stage": stage}
        cold = []
        for _ in range(colds - 1):
            with engine(**told) as made:
                cold.append(made.cold)
        with engine(**told) as made:
            cold.append(made.cold)
            phase_s = made.call("phase")  # moments exist after the first step
            before = made.call("checksum")
            moved = cycles([made], runs=runs, moved=True, before=lambda: None)
            if made.call("checksum") != before:
                raise RuntimeError("the moved weights came back otherwise")
            kept = cycles([made], runs=runs, moved=False, before=lambda: None)
            if name == MIDDLE:
                phase_s = made.call("phase")
        rows.append(switch_row(f"train {name}, ZeRO {stage}: warm over cold, moved", cold, moved))
        if stage == stages[0]:
            rows.append(
                switch_row(f"train {name}, ZeRO {stage}: warm over cold, left in place", cold, kept)
            )
            facts = {"cold": rows[0]["cold_s"], "warm": rows[0]["warm_s"], "phase": phase_s}
    return rows, facts


def at_once_rows(model: Path, *, runs: int) -> list[dict]:
    """All devices of the node at the same time: they share its memory bus."""
    rows = []
    for kind in ("rollout", "train"):
        for count in range(1, len(CORES) + 1):
            with ExitStack() as stack:
                cache = Cache(model)
                stack.callback(cache.close)
                own = {"stem": cache.stem} if kind == "rollout" else {"stage": 1}
                started = [{"model": str(model), "core": core, **own} for core in CORES[:count]]
                with ThreadPoolExecutor(count) as pool:
                    engines = list(
                        pool.map(lambda told: stack.enter_context(engine(**told)), started)
                    )
                before: Callable[[], None] = lambda: None  # noqa: E731
                if kind == "rollout":
                    cache.publish()
                    before = cache.publish
                else:
                    for each in engines:
                        each.call("phase")
                warm = cycles(engines, runs=runs, moved=True, before=before)
                cold = [max((each.cold for each in engines), key=lambda found: found["cold_s"])]
                rows.append(
                    switch_row(
                        f"{kind} {MIDDLE}: {count} of the node's devices at once", cold, warm
                    )
                )
    return rows


def throughput_row(rollout: dict[str, float], train: dict[str, float]) -> dict:
    """Two such jobs in one group, each device switched twice a round: computed, not run."""

    def period_s(switch: str) -> float:
        phases = (rollout["phase"] + rollout[switch], train["phase"] + train[switch])
        return max(sum(phases), 2 * phases[0], 2 * phases[1])

    return row(
        "throughput of two jobs, warm starts on over off, computed from the above",
        [period_s("cold") / period_s("warm")],
        unit="ratio",
        seconds={
            "round on": period_s("warm"),
            "round off": period_s("cold"),
            "rollout phase": rollout["phase"],
            "train phase": train["phase"],
        },
        keys={"cold_s": period_s("cold"), "warm_s": period_s("warm")},
    )


CORES = sorted(os.sched_getaffinity(0))[:2]


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--quick", action="store_true", help="one cold start each, three warm")
    asked = parser.parse_args()
    runs, colds = (3, 1) if asked.quick else (9, 2)
    folder = Path(tempfile.mkdtemp(prefix="rmux-switch-"))
    rows: list[dict] = []
    try:
        for name, size in SIZES.items():
            model = folder / name.replace(" ", "")
            subprocess.run(
                [sys.executable, "-c", _MODEL, json.dumps(size), str(model)],
                check=True,
                capture_output=True,
            )
            found, rollout = rollout_rows(name, model, runs=runs, colds=colds)
            rows += found
            stages = (1, 2, 3) if name == MIDDLE else (1,)
            found, train = train_rows(name, model, stages=stages, runs=runs, colds=colds)
            rows += found
            if name == MIDDLE:
                rows += at_once_rows(model, runs=runs)
                rows.append(throughput_row(rollout, train))
            shutil.rmtree(model)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    finish("switch", rows, asked=asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
