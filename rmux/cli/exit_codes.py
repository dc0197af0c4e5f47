"""What each exit status means, and which error leads to it: rmux-exit-codes(7).

The list only grows. A number that a reader does not know is a failure.
"""

from __future__ import annotations

from enum import IntEnum

from rmux import errors


class ExitCode(IntEnum):
    DONE = 0
    INTERNAL = 1
    USAGE = 2
    INFEASIBLE = 3
    NOT_FOUND = 4
    CONFLICT = 5
    ENDED = 6
    CHECK = 7
    UNAVAILABLE = 8
    BACKEND = 9
    STORE_MISSING = 10
    UNREACHABLE = 11
    STORE_VERSION = 12
    DEADLINE = 124
    INTERRUPTED = 130
    KILLED = 137
    TERMINATED = 143


MEANINGS: dict[ExitCode, tuple[str, str]] = {
    ExitCode.DONE: ("done; also when the reader closed the pipe", "-"),
    ExitCode.INTERNAL: ("internal error: a bug in rmux; a crash file was written", "no"),
    ExitCode.USAGE: (
        "usage, a spec or setting that cannot be used, a confirmation missing, an ambiguous id",
        "no",
    ),
    ExitCode.INFEASIBLE: ("no placement can ever meet the bounds", "later"),
    ExitCode.NOT_FOUND: ("no such job, group, pool or profile", "no"),
    ExitCode.CONFLICT: (
        "conflict: wrong state, a name used with another spec, a race lost after retries",
        "maybe",
    ),
    ExitCode.ENDED: (
        "what was waited for ended in another state, or a process of a job failed",
        "no",
    ),
    ExitCode.CHECK: ("a check failed: doctor, an assertion, a trace, a checksum", "no"),
    ExitCode.UNAVAILABLE: ("a device, port, shared memory or host memory is taken now", "yes"),
    ExitCode.BACKEND: ("an engine or adapter is missing or broken", "no"),
    ExitCode.STORE_MISSING: ("the store does not exist yet", "no"),
    ExitCode.UNREACHABLE: ("store or channel locked or not answering", "yes"),
    ExitCode.STORE_VERSION: ("store and tool disagree about the schema", "no"),
    ExitCode.DEADLINE: ("the deadline given with --timeout passed", "-"),
    ExitCode.INTERRUPTED: ("SIGINT (Ctrl-C), after cleaning up", "-"),
    ExitCode.KILLED: ("interrupted, and cleaning up had to be forced", "-"),
    ExitCode.TERMINATED: ("SIGTERM, after cleaning up", "-"),
}
"""Meaning and 'is a retry worth it', for the man page and the error document."""

_CODES: dict[type[errors.RmuxError], ExitCode] = {
    errors.RmuxError: ExitCode.INTERNAL,
    errors.UserError: ExitCode.USAGE,
    errors.InfeasibleError: ExitCode.INFEASIBLE,
    errors.NotFoundError: ExitCode.NOT_FOUND,
    errors.ConflictError: ExitCode.CONFLICT,
    errors.EndedError: ExitCode.ENDED,
    errors.WorkerError: ExitCode.ENDED,
    errors.CheckError: ExitCode.CHECK,
    errors.UnavailableError: ExitCode.UNAVAILABLE,
    errors.BackendError: ExitCode.BACKEND,
    errors.StoreMissingError: ExitCode.STORE_MISSING,
    errors.UnreachableError: ExitCode.UNREACHABLE,
    errors.StoreVersionError: ExitCode.STORE_VERSION,
    errors.DeadlineError: ExitCode.DEADLINE,
    errors.InternalError: ExitCode.INTERNAL,
}


def code_of(error: errors.RmuxError) -> ExitCode:
    """The code of the nearest class above the error's own that has one."""
    for cls in type(error).__mro__:
        if cls in _CODES:
            return _CODES[cls]
    return ExitCode.INTERNAL


def is_retryable(code: ExitCode) -> bool:
    return MEANINGS[code][1] == "yes"
