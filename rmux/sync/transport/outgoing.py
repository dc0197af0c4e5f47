"""One send over several flows: each takes the next chunk when it is free, so none holds up all."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

from rmux.errors import CheckError, RmuxError, UnreachableError
from rmux.sync.deadline import Deadline
from rmux.sync.transport.base import Endpoint, Progress
from rmux.sync.transport.checksum import RollingChecksum
from rmux.sync.transport.incoming import Hello
from rmux.sync.transport.wire import END, Wire


class Outgoing:
    def __init__(
        self,
        endpoint: Endpoint,
        rolling: RollingChecksum,
        *,
        hello: Hello,
        deadline: Deadline,
        progress: Progress | None,
    ) -> None:
        self._endpoint = endpoint
        self._rolling = rolling
        self._hello = hello
        self._deadline = deadline
        self._progress = progress
        self._indexes = itertools.count()
        self._lock = threading.Lock()
        self._wires: list[Wire] = []
        self._error: RmuxError | None = None

    def run(self, streams: int) -> bytes:
        """The checksum both ends agree on; raises the first error of any flow."""
        leading = self._connect(self._hello)
        extra = min(streams, self._rolling.num_chunks) - 1
        threads = [
            threading.Thread(target=self._follow, name="sync-flow", daemon=True)
            for _ in range(extra)
        ]
        for thread in threads:
            thread.start()
        done = False
        try:
            self._guarded(leading)
            for thread in threads:
                thread.join()
            digest = self._conclude(leading)
            done = True
            return digest
        finally:
            if not done:
                self._cut()
            for thread in threads:
                thread.join()
            leading.close()

    def _conclude(self, leading: Wire) -> bytes:
        if self._error is not None:
            raise self._error
        ours = self._rolling.digest(deadline=self._deadline)
        leading.send_index(END, more=True)
        leading.send(ours)
        theirs = leading.receive_answer()["checksum"]
        if theirs != ours.hex():
            raise CheckError(
                f"{leading.peer} holds xxh3_128 {theirs} where {ours.hex()} was sent",
                code="sync.corrupted",
            )
        return ours

    def _follow(self) -> None:
        try:
            wire = self._connect(replace(self._hello, leading=False))
        except RmuxError as error:
            self._fail(error)
            return
        try:
            self._guarded(wire)
            if self._error is None:
                wire.send_index(END, more=False)
        except RmuxError as error:
            self._fail(error)
        finally:
            wire.close()

    def _connect(self, hello: Hello) -> Wire:
        wire = Wire.connect(self._endpoint.host, self._endpoint.port, deadline=self._deadline)
        try:
            wire.greet(hello, token=self._endpoint.token)
        except BaseException:
            wire.close()
            raise
        with self._lock:
            self._wires.append(wire)
        return wire

    def _guarded(self, wire: Wire) -> None:
        """Sends chunks until there are none; an error cuts the other flows too."""
        try:
            while self._error is None:
                with self._lock:
                    index = next(self._indexes)
                if index >= self._rolling.num_chunks:
                    return
                if self._progress is not None:
                    self._progress.wait_for(self._rolling.end_of(index), deadline=self._deadline)
                wire.send_index(index, more=True)
                with self._rolling.chunk(index) as part:
                    wire.send(part)
                self._rolling.mark(index)
        except UnreachableError as error:
            self._fail(self._explained(wire, error))
        except RmuxError as error:
            self._fail(error)

    def _explained(self, wire: Wire, error: UnreachableError) -> RmuxError:
        if self._error is not None:
            return error
        try:
            wire.last_words()
        except RmuxError as reason:
            return reason
        return error

    def _fail(self, error: RmuxError) -> None:
        with self._lock:
            self._error = self._error or error
        self._cut()

    def _cut(self) -> None:
        with self._lock:
            wires = list(self._wires)
        for wire in wires:
            wire.abort()
