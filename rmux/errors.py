"""Every error rmux raises on purpose.

RmuxError
├── UserError            the caller can mend it: spec, cluster file, flags
│   ├── QuantityError      a size, duration or rate that cannot be read
│   ├── SpecError          a job spec or cluster file that cannot be used
│   └── ConfirmationError  a destructive verb without --yes off a terminal
├── InfeasibleError      no placement can ever meet the bounds
├── NotFoundError        no such job, group, pool, profile
├── ConflictError        wrong state, lost race, stale lease
├── EndedError           what was waited for ended otherwise
├── CheckError           a check that was asked for failed
├── UnavailableError     a device, port or memory is taken now
├── BackendError         an engine or adapter is missing or broken
├── WorkerError          a process of a job failed; details carry its exit and stderr
│   └── StaleWeightsError  a response was sampled under too old weights
├── StoreMissingError    the store does not exist yet
├── UnreachableError     store or channel locked or not answering
├── StoreVersionError    store and tool disagree about the schema
├── DeadlineError        a deadline passed
└── InternalError        a bug in rmux

The core knows nothing of exit codes: `rmux.cli.exit_codes` maps class to code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RmuxError(Exception):
    """Root. `code` is a stable slug; `hint` says what to do next; `details` are facts for JSON."""

    code = "internal"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        code: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = dict(details or {})
        if code is not None:
            self.code = code


class UserError(RmuxError):
    code = "usage"


class QuantityError(UserError):
    code = "usage.quantity"


class SpecError(UserError):
    code = "spec.invalid"


class ConfirmationError(UserError):
    code = "confirm.required"


class InfeasibleError(RmuxError):
    code = "place.infeasible"


class NotFoundError(RmuxError):
    code = "not-found"


class ConflictError(RmuxError):
    code = "conflict"


class EndedError(RmuxError):
    code = "wait.ended"


class CheckError(RmuxError):
    code = "check.failed"


class UnavailableError(RmuxError):
    code = "resource.unavailable"


class BackendError(RmuxError):
    code = "backend.missing"


class WorkerError(RmuxError):
    code = "worker.failed"


class StaleWeightsError(WorkerError):
    code = "policy.stale"


class StoreMissingError(RmuxError):
    code = "store.missing"


class UnreachableError(RmuxError):
    code = "store.unreachable"


class StoreVersionError(RmuxError):
    code = "store.version"


class DeadlineError(RmuxError):
    code = "deadline"


class InternalError(RmuxError):
    code = "internal"
