"""Asking a process whether it is ready, by what it is there for.

Each probe answers None for "ready" or the reason why not, for the person who waits. It never raises for what the other side
does and never takes longer than its deadline.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from remoting import codes
from remoting.client.identity import identity_of_environment
from remoting.errors import LogboomError
from remoting.facts.broker_state import BrokerState
from remoting.facts.codec import decode
from remoting.facts.words import BrokerRole
from remoting.frame import Command
from remoting.transport.client import connect, split_address
from webapp.appliance.plan import BrokerProbe, ControllerProbe, HeartbeatProbe, HttpProbe, Probe, RedisProbe

log = logging.getLogger(__name__)

DEADLINE_MS = 1000
MAX_ANSWER_BYTES = 64 * 1024


async def ask(probe: Probe) -> str | None:
    """Return None when the process is ready, otherwise what it still lacks."""
    try:
        async with asyncio.timeout(DEADLINE_MS / 1000):
            match probe:
                case RedisProbe():
                    return await _redis(probe)
                case ControllerProbe():
                    return await _controller(probe)
                case BrokerProbe():
                    return await _broker(probe)
                case HttpProbe():
                    return await _http(probe)
                case HeartbeatProbe():
                    return None if probe.file.exists() else "it has not reported ready yet"
    except TimeoutError:
        return "it does not answer in time"
    except (OSError, LogboomError, ValueError) as error:
        if isinstance(error, ConnectionRefusedError) or isinstance(error.__cause__, ConnectionRefusedError):
            return "it does not listen yet"
        return str(error) or type(error).__name__


async def is_master(probe: BrokerProbe) -> bool:
    """Whether the broker serves as a master right now; a broker that does not answer does not."""
    state = await told_state(probe.address)
    return state is not None and state.role is BrokerRole.MASTER


async def told_state(address: str) -> BrokerState | None:
    """What a broker says about itself; None when it does not answer in time."""
    try:
        async with asyncio.timeout(DEADLINE_MS / 1000):
            return await broker_state(address)
    except (TimeoutError, OSError, LogboomError, ValueError) as error:
        log.info("%s does not say what it is: %s", address, error)
        return None


async def broker_state(address: str) -> BrokerState:
    """What a broker says about itself."""
    return decode(BrokerState, (await _call(address, codes.BROKER_STATE)).body)


async def _call(address: str, code: int) -> Command:
    """The answer to a request without parameters; raises ValueError when it is a refusal."""
    connection = await connect(address, timeout_ms=DEADLINE_MS, identity=identity_of_environment())
    try:
        answer = await connection.call(code, timeout_ms=DEADLINE_MS)
    finally:
        connection.abort()  # nothing is queued any more, and a close of TLS waits for the other end, which may be gone
    if answer.code != codes.SUCCESS:
        raise ValueError(answer.remark or f"it answers code {answer.code}")
    return answer


async def http_get_json(address: str, path: str) -> dict[str, Any]:
    """GET a small JSON object; raises OSError or ValueError."""
    host, port = split_address(address)
    reader, writer = await asyncio.open_connection(host, port, limit=MAX_ANSWER_BYTES)
    try:
        request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
        writer.write(request.encode("ascii"))
        head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        status = head[0].split(b" ")
        if len(status) < 2 or status[1] not in (b"200", b"503"):
            raise ValueError(f"GET {path} is answered with {head[0][:100].decode(errors='replace')!r}")
        if any(line.lower().replace(b" ", b"") == b"transfer-encoding:chunked" for line in head):
            body = await _read_chunks(reader)
        else:
            body = await reader.read(MAX_ANSWER_BYTES)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ValueError(f"GET {path} is not answered with HTTP") from error
    finally:
        writer.close()
    content = json.loads(body)
    if not isinstance(content, dict):
        raise ValueError(f"GET {path} does not answer with a JSON object")
    return content


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        if len(body) + size > MAX_ANSWER_BYTES:
            raise ValueError("the answer is too long")
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    return body


async def _redis(probe: RedisProbe) -> str | None:
    reader, writer = await asyncio.open_unix_connection(probe.socket, limit=MAX_ANSWER_BYTES)
    try:
        password = probe.password_file.read_text().strip()
        writer.write(f"AUTH {probe.user} {password}\r\nPING\r\n".encode("ascii"))
        for expected in (b"+OK", b"+PONG"):
            answer = (await reader.readline()).strip()
            if answer != expected:
                return f"Redis answers {answer[:100].decode(errors='replace')!r}"
    finally:
        writer.close()
    return None


async def _controller(probe: ControllerProbe) -> str | None:
    answer = await _call(probe.address, codes.CONTROLLER_GET_METADATA_INFO)
    return None if answer.ext.get("controllerLeaderId") else "no controller leads yet"


async def _broker(probe: BrokerProbe) -> str | None:
    role = (await broker_state(probe.address)).role
    return None if role in (BrokerRole.MASTER, BrokerRole.REPLICA) else f"its role is not confirmed yet ({role})"


async def _http(probe: HttpProbe) -> str | None:
    content = await http_get_json(probe.address, probe.path)
    return None if "status" in content else "its answer names no status"
