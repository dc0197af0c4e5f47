"""A model of 0.3 M parameters, a placement on this host's cores, and a rollout side to drive."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rmux.cluster import DeviceId, Node
from rmux.group import Placement
from rmux.ids import NodeId, PoolName
from rmux.job import JobSpec, RolloutSpec, TrainSpec
from rmux.run import processes
from rmux.run.driver.engines import DriverConfig
from rmux.run.driver.fleet import RayFleet, RolloutHandle
from rmux.run.driver.ray_session import RaySession
from rmux.run.workers.cache import CacheFiles, HostWeightCache, WeightEntry
from rmux.run.workers.vllm import RolloutWorker, WakeReport
from rmux.run.workers.vllm_engine import EngineOptions

VOCABULARY = 64
END = 5


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engines)
            # Their warnings are not ours to fix.
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen3 with a tied head; context of 1024 tokens."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        eos_token_id=END,
    )
    folder = tmp_path_factory.mktemp("tiny")
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


class Reference:
    """The same model by transformers, with weights that can be moved."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def move(self, seed: int, *, scale: float = 0.02) -> None:
        generator = self._torch.Generator().manual_seed(seed)
        with self._torch.no_grad():
            for param in self._model.parameters():
                param.add_(self._torch.randn(param.shape, generator=generator) * scale)

    def tensors(self) -> dict[str, Any]:
        """As a trainer sends them: the tied head is not there a second time."""
        state = self._model.state_dict()
        return {name: tensor for name, tensor in state.items() if name != "lm_head.weight"}

    def logprobs(self, tokens: list[int], *, temperature: float = 1.0) -> list[float]:
        """Of each token but the first."""
        torch = self._torch
        with torch.no_grad():
            logits = self._model(torch.tensor([tokens])).logits[0, :-1] / temperature
        return (
            logits.log_softmax(-1)
            .gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0]
            .double()
            .tolist()
        )


@pytest.fixture
def reference(tiny_model: Path) -> Reference:
    return Reference(tiny_model)


@pytest.fixture(scope="session")
def make_config(tiny_model: Path) -> Iterator[Callable[..., DriverConfig]]:
    """DriverConfigs on nodes r0 and t0 of this host, one device per core."""
    cores = sorted(os.sched_getaffinity(0))
    folders: list[Path] = []

    def make(
        *, rollout_devices: int = 1, model: Path | None = None, **rollout: Any
    ) -> DriverConfig:
        folder = Path(tempfile.mkdtemp(prefix="rmux-", dir="/tmp"))
        folders.append(folder)
        spec = JobSpec(
            name="tiny",
            model_path=str(model or tiny_model),
            rollout=RolloutSpec(
                **{
                    "devices": rollout_devices,
                    "max_prompt_tokens": 200,
                    "max_tokens": 200,
                    "kv_cache_bytes": 64 * 2**20,
                    **rollout,
                }
            ),
            train=TrainSpec(micro_batch=8, mini_batch=8),
        )
        return DriverConfig(
            job_id=f"j-{folder.name}",
            group_id="g-1",
            attempt=1,
            spec=spec,
            placement=Placement(
                rollout=tuple(DeviceId(NodeId("r0"), at) for at in range(rollout_devices)),
                train=(DeviceId(NodeId("t0"), 0),),
            ),
            nodes=(
                _node("r0", "rollout", tuple((core,) for core in cores[:rollout_devices])),
                _node("t0", "train", (cores[-1:],)),
            ),
            run_dir=folder,
            temp_dir=folder,
            run_tag=folder.name,
            channel_url="",
            heartbeat_s=1.0,
            gates=("r0", "t0"),
        )

    yield make
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _node(name: str, pool: str, cores: tuple[Any, ...]) -> Node:
    return Node(
        id=NodeId(name),
        pool=PoolName(pool),
        host=socket.gethostname(),
        device_kind="cpu",
        num_devices=len(cores),
        cores=tuple(tuple(part) for part in cores),
        host_memory_bytes=16 * 2**30,
    )


