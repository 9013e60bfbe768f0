"""Programs around the official Python client: processes, as users' programs are, which say JSON lines and hear lines."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PRELUDE = """
import json, os, sys, threading, time
from rocketmq import (ClientConfiguration, ConsumeResult, Credentials, FilterExpression, Message, MessageListener, Producer,
                      PushConsumer, SimpleConsumer)
configuration = ClientConfiguration(os.environ["ENDPOINTS"], Credentials(), request_timeout=3)

def message(body, topic="Orders", **fields):
    made = Message()
    made.topic, made.body = topic, body
    for name, value in fields.items():
        setattr(made, name, value)
    return made

def say(**what):
    print(json.dumps(what), flush=True)

def hear():
    return sys.stdin.readline().strip()
"""


class Program:
    """One of them."""

    def __init__(self, process: asyncio.subprocess.Process, errors: Path) -> None:
        self._process = process
        self._errors = errors

    async def said(self, patience_s: float = 60) -> Any:
        assert self._process.stdout is not None
        async with asyncio.timeout(patience_s):
            line = await self._process.stdout.readline()
        assert line, f"the program ended: {self._errors.read_text()}"
        return json.loads(line)

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    async def finished(self) -> None:
        async with asyncio.timeout(60):
            assert await self._process.wait() == 0, self._errors.read_text()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def start_program(code: str, endpoints: Sequence[str], home: Path, prelude: str = PRELUDE) -> Program:
    """Start one with this home directory and these access points."""
    errors = home / "stderr"
    with errors.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            prelude + code,
            env={**os.environ, "HOME": str(home), "ENDPOINTS": ";".join(endpoints)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=sink,
        )
    return Program(process, errors)
