"""Job specs: TOML to `JobSpec`, and `JobSpec` to and from plain documents."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rmux.cluster import Cluster
from rmux.errors import SpecError
from rmux.job import (
    CheckpointSpec,
    EmulatedSpec,
    Engine,
    EnvironmentSpec,
    JobSpec,
    RewardSpec,
    RolloutSpec,
    TrainSpec,
)
from rmux.spec_cluster import cluster_of
from rmux.spec_errors import place, spec_error
from rmux.spec_models import ClusterFile, SpecFile
from rmux.toml_lines import Location, line_of, read_toml

__all__ = [
    "load_cluster",
    "load_spec",
    "read_toml",
    "spec_document",
    "spec_from_document",
    "spec_hash",
]


_NOT_TIMED = (
    "name",
    "iterations",
    "seed",
    "slo",
    "restart_limit",
    "restart_hold_s",
    "tenant",
    "priority",
    "deadline_s",
    "max_repeats",
    "movable",
    "labels",
)
"""What changes no phase time."""
_NOT_TIMED_OF_TRAIN = (
    "learning_rate",
    "clip_low",
    "clip_high",
    "max_grad_norm",
    "mean",
    "gamma",
    "gae_lambda",
    "value_clip",
    "value_weight",
)
_CLIP_HIGH, _DAPO_CLIP_HIGH = 0.2, 0.28
"""PPO (arXiv 1707.06347) clips both sides alike, DAPO (arXiv 2503.14476) the upper one later."""
_DAPO_REFILLS = 1
_ONE_VALUE = {
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "stop",
}
"""Of [rollout]: keys that only the value for 'none' gets past, so that a job need not hold them."""
_VALUE_KEYS = ("gamma", "gae_lambda", "value_clip", "value_weight")


def load_spec(path: Path | str) -> JobSpec:
    """The job the file describes; its paths are taken from the file's folder.

    SpecError says 'FILE:LINE: key …' for an unknown key, a wrong type, numbers that do not
    divide, and files that are not there.
    """
    document, text = read_toml(path)
    try:
        file = SpecFile.model_validate(document)
    except ValidationError as error:
        raise spec_error(error, path=path, text=text, root=SpecFile) from None
    found = next(_problems(file, Path(path).absolute().parent), None)
    if found is not None:
        location, message = found
        raise SpecError(f"{place(path, line_of(text, location))}{message}")
    return _job_spec(file, Path(path).absolute().parent)


def load_cluster(path: Path | str, *, host: str) -> Cluster:
    """The pools, nodes and links of a cluster file; a node that names no host is on `host`.

    SpecError says where and why.
    """
    document, text = read_toml(path)
    try:
        file = ClusterFile.model_validate(document)
    except ValidationError as error:
        raise spec_error(error, path=path, text=text, root=ClusterFile) from None

    def fail(location: Location, message: str) -> SpecError:
        return SpecError(f"{place(path, line_of(text, location))}{message}")

    return cluster_of(file, host=host, fail=fail)


def spec_document(spec: JobSpec) -> dict[str, Any]:
    """The spec as plain JSON values; `spec_from_document` reads it back."""
    document = dataclasses.asdict(spec)
    document["engine"] = str(spec.engine)
    document["labels"] = dict(spec.labels)
    return document


def spec_from_document(document: dict[str, Any]) -> JobSpec:
    """Read what `spec_document` wrote; keys that a newer rmux added are ignored."""
    known = {**document, "labels": tuple(sorted(dict(document.get("labels", {})).items()))}
    return typing.cast("JobSpec", _build(JobSpec, known))


def spec_hash(spec: JobSpec) -> str:
    """'x3:' and the xxh3-64 of what changes phase times: the key under which a profile is kept."""
    import xxhash

    document = spec_document(spec)
    for key in _NOT_TIMED:
        del document[key]
    for key in _NOT_TIMED_OF_TRAIN:
        del document["train"][key]
    del document["checkpoint"]["keep"], document["rollout"]["migrate"]
    del document["reward"]["max_failed"], document["environment"]["max_failed"]
    if not spec.environment.function:
        del document["environment"]
    if spec.engine is Engine.REAL:
        del document["emulated"]
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"x3:{xxhash.xxh3_64_hexdigest(text.encode())}"


def _problems(file: SpecFile, folder: Path) -> typing.Iterator[tuple[Location, str]]:
    """What no single key shows, in the order in which it is best mended."""
    if file.recipe is not None and file.script is not None:
        yield ("script",), "recipe and script are both set; a job has exactly one"
    yield from _of_other_recipes(file)
    if file.engine == "emulated":
        yield from _lengths(file, folder)
        return
    if file.max_staleness and file.script is not None and not file.model.path:
        yield (
            ("max_staleness",),
            (
                "max_staleness is 1, but a script with its own engines rolls out and trains in one "
                "process, which cannot be idle on one device while it works on the other"
            ),
        )
    yield from _missing(file)
    yield from _environment(file)
    yield from _batches(file)
    for location, text in _files(file):
        target = folder / text
        if not target.exists():
            yield location, f"{location[-1]}: no {target}"


def _lengths(file: SpecFile, folder: Path) -> typing.Iterator[tuple[Location, str]]:
    target = folder / file.emulated.lengths.partition(":")[0]
    if file.emulated.lengths and not target.is_file():
        yield ("emulated", "lengths"), f"lengths: no {target}"


def _missing(file: SpecFile) -> typing.Iterator[tuple[Location, str]]:
    if file.script is not None:
        return
    recipe = file.recipe or "grpo"
    needed: list[tuple[tuple[str, str], str | None]] = [(("model", "path"), file.model.path)]
    if file.environment.function is None:
        needed += [
            (("task", "prompts"), file.task.prompts),
            (("reward", "function"), file.reward.function),
        ]
    for location, value in needed:
        if not value:
            yield location, f"{'.'.join(location)} is missing; recipe {recipe!r} needs it"
    if recipe != "ppo" and file.rollout.samples_per_prompt < 2:
        yield (
            ("rollout", "samples_per_prompt"),
            (
                f"rollout.samples_per_prompt is 1; recipe {recipe!r} compares the samples of one "
                "prompt, so write at least 2"
            ),
        )


def _environment(file: SpecFile) -> typing.Iterator[tuple[Location, str]]:
    found, most = file.environment, file.rollout.max_tokens
    if found.function is None:
        return
    if file.task.prompts is not None:
        yield ("task", "prompts"), "task.prompts: the environment's reset gives the prompts"
    if file.reward.function is not None:
        yield ("reward", "function"), "reward.function: the environment's step gives the rewards"
    if found.turn_tokens is not None and found.turn_tokens > most:
        yield (
            ("environment", "turn_tokens"),
            (
                f"environment.turn_tokens is {found.turn_tokens}, but a whole response has "
                f"rollout.max_tokens, {most}, at most"
            ),
        )


def _of_other_recipes(file: SpecFile) -> typing.Iterator[tuple[Location, str]]:
    recipe = None if file.script is not None else file.recipe or "grpo"
    if file.rollout.refills and recipe != "dapo":
        yield ("rollout", "refills"), "rollout.refills is for recipe 'dapo' only"
    if recipe == "dapo" and file.train.mean != "token":
        yield ("train", "mean"), "train.mean is 'sequence'; recipe 'dapo' averages over tokens"
    for key in _VALUE_KEYS:
        if recipe != "ppo" and key in file.train.model_fields_set:
            yield ("train", key), f"train.{key} is for recipe 'ppo' only, which has a value head"


def _batches(file: SpecFile) -> typing.Iterator[tuple[Location, str]]:
    samples = file.rollout.prompts * file.rollout.samples_per_prompt
    mini, per_pass = file.train.mini_batch, file.train.micro_batch * file.train.devices
    if samples % mini:
        yield (
            ("train", "mini_batch"),
            (
                f"train.mini_batch is {mini}, which does not divide the {samples} samples of an "
                f"iteration (rollout.prompts {file.rollout.prompts} × samples_per_prompt "
                f"{file.rollout.samples_per_prompt})"
            ),
        )
    if mini % per_pass:
        yield (
            ("train", "micro_batch"),
            (
                f"train.micro_batch {file.train.micro_batch} × train.devices "
                f"{file.train.devices} is {per_pass}, which does not divide "
                f"train.mini_batch {mini}"
            ),
        )


def _files(file: SpecFile) -> typing.Iterator[tuple[Location, str]]:
    if file.script is not None:
        yield ("script",), file.script
    if file.model.path:
        yield ("model", "path"), file.model.path
    if file.task.prompts:
        yield ("task", "prompts"), file.task.prompts.rpartition(":")[0]
    for section, named in (("reward", file.reward), ("environment", file.environment)):
        if named.function:
            yield (section, "function"), named.function.rpartition(":")[0]


def _job_spec(file: SpecFile, folder: Path) -> JobSpec:
    def absolute(text: str | None) -> str:
        return str((folder / Path(text).expanduser()).resolve()) if text else ""

    def function(text: str | None) -> str:
        path, _, name = (text or "").rpartition(":")
        return f"{absolute(path)}:{name}" if path else ""

    def lengths(text: str) -> str:
        path, colon, name = text.partition(":")
        return f"{absolute(path)}{colon}{name}" if text else ""

    reward, environment, emulated = file.reward, file.environment, file.emulated
    rollout = file.rollout.model_dump(exclude=_ONE_VALUE)
    rollout["kv_cache_bytes"] = rollout.pop("kv_cache")
    train, is_dapo = file.train.model_dump(), file.recipe == "dapo"
    if train["clip_high"] is None:
        train["clip_high"] = _DAPO_CLIP_HIGH if is_dapo else _CLIP_HIGH
    if rollout["refills"] is None:
        rollout["refills"] = _DAPO_REFILLS if is_dapo else 0
    top = file.model_dump(
        include={
            *("name", "iterations", "seed", "max_staleness", "slo", "restart_limit"),
            *("tenant", "priority", "max_repeats", "movable"),
        }
    )
    return JobSpec(
        **top,
        recipe=None if file.script is not None else file.recipe or "grpo",
        script=absolute(file.script) or None,
        python=absolute(file.python) if file.python and "/" in file.python else file.python,
        engine=Engine(file.engine),
        restart_hold_s=file.restart_hold,
        deadline_s=file.deadline,
        model_path=absolute(file.model.path),
        task_module=function(file.task.prompts),
        rollout=RolloutSpec(**rollout),
        train=TrainSpec(**train),
        reward=RewardSpec(
            function=function(reward.function),
            timeout_s=reward.timeout,
            seconds_per_sample=reward.time_per_sample,
            max_failed=reward.max_failed,
        ),
        environment=EnvironmentSpec(
            function=function(environment.function),
            max_turns=environment.max_turns,
            turn_tokens=environment.turn_tokens or 0,
            timeout_s=environment.timeout,
            processes=environment.processes,
            seconds_per_step=environment.time_per_step,
            max_failed=environment.max_failed,
        ),
        checkpoint=CheckpointSpec(**file.checkpoint.model_dump()),
        emulated=EmulatedSpec(
            init_s=emulated.init,
            rollout_s=emulated.rollout,
            train_s=emulated.train,
            sync_s=emulated.sync,
            switch_s=emulated.switch,
            jitter=emulated.jitter,
            resident_bytes=emulated.resident,
            held_bytes=emulated.held,
            cache_bytes=emulated.cache,
            leak_bytes=emulated.leak,
            lengths=lengths(emulated.lengths),
            step_s=emulated.step,
            per_seq_s=emulated.per_sequence,
        ),
        labels=tuple(sorted(file.labels.items())),
    )


def _build(cls: type[Any], document: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(cls)
    values = {
        field.name: _value(hints[field.name], document[field.name])
        for field in dataclasses.fields(cls)
        if field.name in document
    }
    return cls(**values)


def _value(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast("type[Any]", hint), value)
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        if issubclass(hint, StrEnum):
            return hint(value)
        if hint is float:
            return float(value)
    return value
