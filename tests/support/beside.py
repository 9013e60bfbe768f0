"""Beside the console, a process of its own: runs what it reads, a JSON text a line, with Django set up, as a worker would.

    python -m tests.support.beside

Each answer is a line with what the code printed. Code that fails ends the process.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import django

ROOT = Path(__file__).resolve().parents[2]


class Beside:
    """One process for all such code of a test: to set Django up takes more than a second of a processor."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        """It starts with the first code. `environment` is all that it finds there; what it complains about goes to the log."""
        self._environment = environment
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def run(self, code: str) -> str:
        """Run code and give back what it printed."""
        if self._process is None:
            self._process = self._start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self._log.read_text()
        said: str = json.loads(answer)
        return said

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()

    def _start(self) -> subprocess.Popen[str]:
        with open(self._log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", __name__],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )


def main() -> None:
    django.setup()
    for line in sys.stdin:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(json.loads(line), {})
        print(json.dumps(said.getvalue()), flush=True)


if __name__ == "__main__":
    main()
