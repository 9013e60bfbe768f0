"""Requests about anchors: components keep them, and ask for them."""

from __future__ import annotations

from controllerd.anchors.subject import KeepAnchor
from controllerd.processors import fields
from controllerd.processors.serving import Handles
from controllerd.raft.driver import RaftDriver
from controllerd.state.machine import ControllerMachine
from remoting import codes
from remoting.facts.codec import encode
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection


class AnchorsProcessor:
    """Of the serving leader."""

    def __init__(self, driver: RaftDriver, machine: ControllerMachine, timeout_ms: int) -> None:
        self._driver = driver
        self._machine = machine
        self._timeout_ms = timeout_ms

    def handles(self) -> Handles:
        return {codes.KEEP_ANCHOR: self._keep, codes.GET_ANCHOR: self._get}

    async def _keep(self, connection: RemotingConnection, request: Command) -> None:
        applied = await self._driver.propose(
            KeepAnchor(
                fields.text(request, "chain"),
                fields.number(request, "sequence"),
                fields.text(request, "digest"),
                fields.number(request, "at"),
                fields.flag(request, "anew"),
            ),
            self._timeout_ms,
        )
        connection.respond(request, applied.reply.code, remark=applied.reply.remark)

    def _get(self, connection: RemotingConnection, request: Command) -> None:
        """An empty body: there is none."""
        anchor = self._machine.anchors.anchors.get(fields.text(request, "chain"))
        connection.respond(request, body=encode(anchor) if anchor is not None else b"")
