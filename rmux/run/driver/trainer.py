"""The driver's end of the training ranks: phases, the check of every batch, sync, checkpoints."""

from __future__ import annotations

import dataclasses
import json
import random
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rmux.cluster import DeviceId
from rmux.errors import BackendError, StaleWeightsError, UserError, WorkerError
from rmux.ids import NodeId
from rmux.job import TrainSpec
from rmux.run.driver.engines import DriverConfig, Fleet, Sample, SyncReport, TrainReport
from rmux.run.driver.ray_session import RaySession
from rmux.run.workers import vllm_gate
from rmux.run.workers.cache import WeightEntry
from rmux.run.workers.train_batch import deal
from rmux.run.workers.train_terms import RankReport, RankSettings
from rmux.run.workers.vllm_engine import ModelFacts

GAP_BOUNDS = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}
"""Largest |trainer - sampled| log-probability of an on-policy token, nats, by rollout dtype.

In float32 two right engines differ by 1e-6, by up to 2e-5 where a token is very unlikely; weights
one iteration old by 0.02 in the mean and more in the maximum. The other two are the rounding of
logits near 16, and so a check against gross errors only.
"""

_QUIET_S = 0.02
"""After a park nothing runs in the ranks for so long: their gate proves them idle meanwhile, and
the next job gets the device before the weights are sent, not after."""

_START_S = 300.0
_SYNC_S = 120.0
_FACTS = "trainer.json"


class Reference(NamedTuple):
    """Fixed sequences and the trainer's log-probabilities of their tokens after the first."""

    version: int
    sequences: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]


