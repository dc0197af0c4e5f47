"""What `rmux place period` is asked: jobs and the nodes they would share, read from JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from rmux.cluster import DeviceId
from rmux.errors import SpecError, UserError
from rmux.ids import JobId, NodeId
from rmux.place.period import Loop
from rmux.spec_errors import spec_error
from rmux.spec_models import Name

MOST_BYTES = 4 * 2**20
MOST_JOBS = 64
MOST_NODES = 1024
_MOST_CHARS = 200
_MOST_S = 1e9
_TRAIN = frozenset({DeviceId(NodeId("train pool"), 0)})


def _short(value: object) -> object:
    if isinstance(value, str) and len(value) > _MOST_CHARS:
        raise ValueError(f"has {len(value)} characters; at most {_MOST_CHARS}")
    return value


def _node(value: object) -> str:
    if type(value) is int and abs(value) < 2**63:
        return str(value)
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("must be the name or the number of a node")
    return value


def _each_once(nodes: list[str]) -> list[str]:
    node, times = Counter(nodes).most_common(1)[0]
    if times > 1:
        raise ValueError(f"has {node} twice")
    return nodes


_Seconds = Annotated[float, Field(strict=True, ge=0, le=_MOST_S, allow_inf_nan=False)]
_PhaseSeconds = Annotated[float, Field(strict=True, gt=0, le=_MOST_S, allow_inf_nan=False)]
_Node = Annotated[str, BeforeValidator(_node), BeforeValidator(_short)]


class JobQuestion(BaseModel):
    """A job: seconds of its phases without the switch, and the rollout nodes it is pinned to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[Name, BeforeValidator(_short)]
    rollout_s: _PhaseSeconds
    train_s: _PhaseSeconds
    sync_s: _Seconds = 0.0
    nodes: Annotated[
        list[_Node], Field(min_length=1, max_length=MOST_NODES), AfterValidator(_each_once)
    ]
    max_staleness: Annotated[int, Field(strict=True, ge=0, le=1)] = 0
    max_repeats: Annotated[int, Field(strict=True, ge=1, le=16)] = 1
    slo: Annotated[float, Field(strict=True, ge=1, le=_MOST_S, allow_inf_nan=False)] | None = None


class PeriodQuestion(BaseModel):
    """Jobs of one train pool; `switch_s` is added to each of their phases."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    jobs: Annotated[list[JobQuestion], Field(min_length=1, max_length=MOST_JOBS)]
    switch_s: _Seconds = 0.0

    def loops(self) -> list[Loop]:
        return [
            Loop(
                job_id=JobId(job.name),
                rollout_s=job.rollout_s + self.switch_s,
                train_s=job.train_s + self.switch_s,
                off_device_s=job.sync_s,
                rollout=frozenset(DeviceId(NodeId(node), 0) for node in job.nodes),
                train=_TRAIN,
                max_staleness=job.max_staleness,
                max_repeats=job.max_repeats,
            )
            for job in self.jobs
        ]


def read(path: str) -> PeriodQuestion:
    """The question in a file, or on stdin for '-'.

    UserError names the file and the key that cannot be used.
    """
    name = "stdin" if path == "-" else path
    try:
        found = json.loads(_bytes(path, name).decode(), object_pairs_hook=_no_twins)
        json.dumps(found, ensure_ascii=False).encode()  # what cannot be told cannot be a name
    except UnicodeError:
        raise SpecError(f"{name} is not UTF-8 text", code="spec.syntax") from None
    except json.JSONDecodeError as error:
        message = f"{name}:{error.lineno}: {error.msg[:1].lower()}{error.msg[1:]}"
        raise SpecError(f"{message}; not JSON", code="spec.syntax") from None
    except RecursionError:
        raise SpecError(f"{name} is nested too deeply", code="spec.syntax") from None
    except ValueError as error:  # also Python's own limit on the digits of a number
        raise SpecError(f"{name}: {error}", code="spec.syntax") from None
    if not isinstance(found, dict):
        raise SpecError(f'{name} must hold an object with the key "jobs"')
    try:
        question = PeriodQuestion.model_validate(found)
    except ValidationError as error:
        raise spec_error(error, path=name, text="", root=PeriodQuestion) from None
    names = [job.name for job in question.jobs]
    for index, job in enumerate(names):
        if job in names[:index]:
            raise SpecError(f"{name}: jobs[{index}].name is {job}, as jobs[{names.index(job)}]'s")
    return question


def _bytes(path: str, name: str) -> bytes:
    try:
        if path != "-":
            with Path(path).open("rb") as file:
                found = file.read(MOST_BYTES + 1)
        elif sys.stdin is None or sys.stdin.isatty():
            raise UserError("- reads JSON from stdin, which is a terminal", hint="name a file")
        else:
            found = sys.stdin.buffer.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SpecError(f"cannot read {name}: {why}", code="spec.missing") from error
    if len(found) > MOST_BYTES:
        raise SpecError(f"{name} is larger than {MOST_BYTES >> 20} MiB")
    return found


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        key = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"key {str(_short(key))!r} stands twice")
    return found
