"""vLLM's synchronous engine as the step loop drives it."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmux.errors import ConflictError, SpecError, UserError, WorkerError
from rmux.run.driver.engines import Sampling
from rmux.run.workers import cache
from rmux.run.workers.kv_cache import KvCache
from rmux.run.workers.step_loop import Delta
from rmux.run.workers.vllm_rng import GeneratorStates, sampled_logprobs
from rmux.run.workers.vllm_weights import WeightMemory

if TYPE_CHECKING:
    from torch import Tensor

_STREAM_STEPS = 4
"""Steps whose tokens the engine hands out together: a sixth of a step's CPU time less than 1."""
_PREFILL_TOKENS = 2048
"""Prompt tokens of one step."""
_HEAD = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"
_NO_WEIGHTS = -1
"""The version of an engine that must not run: its weights were discarded, or came damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    model_path: str
    max_model_len: int
    """Tokens of the longest prompt and response together."""
    max_num_seqs: int
    kv_cache_bytes: int
    dtype: str = "float32"
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What engine and trainer must agree on."""

    vocabulary: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One response to sample; `id` is never used twice."""

    id: str
    prompt: tuple[int, ...]
    seed: int
    sampling: Sampling
    generator_state: bytes | None = None
    """Random numbers go on from here instead of from the seed, where the engine can do that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    version: int
    """The weights the requests run under."""
    states_taken: tuple[str, ...] = ()
    """Requests whose `generator_state` is in use."""


def check_sampling(sampling: Sampling) -> None:
    """UserError for sampling whose log-probabilities a trainer could not reproduce.

    Supported: any temperature (log-probabilities are those of the softmax at that temperature; 0 is
    greedy, with those of temperature 1). Not supported: top_p below 1, whose truncated
    distribution the trainer's log-softmax does not have. `min_tokens` and `repetition_penalty` are
    sampled from, but no built-in trainer has their distribution: its check of the first
    log-probabilities refuses them.
    """
    if sampling.top_p != 1.0:
        raise UserError(
            f"top_p = {sampling.top_p:g} is not supported: its log-probabilities are over a "
            "truncated vocabulary that the trainer cannot reproduce",
            code="usage.sampling",
            hint="use top_p = 1.0",
        )
    if sampling.temperature < 0 or sampling.max_tokens < 1:
        raise UserError(
            f"temperature {sampling.temperature:g} and max_tokens {sampling.max_tokens} must be at "
            "least 0 and 1",
            code="usage.sampling",
        )
    if not 0 <= sampling.min_tokens <= sampling.max_tokens or sampling.repetition_penalty <= 0:
        raise UserError(
            f"min_tokens {sampling.min_tokens} must be 0 to {sampling.max_tokens} and "
            f"repetition_penalty {sampling.repetition_penalty:g} above 0",
            code="usage.sampling",
        )


