"""The gRPC client's process, as the harness holds it: what it says becomes part of the history, and it is told what to do."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.chaos.checks import GRPC_CLIENT
from tests.chaos.history import Delivery, History, Kind, Operation, Outcome, body_of
from tests.support.cluster import ROOT

GRPC_TOPIC: Final = "Letters"
GRPC_GROUP: Final = "letters"


class GrpcProgram:
    """The official client in a process of its own; what it says becomes part of the history."""

    def __init__(self, history: History, endpoints: Sequence[str], errors: Path) -> None:
        self._history = history
        self._endpoints = ";".join(endpoints)
        self._errors = errors
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._paused = threading.Event()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.chaos.grpc_client", self._endpoints, GRPC_TOPIC, GRPC_GROUP]
        with open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        threading.Thread(target=self._listen, name="grpc", daemon=True).start()
        assert self._ready.wait(30), f"the gRPC client does not start: {self._errors.read_text()[-2000:]}"

    def drain(self) -> None:
        """No further sends."""
        self._tell("drain")

    def pause(self) -> None:
        """Returns when nothing is under way any more."""
        self._paused.clear()
        self._tell("pause")
        assert self._paused.wait(30), "the gRPC client does not pause"

    def go_on(self) -> None:
        self._tell("go on")

    def _tell(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._ended.wait(40), "the gRPC client hangs"
        self.kill()  # what is left of it are the library's own threads

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, start_s, end_s, outcome, message, detail, queue_id, offset = json.loads(line)
            if kind == "ready":
                self._ready.set()
            elif kind == "end":
                self._ended.set()
            elif kind == "paused":
                self._paused.set()
            elif kind == "receive":
                body = body_of(message) if outcome == "ok" else message.encode()
                self._history.deliveries.append(Delivery(GRPC_CLIENT, start_s, end_s, body, -1, -1))
            else:
                operation = Operation(
                    GRPC_CLIENT, Kind(kind), start_s, end_s, Outcome(outcome), message=message, detail=detail
                )
                self._history.operations.append(operation._replace(queue_id=queue_id, value=offset))
        self._ended.set()
