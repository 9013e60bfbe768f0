"""The original's command-line tool, many commands in one JVM (tests/interop/java/Tool.java).

with Tool.start(session, name_servers) as tool:
    print(tool("clusterList"))                 # adds -n with the name servers
    tool.consumer("group", "topic")            # a push consumer inside the same JVM, for the tool to look at
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.interop.apache import CommandFailed, Session, Unavailable
from tests.support.cluster import Process, eventually

_SOURCE: Final = Path(__file__).parent / "java" / "Tool.java"
_SEPARATOR: Final = "\x1f"
_END: Final = b"\n\x04\n"
_TIMEOUT_S: Final = 60
_THROWN = re.compile(r"^(?:Exception in thread .*|(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error)\b.*)$", re.MULTILINE)


class Tool:
    """Call it with the words of a command; it returns what was printed. Raises CommandFailed when the command threw."""

    def __init__(self, process: subprocess.Popen[bytes], name_servers: str) -> None:
        self.name_servers = name_servers
        self._process = process
        self._read = b""

    @classmethod
    def start(cls, session: Session, name_servers: str) -> Tool:
        """Compile the program into the session's directory and start it. Raises Unavailable without a Java compiler."""
        compiler = shutil.which("javac")
        if compiler is None:
            raise Unavailable("the tool's program needs a Java compiler: install a JDK (default-jdk-headless)")
        classes = session.directory / "classes"
        jars = f"{session.apache.jars}/*"
        words = [compiler, "-nowarn", "-cp", jars, "-d", str(classes), str(_SOURCE)]
        subprocess.run(words, check=True, capture_output=True, timeout=120)
        command = session.command("Tool", (), ("-Xms64m", "-Xmx256m"), "tool", classes)
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=session.directory,  # where some commands leave files
            env=session.environment,
        )
        return cls(process, name_servers)

    def __enter__(self) -> Tool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __call__(self, *words: str, timeout_s: float = _TIMEOUT_S) -> str:
        """Run a command with the name servers added."""
        printed = self.printed(*words, "-n", self.name_servers, timeout_s=timeout_s)
        if _THROWN.search(printed):
            raise CommandFailed(f"mqadmin {' '.join(words)}\n{printed}")
        return printed

    def refused(self, *words: str) -> str:
        """Run a command that must throw; what it printed."""
        printed = self.printed(*words, "-n", self.name_servers)
        if not _THROWN.search(printed):
            raise AssertionError(f"mqadmin {' '.join(words)} was not refused:\n{printed}")
        return printed

    def printed(self, *words: str, timeout_s: float = _TIMEOUT_S) -> str:
        """Run a command as it is; what it printed, whatever that says."""
        assert self._process.stdin is not None
        self._process.stdin.write((_SEPARATOR.join(words) + "\n").encode())
        self._process.stdin.flush()
        return self._answer(words, timeout_s)

    @staticmethod
    def endless(session: Session, is_enough: Callable[[str], object], *words: str) -> str:
        """Run a command that never ends, in a JVM of its own, until it has printed enough; the whole lines of that."""
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        java, *arguments = session.command(main, words, ("-Xms64m", "-Xmx256m"), "tool")
        output = session.directory / f"{words[0]}.log"
        process = Process(words[0], arguments, output, program=java, environment=session.environment)
        process.start()

        def enough() -> str:
            text = process.log_text()
            lines = text[: text.rfind("\n") + 1]
            return lines if is_enough(lines) else ""

        try:
            return eventually(f"{words[0]} printed enough", enough, _TIMEOUT_S)
        finally:
            process.close()

    def consumer(self, group: str, topic: str) -> None:
        """Start a push consumer in the same JVM."""
        self._client("@consumer", self.name_servers, group, topic)

    def producer(self, group: str, topic: str) -> None:
        """Start a producer in the same JVM, which sends one message."""
        self._client("@producer", self.name_servers, group, topic)

    def stop_clients(self) -> None:
        self._client("@stop")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def _client(self, *words: str) -> None:
        printed = self.printed(*words)
        if _THROWN.search(printed):
            raise CommandFailed(f"{' '.join(words)}\n{printed}")

    def _answer(self, words: tuple[str, ...], timeout_s: float) -> str:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while _END not in self._read:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
                raise CommandFailed(f"mqadmin {' '.join(words)} printed no end within {timeout_s} s\n{self._text()}")
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                raise CommandFailed(f"mqadmin {' '.join(words)} ended its process\n{self._text()}")
            self._read += chunk
        printed, _, self._read = self._read.partition(_END)
        return printed.decode(errors="replace")

    def _text(self) -> str:
        return self._read.decode(errors="replace")