class VllmEngine:
    """Used on the loop's thread only."""

    def __init__(self, config: Any, *, options: EngineOptions) -> None:
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor import Executor

        self._options = options
        self._names = checkpoint_names(Path(options.model_path))
        self._engine = LLMEngine(
            config, Executor.get_class(config), log_stats=False, multiprocess_mode=False
        )
        self._runner = self._engine.model_executor.driver_worker.worker.model_runner
        self._kv_cache = KvCache(self._runner.kv_caches)
        self._weights = WeightMemory(self._runner.get_model())
        model = config.model_config.hf_config
        self._tied = bool(getattr(model, "tie_word_embeddings", False))
        stops = getattr(model, "eos_token_id", None)
        self._stops = [stops] if isinstance(stops, int) else list(stops or ())
        self.vocabulary = int(config.model_config.get_vocab_size())
        dtype = str(config.model_config.dtype).removeprefix("torch.")
        self.model = ModelFacts(vocabulary=self.vocabulary, dtype=dtype)
        self._offsets: dict[str, int] = {}
        self._internal: dict[str, str] = {}
        """The engine's own ids."""
        self.version = 0
        self._states = GeneratorStates(self._engine)
        self.carries_states = self._states.works(self._stops)

    def has_work(self) -> bool:
        return bool(self._offsets)

    def step(self) -> Iterator[Delta]:
        for output in self._engine.step():
            part = output.outputs[0]
            tokens = tuple(part.token_ids)
            offset = self._offsets[output.request_id]
            if output.finished:
                self._forget(output.request_id)
            else:
                self._offsets[output.request_id] = offset + len(tokens)
            yield Delta(
                request_id=output.request_id,
                offset=offset,
                tokens=tokens,
                logprobs=sampled_logprobs(part.logprobs, len(tokens)),
                finish_reason=part.finish_reason if output.finished else "",
            )

    def add(self, requests: Sequence[Request]) -> Admission:
        for request in requests:
            check_sampling(request.sampling)
            total = len(request.prompt) + request.sampling.max_tokens
            if not request.prompt or total > self._options.max_model_len:
                raise UserError(
                    f"a prompt of {len(request.prompt)} tokens and a response of up to "
                    f"{request.sampling.max_tokens} do not fit the engine's "
                    f"{self._options.max_model_len}",
                    code="usage.prompt",
                )
            if not 0 <= min(request.prompt) <= max(request.prompt) < self.vocabulary:
                raise UserError(
                    f"the prompt of request {request.id} has tokens outside the engine's "
                    f"vocabulary of {self.vocabulary}",
                    code="usage.prompt",
                )
        taken = []
        for request in requests:
            internal = self._engine.add_request(
                request.id, {"prompt_token_ids": list(request.prompt)}, self._params(request)
            )
            self._offsets[request.id] = 0
            self._internal[request.id] = internal
            if request.generator_state is not None and self.carries_states:
                self._states.give(internal, request.generator_state)
                taken.append(request.id)
        return Admission(version=self.version, states_taken=tuple(taken))

    def stop(self, ids: Sequence[str]) -> tuple[list[Delta], dict[str, tuple[int, bytes]]]:
        """Drop requests; their tokens that no step handed out yet, and for each the tokens of its
        part with the state of its random numbers after them."""
        deltas: list[Delta] = []
        states: dict[str, tuple[int, bytes]] = {}
        for request_id in [each for each in ids if each in self._offsets]:
            if not self.carries_states:
                break
            internal, offset = self._internal[request_id], self._offsets[request_id]
            tokens, logprobs = self._states.held_back(internal)
            if tokens:
                deltas.append(
                    Delta(request_id=request_id, offset=offset, tokens=tokens, logprobs=logprobs)
                )
            if (state := self._states.take(internal)) is not None:
                states[request_id] = (offset + len(tokens), state)
        self.abort(ids)
        return deltas, states

    def queued(self, ids: Sequence[str]) -> tuple[str, ...]:
        """Those of the requests that the engine holds and does not run now."""
        scheduler = self._engine.engine_core.engine_core.scheduler
        running = {request.request_id for request in scheduler.running}
        return tuple(
            each for each in ids if each in self._internal and self._internal[each] not in running
        )

    def abort(self, ids: Sequence[str]) -> None:
        known = [request_id for request_id in ids if request_id in self._offsets]
        if known:
            self._engine.abort_request(known)
        for request_id in known:
            self._forget(request_id)

    def abort_all(self) -> int:
        ids = list(self._offsets)
        self.abort(ids)
        return len(ids)

    def refresh(self, files: cache.CacheFiles | None) -> bool:
        """Load the cache's version unless it is the one loaded; clears the prefix cache always."""
        if self._offsets:
            raise ConflictError(f"{len(self._offsets)} requests are in flight")
        self._kv_cache.regain()
        current = None if files is None else cache.read_current(files)
        wanted = current is not None and current.version != self.version
        if wanted and files is not None:
            weights, tensors = cache.open_tensors(files)
            self._check_names(set(tensors))
            self._weights.regain()
            self.version = _NO_WEIGHTS  # until all of them are in, and checked
            self._runner.reload_weights(weights_iterator=self._pairs(weights, tensors))
            self.version = weights.version
        if self.version == _NO_WEIGHTS:
            raise WorkerError(
                "the engine has no weights: the host cache is gone", code="sync.empty"
            )
        # Also without a reload: a phase must not depend on what earlier ones left behind.
        self._clear_prefix_cache()
        return wanted

    def discard(self, files: cache.CacheFiles) -> int:
        """Give the memory of the weights back until the next `refresh`, which loads them from the
        host cache; returns bytes. ConflictError in flight, or when the cache holds none."""
        if self._offsets or cache.read_current(files) is None:
            raise ConflictError("weights in use, or without a copy in the host cache, must stay")
        self.version = _NO_WEIGHTS
        return self._weights.discard()

    def drop_caches(self) -> int:
        """Give the KV cache back to the host until the next `refresh`; returns bytes.

        ConflictError while requests are in flight.
        """
        if self._offsets:
            raise ConflictError(f"{len(self._offsets)} requests are in flight")
        self._clear_prefix_cache()
        return self._kv_cache.drop()

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        from vllm import SamplingParams

        if self._offsets:
            raise ConflictError("cannot score while requests are in flight")
        params = SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False, flat_logprobs=True
        )
        for index, sequence in enumerate(sequences):
            self._engine.add_request(f"score-{index}", {"prompt_token_ids": list(sequence)}, params)
        found: dict[str, list[float]] = {}
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if output.finished:
                    sequence = sequences[int(output.request_id.removeprefix("score-"))]
                    rows = output.prompt_logprobs
                    found[output.request_id] = [
                        float(rows[at][token].logprob) for at, token in enumerate(sequence) if at
                    ]
        self._clear_prefix_cache()
        return [found[f"score-{index}"] for index in range(len(sequences))]

    def _forget(self, request_id: str) -> None:
        del self._offsets[request_id]
        self._states.forget(self._internal.pop(request_id))

    def _pairs(
        self, weights: cache.CachedWeights, tensors: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, Tensor]]:
        """What the engine is given to load. The tied head is named although it is the embedding:
        the engine keeps a repacked copy of it, which would stay at its old value (silently)."""
        yield from cache.checked(weights, tensors)
        if self._tied and _HEAD not in tensors:
            yield _HEAD, tensors[_EMBEDDING]

    def _params(self, request: Request) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = request.sampling
        return SamplingParams(
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            repetition_penalty=sampling.repetition_penalty,
            seed=request.seed,
            logprobs=0,
            flat_logprobs=True,
            ignore_eos=sampling.ignore_eos,
            # Without a tokenizer the engine does not know the end of a sequence.
            stop_token_ids=[] if sampling.ignore_eos else self._stops,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    def _check_names(self, offered: set[str]) -> None:
        """A part of a fused layer alone would corrupt its rest, so the whole model or nothing."""
        head = {_HEAD} if self._tied else set()
        missing, unknown = self._names - offered - head, offered - self._names - head
        if missing or unknown:
            raise WorkerError(
                f"the cached weights do not cover the model: {len(missing)} tensors missing, "
                f"{len(unknown)} unknown, first {sorted(missing or unknown)[0]}",
                code="sync.incomplete",
            )

    def _clear_prefix_cache(self) -> None:
        if not self._engine.reset_prefix_cache():
            raise WorkerError("the engine did not reset its prefix cache", code="engine.prefix")


def checkpoint_names(folder: Path) -> set[str]:
    """Names of a checkpoint's tensors. SpecError when it is not in safetensors format."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return set(json.loads(index.read_text())["weight_map"])
    try:
        with (folder / "model.safetensors").open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            return set(json.loads(file.read(length))) - {"__metadata__"}
    except (OSError, ValueError, struct.error) as error:
        raise SpecError(
            f"{folder} holds no model in safetensors format", hint="set model.path to one"
        ) from error


def configure(options: EngineOptions) -> Any:
    """Import everything the engine will need and work out its configuration."""
    import vllm.v1.engine.llm_engine
    import vllm.v1.worker.cpu_worker  # noqa: F401 - the engine imports it, on the device's time
    from vllm import EngineArgs

    return EngineArgs(
        model=options.model_path,
        dtype=options.dtype,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        # A prompt in pieces samples and drops a token per piece: it would move the random numbers
        # on, and the CPU engine fails on it.
        enable_chunked_prefill=False,
        max_num_batched_tokens=max(_PREFILL_TOKENS, options.max_model_len, options.max_num_seqs),
        kv_cache_memory_bytes=options.kv_cache_bytes,
        seed=options.seed,
        logprobs_mode="processed_logprobs",
        distributed_executor_backend="uni",
        enforce_eager=True,
        skip_tokenizer_init=True,
        disable_log_stats=True,
        use_tqdm_on_load=False,
        stream_interval=_STREAM_STEPS,
    ).create_engine_config()
