"""A sandbox process: python -m rmux.run.sandbox FILE.py:NAME LIFE_FD KIND

Imports one function and answers each line of standard input, JSON, with one line of its own. The
first line says whether the import went well. As a 'call' the lines are `[argument, …]` for the
function, and answers `{"value": number}` or `{"error": text}`; as an 'environment' they are for
what `play` makes with the function. Needs the standard library only, so that any interpreter can
run it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from rmux.run.sandbox.play import Environments
from rmux.run.sandbox.values import number_of, reason_of_failure

_PR_SET_CHILD_SUBREAPER = 36


def main(argv: list[str]) -> int:
    reference, life, kind = argv[1], int(argv[2]), argv[3]
    _keep_descendants()
    threading.Thread(target=_die_with_parent, args=(life,), daemon=True).start()
    requests, answers = _private_streams()
    try:
        function = load(reference)
    except BaseException:  # noqa: BLE001 - user code may raise anything, SystemExit too
        _answer(answers, {"error": reason_of_failure(), "trace": traceback.format_exc()})
        return 1
    _answer(answers, {"ready": True})
    environments = Environments(function)
    for line in requests:
        request = json.loads(line)
        if kind == "environment":
            _answer(answers, environments.answer(request))
        else:
            _answer(answers, _call(function, request))
    return 0


def load(reference: str) -> Callable[..., Any]:
    """The function that 'file.py:name' names; what its file imports may lie beside it."""
    path, _, name = reference.rpartition(":")
    folder, file_name = os.path.split(os.path.abspath(path))
    sys.path.insert(0, folder)
    module_name = os.path.splitext(file_name)[0]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    function = getattr(module, name)
    if not callable(function):
        raise TypeError(f"{name} in {path} is not a function")
    return function  # type: ignore[no-any-return]


def _private_streams() -> tuple[BinaryIO, BinaryIO]:
    """Take the protocol away from descriptors 0 and 1: what user code prints goes to stderr."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def _call(function: Callable[..., Any], arguments: list[Any]) -> dict[str, Any]:
    try:
        value = function(*arguments)
    except BaseException:  # noqa: BLE001 - a failing call fails its sample, whatever it raised
        return {"error": reason_of_failure()}
    try:
        return {"value": number_of(value)}
    except ValueError as error:
        return {"error": f"what the function returned: {error}"}
    except BaseException:  # noqa: BLE001 - a value of the user's own type
        return {"error": reason_of_failure()}


def _answer(answers: BinaryIO, document: dict[str, Any]) -> None:
    answers.write(json.dumps(document).encode() + b"\n")
    answers.flush()


def _keep_descendants() -> None:
    """What user code starts stays below this process, even where it left its group or session."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _die_with_parent(life: int) -> None:
    """The parent holds the other end of this pipe and never writes to it."""
    os.read(life, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