class RayTrainer:
    """One `SpillingRank` actor per train device. `prepare`, `init`, then phases in turn.

    `cache_handles` are the `HostWeightCache` actors, one per rollout node. Weights are published
    from the parked ranks: nothing here but `init` and `step` needs a device.
    """

    def __init__(
        self, config: DriverConfig, session: RaySession, cache_handles: Sequence[Any] = ()
    ) -> None:
        self._config, self._session = config, session
        self.caches: tuple[Any, ...] = tuple(cache_handles)
        self.weights_version = 0
        """The version every rollout engine has, or gets at its next wake."""
        self.model: ModelFacts | None = None
        """Once it is initialised."""
        self._stepped = False
        self._parked_s = 0.0
        self._ranks: list[Any] = []
        self._spilled: set[NodeId] = set()
        self._manifest: tuple[WeightEntry, ...] = ()
        self._blob_bytes = 0
        self._versions: dict[str, str] = {}
        self.commits = threading.Lock()
        """Held while a version takes the place of another on every node: a wake sees one or the
        other, never both."""
        self._references: tuple[Reference, ...] = ()
        """Of the last two versions, the newest last."""
        self._sequences: tuple[tuple[int, ...], ...] = ()
        _check(config)

    def prepare(self) -> None:
        """Start the rank processes and their imports; no device is used."""
        from rmux.run.workers.train_spill import SpillingRank

        devices = self._config.placement.train
        for rank, device in enumerate(devices):
            settings = _settings(self._config, rank=rank)
            actor = self._session.actor(SpillingRank, settings, name=f"train rank {device}")
            self._ranks.append(actor)
        for actor in self._ranks:
            self._session.meet(actor)
        self._versions = self._on_all("prepare", timeout_s=_START_S)[0]

    def init(self) -> float:
        """Load the model on the granted devices; returns seconds."""
        begun_s = time.monotonic()
        port = self._on_first("listen", timeout_s=_START_S)
        facts = self._on_all("init", port, timeout_s=_START_S)[0]
        self._manifest = self._on_first("manifest", timeout_s=_START_S)
        self.model = ModelFacts(vocabulary=int(facts["vocabulary"]), dtype=self._manifest[0].dtype)
        last = self._manifest[-1]
        self._blob_bytes = last.offset + last.num_bytes
        self._sequences = _reference_sequences(self._config, vocabulary=int(facts["vocabulary"]))
        self._refresh_reference()
        return time.monotonic() - begun_s

    def wake(self) -> float:
        return float(max(self._on_all("wake", timeout_s=_START_S)))

    def park(self) -> float:
        seconds = float(max(self._on_all("park", timeout_s=_START_S)))
        self._parked_s = time.monotonic()
        return seconds

    def drop_caches(self, *, node: NodeId) -> int:
        """Give back what the ranks on the node keep for later only; returns bytes."""
        refs = [rank.drop_caches.remote() for rank in self._on_node(node)]
        return int(sum(self._session.get(refs, timeout_s=_START_S, what="dropping caches")))

    def spill(self, folder: Path, *, node: NodeId) -> int | None:
        """Write the parked state of the ranks on the node to disk and give its memory back.

        Bytes; None while a rank is awake. Whatever needs the state next brings it back.
        """
        refs = [rank.spill.remote(str(folder)) for rank in self._on_node(node)]
        freed = self._session.get(refs, timeout_s=_START_S, what="spilling the train state")
        done = [one for one in freed if one is not None]
        if done:
            self._spilled.add(node)
        return None if len(done) < len(freed) else int(sum(done))

    def spilled(self) -> tuple[NodeId, ...]:
        """Nodes on which ranks have their state on disk."""
        return tuple(sorted(self._spilled))

    def pids(self, device: DeviceId) -> tuple[int, ...]:
        devices = self._config.placement.train
        if device not in devices or not self._ranks:
            return ()
        return (self._session.meet(self._ranks[devices.index(device)]),)

    def step(self, samples: Sequence[Sample]) -> TrainReport:
        """An optimizer step per mini-batch.

        StaleWeightsError for a sample older than `max_staleness`; WorkerError 'policy.gap', with
        no step taken, when the first pass disagrees with the log-probabilities sampled;
        'train.nan', with that step not taken, for a gradient that is not finite.
        """
        spec = self._config.spec
        fresh = self._check_versions(samples)
        dealt = deal(
            samples,
            mini_batch=spec.train.mini_batch,
            micro_batch=spec.train.micro_batch,
            ranks=len(self._ranks),
        )
        bound = GAP_BOUNDS[spec.rollout.dtype]
        refs = [
            rank.step.remote(batches, bound if fresh else None)
            for rank, batches in zip(self._ranks, dealt, strict=True)
        ]
        reports = self._session.get(refs, what="the train phase")
        if reports[0].refused:
            raise WorkerError(
                f"the samples are not on-policy: the first log-probabilities differ by up to "
                f"{reports[0].gap:.2g} where {bound:g} is allowed; no step was taken",
                code="policy.gap",
                hint="the rollout engines held other weights than the trainer: look at the sync",
                details={"gap": reports[0].gap, "bound": bound, "version": self.weights_version},
            )
        self._stepped = self._stepped or reports[0].steps > 0
        if not reports[0].is_finite:
            raise WorkerError(
                f"the gradient of optimizer step {reports[0].steps + 1} of {len(dealt[0])} is not "
                "finite; the step was not taken",
                code="train.nan",
                hint="look at the rewards; else lower train.learning_rate, or go on from the last "
                "checkpoint",
                details={"steps_taken": reports[0].steps, "version": self.weights_version},
            )
        self._refresh_reference()
        report = _report(reports, train=spec.train, has_values=spec.recipe == "ppo")
        if not spec.max_staleness:
            return report
        behind = [self.weights_version - sample.response.weight_version for sample in samples]
        staleness = {"staleness": statistics.fmean(behind)}
        return dataclasses.replace(report, metrics={**report.metrics, **staleness})

    def publish(self, fleet: Fleet) -> SyncReport:
        """Send the weights to every cache, checked on arrival; holds no device.

        Weights that were not changed since keep their version, so it may be sent again.
        """
        begun_s = time.monotonic()
        time.sleep(max(0.0, self._parked_s + _QUIET_S - begun_s))
        version = self.weights_version + 1 if self._stepped else self.weights_version
        get = self._session.get
        begun = [
            cache.begin.remote(version, entries=self._manifest, num_bytes=self._blob_bytes)
            for cache in self.caches
        ]
        ids = get(begun, timeout_s=_SYNC_S, what="begin of a weight cache")
        endpoints = get([cache.endpoint.remote() for cache in self.caches], timeout_s=_SYNC_S)
        targets = list(zip(endpoints, ids, strict=True))
        sent = self._on_all("send", targets, _SYNC_S, timeout_s=2 * _SYNC_S)
        checksum = self._on_first("checksum", timeout_s=_SYNC_S)
        with self.commits:
            commits = [cache.commit.remote(version, checksum=checksum) for cache in self.caches]
            get(commits, timeout_s=_SYNC_S, what="commit of a weight cache")
            self.weights_version, self._stepped = version, False
        return SyncReport(
            version=version,
            sent_bytes=sum(sent),
            seconds=time.monotonic() - begun_s,
            checksum=checksum,
        )

    def gate_reference(self) -> Reference:
        """What the rollout engines must reproduce once they hold the newest weights."""
        if not self._references:
            raise BackendError("the trainer is not initialised", code="backend.deepspeed")
        return self._references[-1]

    def reference_of(self, version: int) -> Reference | None:
        """The same for that version; None unless it is one of the last two."""
        return next((one for one in self._references if one.version == version), None)

    def save(self, folder: Path) -> int:
        """Write weights, optimizer state and counters below `folder`; returns bytes."""
        sizes = self._on_all("save", str(folder), timeout_s=_START_S)
        facts = {
            "weights_version": self.weights_version,
            "stepped": self._stepped,
            "weights": [(entry.name, entry.shape) for entry in self._manifest],
            "reference": self.gate_reference()._asdict(),
        }
        path = folder / _FACTS
        path.write_text(json.dumps(facts))
        return int(sum(sizes)) + path.stat().st_size

    def restore(self, folder: Path) -> None:
        """Load what `save` wrote, also by another number of ranks; `publish` then sends it."""
        self._on_all("restore", str(folder), timeout_s=_START_S)
        facts = json.loads((folder / _FACTS).read_text())
        self.weights_version, self._stepped = facts["weights_version"], facts["stepped"]
        kept = facts["reference"]
        reference = Reference(
            version=kept["version"],
            sequences=tuple(tuple(sequence) for sequence in kept["sequences"]),
            logprobs=tuple(tuple(logprobs) for logprobs in kept["logprobs"]),
        )
        self._references = (reference,)

    def versions(self) -> dict[str, str]:
        return dict(self._versions)

    def close(self) -> None:
        """Leave the process group; the processes end with the session."""
        if self._ranks:
            ranks, self._ranks = self._ranks, []
            self._session.get([rank.close.remote() for rank in ranks], timeout_s=5.0)

    def _check_versions(self, samples: Sequence[Sample]) -> bool:
        """Whether all samples are of the trainer's very weights."""
        versions = {sample.response.weight_version for sample in samples}
        oldest = self.weights_version - self._config.spec.max_staleness
        if wrong := [v for v in versions if not oldest <= v <= self.weights_version]:
            raise StaleWeightsError(
                f"samples of weight version {wrong[0]} cannot train version {self.weights_version}",
                details={"versions": sorted(versions), "version": self.weights_version},
            )
        return versions == {self.weights_version}

    def _refresh_reference(self) -> None:
        version = self.weights_version + 1 if self._stepped else self.weights_version
        # With ZeRO 3 a forward pass is a collective: each rank has a part of every layer.
        every = self._config.spec.train.zero_stage == 3
        refs = [rank.score.remote(self._sequences) for rank in self._ranks[: None if every else 1]]
        scored = self._session.get(refs, timeout_s=_START_S, what="score of the ranks")[0]
        reference = Reference(
            version=version,
            sequences=self._sequences,
            logprobs=tuple(tuple(logprobs) for logprobs in scored),
        )
        older = [one for one in self._references if one.version != version]
        self._references = (*older[-1:], reference)

    def _on_node(self, node: NodeId) -> list[Any]:
        devices = self._config.placement.train
        return [
            rank for rank, device in zip(self._ranks, devices, strict=False) if device.node == node
        ]

    def _on_all(self, method: str, *args: Any, timeout_s: float) -> list[Any]:
        self._spilled.clear()  # whatever a rank does, it does with its state
        refs = [getattr(rank, method).remote(*args) for rank in self._ranks]
        return list(self._session.get(refs, timeout_s=timeout_s, what=f"{method} of the ranks"))

    def _on_first(self, method: str, *args: Any, timeout_s: float) -> Any:
        ref = getattr(self._ranks[0], method).remote(*args)
        return self._session.get(ref, timeout_s=timeout_s, what=f"{method} of the first rank")


