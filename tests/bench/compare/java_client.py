"""Load through the unmodified Java client: `java/Load.java`, compiled against its jars."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.interop.apache import FAST_JVM, Apache, Unavailable

_SOURCE: Final = Path(__file__).parent / "java" / "Load.java"
_TIMEOUT_S: Final = 600


@dataclass(frozen=True)
class JavaClient:
    """The compiled program."""

    java: str
    classpath: str

    def run(self, *words: object) -> dict[str, Any]:
        """Run it to its end; the line of JSON that it printed."""
        command = [self.java, "-Xms512m", "-Xmx1g", *FAST_JVM, "-cp", self.classpath, "Load", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            raise RuntimeError(f"the Java client failed: {done.stderr[-2000:] or done.stdout[-2000:]}")
        result: dict[str, Any] = json.loads(lines[-1])
        return result


@contextmanager
def java_client(apache: Apache) -> Iterator[JavaClient]:
    """Compile the program. Raises Unavailable where there is no compiler."""
    compiler = shutil.which("javac")
    if compiler is None:
        raise Unavailable("the Java client's load program needs javac: install a JDK (default-jdk-headless)")
    with tempfile.TemporaryDirectory() as directory:
        jars = f"{apache.jars}/*"
        subprocess.run([compiler, "-nowarn", "-d", directory, "-cp", jars, str(_SOURCE)], check=True)
        yield JavaClient(apache.java, f"{directory}:{jars}")