class ProbedWorker(RolloutWorker):
    """A worker that can be made to forget what sync must not forget."""

    def forget_head(self, forget: bool) -> None:
        assert self._engine is not None
        self._engine._tied = not forget

    def carry_states(self, carry: bool) -> bool:
        """As if the engine's random numbers could (not) be carried; what it was before."""
        assert self._engine is not None
        before, self._engine.carries_states = self._engine.carries_states, carry
        return before

    def affinities(self) -> list[list[int]]:
        return [sorted(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")]

    def nicenesses(self) -> list[int]:
        return [
            os.getpriority(os.PRIO_PROCESS, int(task)) for task in os.listdir("/proc/self/task")
        ]


@dataclass
class Rollout:
    """The rollout side of a job without its trainer."""

    config: DriverConfig
    session: RaySession
    cache: Any
    handles: list[RolloutHandle]
    seconds: dict[str, float]
    trainer_version: list[int] = field(default_factory=lambda: [0])
    fleet: RayFleet = field(init=False)

    def __post_init__(self) -> None:
        self.fleet = self.new_fleet()

    def new_fleet(self) -> RayFleet:
        """As an attempt makes it at its start."""
        spec = self.config.spec
        return RayFleet(
            self.session,
            self.handles,
            max_model_len=spec.rollout.max_prompt_tokens + spec.rollout.max_tokens,
            max_num_seqs=spec.rollout.max_num_seqs,
            max_staleness=spec.max_staleness,
            seed=spec.seed,
            trainer_version=lambda: self.trainer_version[0],
        )

    @property
    def files(self) -> CacheFiles:
        return CacheFiles.of(self.config.run_tag, "r0")

    def publish(self, version: int, tensors: Mapping[str, Any]) -> None:
        """As a trainer does it."""
        from rmux.sync.transport.base import Endpoint
        from rmux.sync.transport.tcp import send

        blob, entries = pack(tensors)
        name = self.session.get(self.cache.begin.remote(version, entries))
        endpoint = Endpoint.parse(self.session.get(self.cache.endpoint.remote()))
        sent = send(endpoint, memoryview(blob), transfer_id=name, deadline_s=30.0)
        self.session.get(self.cache.commit.remote(version, sent.checksum))
        self.trainer_version[0] = version

    def wake(self) -> list[WakeReport]:
        return self.wake_only(*range(len(self.handles)))

    def wake_only(self, *chosen: int) -> list[WakeReport]:
        handles = [self.handles[at] for at in chosen]
        refs = [handle.actor.wake.remote(self.files) for handle in handles]
        reports = self.session.get(refs, timeout_s=60.0)
        for handle, report in zip(handles, reports, strict=True):
            handle.awake, handle.version = True, report.version
        return reports

    def park(self) -> None:
        for handle in self.handles:
            handle.awake = False
        self.session.get([handle.actor.park.remote() for handle in self.handles], timeout_s=60.0)

    def score(self, sequences: list[list[int]], *, at: int = 0) -> list[list[float]]:
        return self.session.get(self.handles[at].actor.score.remote(sequences), timeout_s=60.0)


def pack(tensors: Mapping[str, Any]) -> tuple[bytes, list[WeightEntry]]:
    entries, parts, offset = [], [], 0
    for name, tensor in tensors.items():
        raw = tensor.contiguous().numpy().tobytes()
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = tuple(tensor.shape)
        entries.append(WeightEntry(name=name, dtype=dtype, shape=shape, offset=offset))
        parts.append(raw)
        offset += len(raw)
    return b"".join(parts), entries


@pytest.fixture(scope="module")
def start_rollout(
    make_config: Callable[..., DriverConfig],
) -> Iterator[Callable[..., Rollout]]:
    """Starts Ray, one cache and a worker per device; everything ends with the module's tests, as
    a process has one Ray at a time."""
    started: list[RaySession] = []

    def start(**options: Any) -> Rollout:
        # The actors' processes cannot import the tests.
        import sys

        import ray.cloudpickle

        ray.cloudpickle.register_pickle_by_value(sys.modules[ProbedWorker.__module__])
        config = make_config(**options)
        begun_s = time.monotonic()
        session = RaySession(job_id=config.job_id, temp_dir=config.temp_dir, run_tag=config.run_tag)
        started.append(session)
        session.start()
        seconds = {"ray": time.monotonic() - begun_s}
        cache = session.actor(HostWeightCache, run_tag=config.run_tag, node="r0", name="cache r0")
        handles = []
        for device in config.placement.rollout:
            actor = session.actor(
                ProbedWorker,
                device=str(device),
                cores=config.nodes[0].cores[device.index],
                environ={},
                name=f"rollout worker {device}",
                threads=6,
            )
            session.meet(actor)
            handles.append(RolloutHandle(device=str(device), actor=actor))
        spec = config.spec
        engine = EngineOptions(
            model_path=spec.model_path,
            max_model_len=spec.rollout.max_prompt_tokens + spec.rollout.max_tokens,
            max_num_seqs=spec.rollout.max_num_seqs,
            kv_cache_bytes=spec.rollout.kv_cache_bytes,
        )
        refs = [handle.actor.prepare.remote(engine) for handle in handles]
        seconds["prepare"] = max(session.get(refs, timeout_s=120.0))
        refs = [handle.actor.init.remote() for handle in handles]
        seconds["init"] = max(session.get(refs, timeout_s=120.0))
        return Rollout(
            config=config, session=session, cache=cache, handles=handles, seconds=seconds
        )

    yield start
    for session in started:
        session.close()


@pytest.fixture(scope="session")
def left_over() -> Callable[[str], list[str]]:
    """What a run of that tag has left on the host."""

    def look(tag: str) -> list[str]:
        segments = [name for name in os.listdir("/dev/shm") if tag in name]
        return segments + [str(process) for process in processes.tagged(tag)]

    return look