def _settings(config: DriverConfig, *, rank: int) -> RankSettings:
    devices = config.placement.train
    node = next(node for node in config.nodes if node.id == devices[rank].node)
    spec = config.spec
    return RankSettings(
        model_path=spec.model_path,
        rank=rank,
        ranks=len(devices),
        cores=node.cores[devices[rank].index] if node.cores else (),
        address="127.0.0.1",
        seed=spec.seed,
        train=spec.train,
        temperature=spec.rollout.temperature,
        value_head=spec.recipe == "ppo",
    )


def _check(config: DriverConfig) -> None:
    spec, nodes = config.spec, {node.id: node for node in config.nodes}
    used = [nodes[device.node] for device in config.placement.train]
    if other := next((node for node in used if node.device_kind != "cpu"), None):
        raise BackendError(
            f"node {other.id} is of kind {other.device_kind}; the built-in trainer runs on 'cpu'",
            code="backend.device",
        )
    if len({node.host for node in used}) > 1:
        raise BackendError(
            "the train devices lie on several hosts; the built-in trainer's ranks share one",
            code="backend.hosts",
        )
    if spec.rollout.temperature <= 0 or spec.rollout.top_p != 1:
        raise UserError(
            f"temperature {spec.rollout.temperature:g} and top_p {spec.rollout.top_p:g} sample "
            "from another distribution than the one that is trained",
            hint="write rollout.temperature above 0 and rollout.top_p = 1",
        )


