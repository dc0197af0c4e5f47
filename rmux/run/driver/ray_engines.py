"""The real engines of a job: vLLM and DeepSpeed actors in the job's own Ray instance."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmux.cluster import DeviceId, PoolKind
from rmux.errors import BackendError, RmuxError, SpecError, WorkerError
from rmux.group import nodes_of
from rmux.ids import NodeId
from rmux.run import processes
from rmux.run.driver.engines import SPILL_FOLDER, DriverConfig, ShedKind, ShedReport
from rmux.run.driver.fleet import RayFleet, RolloutHandle
from rmux.run.driver.model_check import check_same_model
from rmux.run.driver.ray_session import RaySession
from rmux.run.workers import vllm_gate
from rmux.run.workers.cache import CacheFiles, HostWeightCache
from rmux.run.workers.vllm import RolloutWorker
from rmux.run.workers.vllm_engine import EngineOptions

if TYPE_CHECKING:
    from rmux.run.driver.trainer import RayTrainer

_log = logging.getLogger(__name__)

_START_S = 300.0
_CALL_S = 120.0


class RayEngines:
    """Engines of one job on one host, on CPU devices. See `Engines` for each method.

    BackendError for nodes on several hosts or of another kind, SpecError for a spec that the
    engines cannot run.
    """

    def __init__(self, config: DriverConfig) -> None:
        check(config)
        self._config = config
        self._session = RaySession(
            job_id=config.job_id, temp_dir=config.temp_dir, run_tag=config.run_tag
        )
        self._options = engine_options(config)
        self._nodes = {node.id: node for node in config.nodes}
        self._caches: dict[str, Any] = {}
        self._handles: dict[DeviceId, RolloutHandle] = {}
        self._trainer: RayTrainer | None = None
        self._fleet: RayFleet | None = None
        self._inited: set[PoolKind] = set()
        self._gated: dict[DeviceId, int] = {}
        self._versions: dict[str, str] = {}
        self._closed = False

    def prepare(self) -> None:
        import ray

        from rmux.run.driver.trainer import RayTrainer

        self._session.start()
        for node_id in nodes_of(self._config.placement.rollout):
            self._caches[node_id] = self._session.actor(
                HostWeightCache,
                run_tag=self._config.run_tag,
                node=node_id,
                name=f"cache {node_id}",
                threads=8,
            )
        for device in self._config.placement.rollout:
            actor = self._session.actor(
                RolloutWorker,
                device=str(device),
                cores=self._cores(device),
                environ={processes.TAG_VARIABLE: f"{self._config.run_tag}-ray"},
                name=f"rollout worker {device}",
                threads=6,
            )
            self._handles[device] = RolloutHandle(device=str(device), actor=actor)
        imports = [handle.actor.prepare.remote(self._options) for handle in self._handles.values()]
        # The ranks import while the rollout workers do.
        self._trainer = RayTrainer(self._config, self._session, list(self._caches.values()))
        self._trainer.prepare()
        self._session.get(imports, timeout_s=_START_S, what="the imports of the rollout workers")
        for actor in (*self._caches.values(), *(h.actor for h in self._handles.values())):
            self._session.meet(actor)
        first = next(iter(self._handles.values())).actor
        self._versions = {"ray": ray.__version__, **self._session.get(first.versions.remote())}
        self._fleet = RayFleet(
            self._session,
            list(self._handles.values()),
            max_model_len=self._options.max_model_len,
            max_num_seqs=self._options.max_num_seqs,
            max_staleness=self._config.spec.max_staleness,
            seed=self._config.spec.seed,
            trainer_version=lambda: self.trainer().weights_version,
        )

    def init(self, kind: PoolKind) -> float:
        if kind is PoolKind.TRAIN:
            seconds = self.trainer().init()
            self.trainer().park()
        else:
            seconds = max(self._on_rollout("init", self._handles, timeout_s=_START_S))
        self._inited.add(kind)
        self._check_models()
        return seconds

    def wake(self, kind: PoolKind, devices: Sequence[DeviceId] | None = None) -> float:
        if kind is PoolKind.TRAIN:
            return self.trainer().wake()
        begun_s = time.monotonic()
        woken = self._chosen(devices)
        with self.trainer().commits:
            refs = [
                handle.actor.wake.remote(CacheFiles.of(self._config.run_tag, device.node))
                for device, handle in woken.items()
            ]
            reports = self._session.get(refs, timeout_s=_CALL_S, what="a wake")
        for handle, report in zip(woken.values(), reports, strict=True):
            handle.version = report.version
        self._gate(woken)
        for handle in woken.values():
            handle.awake = True
        return time.monotonic() - begun_s

    def park(self, kind: PoolKind, devices: Sequence[DeviceId] | None = None) -> float:
        if kind is PoolKind.TRAIN:
            return self.trainer().park()
        begun_s = time.monotonic()
        chosen = self._chosen(devices)
        for handle in chosen.values():
            handle.awake = False
        self._on_rollout("park", chosen, timeout_s=_CALL_S)
        return time.monotonic() - begun_s

    def pids(self, device: DeviceId) -> tuple[int, ...]:
        if device in self._handles:
            return (self._session.meet(self._handles[device].actor),)
        return self._trainer.pids(device) if self._trainer is not None else ()

    def fleet(self) -> RayFleet:
        if self._fleet is None:
            raise BackendError("the engines are not prepared", code="backend.unprepared")
        return self._fleet

    def trainer(self) -> RayTrainer:
        if self._trainer is None:
            raise BackendError("the engines are not prepared", code="backend.unprepared")
        return self._trainer

    def save(self, folder: Path) -> int:
        return self.trainer().save(folder)

    def restore(self, folder: Path) -> None:
        self.trainer().restore(folder)
        self.trainer().publish(self.fleet())

    def shed(self, what: ShedKind, *, node: NodeId) -> ShedReport | None:
        if what is ShedKind.SPILL:
            freed = self.trainer().spill(self._config.run_dir / SPILL_FOLDER, node=node)
            return None if freed is None else ShedReport(what=what, freed_bytes=freed)
        refs = [handle.actor.drop_caches.remote() for handle in self._on_node(node)]
        if node in self._caches:
            refs.append(self._caches[node].drop_older.remote())
        freed = sum(self._session.get(refs, timeout_s=_CALL_S, what="dropping caches"))
        return ShedReport(what=what, freed_bytes=freed + self.trainer().drop_caches(node=node))

    def spilled(self) -> tuple[NodeId, ...]:
        return self._trainer.spilled() if self._trainer is not None else ()

    def versions(self) -> dict[str, str]:
        trained = self._trainer.versions() if self._trainer is not None else {}
        return {**trained, **self._versions}

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        calls: list[Callable[[], Any]] = [
            lambda: self._session.get(
                [cache.close.remote() for cache in self._caches.values()], timeout_s=5.0
            )
        ]
        if self._trainer is not None:
            calls.append(self._trainer.close)
        for call in calls if self._caches else ():
            try:
                call()
            except RmuxError as error:
                _log.warning("while closing: %s", error)
        self._session.close()
        for node_id in nodes_of(self._config.placement.rollout):
            for path in CacheFiles.of(self._config.run_tag, node_id).all:
                path.unlink(missing_ok=True)

    def _check_models(self) -> None:
        """Once both sides are there. WorkerError when they hold models of different kinds."""
        trained = self.trainer().model
        if PoolKind.ROLLOUT not in self._inited or trained is None:
            return
        held = self._on_rollout("model", self._handles, timeout_s=_CALL_S)
        for device, model in zip(self._handles, held, strict=True):
            check_same_model(model, trained, where=str(device))

    def _gate(self, woken: Mapping[DeviceId, RolloutHandle]) -> None:
        """Compare each worker that holds a version for the first time with the trainer's numbers.

        One step off-policy the trainer may be one version ahead of what is sampled: its numbers are
        those it had at that version. WorkerError 'sync.gate'. Nothing has been sampled there yet.
        """
        if PoolKind.TRAIN not in self._inited:
            return
        newest = self.trainer().gate_reference()
        oldest = newest.version - self._config.spec.max_staleness
        version = min(handle.version for handle in woken.values())
        reference = self.trainer().reference_of(version)
        other = next((h for h in woken.values() if h.version != version), None)
        if other is not None or reference is None or version < oldest:
            held = sorted({handle.version for handle in woken.values()})
            raise WorkerError(
                f"{', '.join(map(str, woken))} hold weight versions {held}, the trainer scored "
                f"{newest.version}: the sync is missing",
                code="sync.gate",
            )
        due = {d: h for d, h in woken.items() if self._gated.get(d) != version}
        vllm_gate.check_sequences(reference.sequences, max_model_len=self._options.max_model_len)
        refs = [handle.actor.score.remote(reference.sequences) for handle in due.values()]
        scored = self._session.get(refs, timeout_s=_CALL_S, what="the sync gate")
        for device, logprobs in zip(due, scored, strict=True):
            vllm_gate.compare(reference.logprobs, logprobs, version=version, where=str(device))
            self._gated[device] = version

    def _chosen(self, devices: Sequence[DeviceId] | None) -> dict[DeviceId, RolloutHandle]:
        return {d: h for d, h in self._handles.items() if devices is None or d in devices}

    def _on_rollout(
        self, method: str, handles: Mapping[DeviceId, RolloutHandle], *, timeout_s: float
    ) -> list[Any]:
        refs = [getattr(handle.actor, method).remote() for handle in handles.values()]
        return list(self._session.get(refs, timeout_s=timeout_s, what=f"{method} of a worker"))

    def _on_node(self, node: NodeId) -> list[RolloutHandle]:
        return [handle for device, handle in self._handles.items() if device.node == node]

    def _cores(self, device: DeviceId) -> tuple[int, ...]:
        node = self._nodes[device.node]
        return node.cores[device.index] if node.cores else ()


def check(config: DriverConfig) -> None:
    """BackendError or SpecError for what these engines cannot run."""
    used = [node for node in config.nodes if node.id in nodes_of(config.placement.devices)]
    other = next((node for node in used if node.device_kind != "cpu"), None)
    if other is not None:
        raise BackendError(
            f"node {other.id} is of kind {other.device_kind}; the built-in engines run on 'cpu'",
            code="backend.device",
        )
    hosts = sorted({node.host for node in used})
    if len(hosts) > 1:
        raise BackendError(
            f"the job is placed on hosts {', '.join(hosts)}; the built-in engines share one",
            code="backend.hosts",
        )
    if config.spec.rollout.dtype != "float32":
        raise SpecError(
            f"rollout.dtype {config.spec.rollout.dtype!r} has no established bound for the sync "
            "gate",
            hint='write dtype = "float32"',
        )


def engine_options(config: DriverConfig) -> EngineOptions:
    """SpecError when the model's context is shorter than what the spec asks for."""
    spec = config.spec
    try:
        model = json.loads((Path(spec.model_path) / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise SpecError(
            f"no model at {spec.model_path!r}: {error}", hint="set model.path to a model's folder"
        ) from error
    needed = spec.rollout.max_prompt_tokens + spec.rollout.max_tokens
    context = int(model.get("max_position_embeddings", needed))
    if needed > context:
        raise SpecError(
            f"rollout asks for {needed} tokens in a sequence, the model has a context of {context}"
        )
    return EngineOptions(
        model_path=spec.model_path,
        max_model_len=needed,
        max_num_seqs=spec.rollout.max_num_seqs,
        kv_cache_bytes=spec.rollout.kv_cache_bytes,
        dtype=spec.rollout.dtype,
        seed=spec.seed,
    )