def _reference_sequences(config: DriverConfig, *, vocabulary: int) -> tuple[tuple[int, ...], ...]:
    """Random but fixed, as many and as long as the sync gate demands."""
    rollout = config.spec.rollout
    # An engine that scores a prompt also has to sample one token after it.
    longest = rollout.max_prompt_tokens + rollout.max_tokens - 1
    length = max(2, min(longest, vllm_gate.LONG_PROMPT_TOKENS))
    rng, count = random.Random(0), -(-vllm_gate.MIN_TOKENS // length)
    return tuple(tuple(rng.randrange(vocabulary) for _ in range(length)) for _ in range(count))


def _report(reports: Sequence[RankReport], *, train: TrainSpec, has_values: bool) -> TrainReport:
    steps, tokens = reports[0].steps, sum(report.tokens for report in reports)
    per_step, per_token = 1.0 / max(1, steps), 1.0 / max(1, tokens)
    metrics = {
        "loss": sum(report.loss for report in reports) * per_step,
        "grad_norm": reports[0].grad_norm * per_step,
        "clip_fraction": sum(report.clipped_tokens for report in reports) * per_token,
        "kl": sum(report.divergence for report in reports) * per_token,
        "train_tokens": float(tokens),
        "denominator_tokens": reports[0].step_tokens * per_step,
        "denominator_sequences": reports[0].step_sequences * per_step,
    }
    if has_values:
        metrics["value_loss"] = sum(report.value_loss for report in reports) * per_step
    if train.kl:
        metrics["kl_reference"] = sum(report.reference for report in reports) * per_step
    return TrainReport(steps=steps, max_logprob_gap=reports[0].gap, metrics=metrics)
