"""Brokers that answer for ranges of their logs, without sockets: a client that hands requests to their handlers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from random import Random
from typing import cast

from brokerd.repair.fetch import Asking
from brokerd.repair.serve import RangeServer
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.store.store import MessageStore
from remoting import codes
from remoting.disk import Bytes
from remoting.errors import ConnectionLost, LogboomError, RequestError
from remoting.frame import Command
from remoting.transport.client import RemotingClient
from remoting.transport.connection import RemotingConnection
from tests.unit.brokerd.store.stores import log_bytes

SECRET = b"the secret of a cluster"
GROUP = b"cluster#broker-a"
EPOCHS = (EpochEntry(1, 0),)


class Answers:
    """The connection that a handler answers on."""

    peer = "127.0.0.1:1"

    def __init__(self) -> None:
        self.last: Command | None = None

    def respond(
        self,
        request: Command,
        code: int = codes.SUCCESS,
        ext: Mapping[str, str] | None = None,
        body: Bytes = b"",
        remark: str | None = None,
    ) -> None:
        self.last = Command(code, request.opaque, dict(ext or {}), bytes(body), codes.FLAG_RESPONSE, remark)

    def respond_error(self, request: Command, error: LogboomError) -> None:
        self.respond(request, error.code, remark=str(error))


class Peers:
    """`RemotingClient.call` to brokers that are there; `change` may spoil an answer on its way."""

    def __init__(self, servers: Mapping[str, RangeServer]) -> None:
        self.servers = dict(servers)
        self.asked: list[str] = []
        self.old: set[str] = set()  # of an earlier release, which does not know the request
        self.changes: list[tuple[str, bytes]] = []

    async def call(
        self, address: str, code: int, ext: Mapping[str, str], body: Bytes = b"", *, timeout_ms: int = 0
    ) -> Command:
        assert code == codes.READ_LOG_RANGE
        self.asked.append(address)
        server = self.servers.get(address)
        if address in self.old:
            raise RequestError(codes.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported")
        if server is None:
            raise ConnectionLost(f"cannot connect to {address}")
        answers = Answers()
        request = Command(code, 1, dict(ext))
        server.handlers()[code](cast(RemotingConnection, answers), [request])
        answer = answers.last
        assert answer is not None
        if answer.code != codes.SUCCESS:
            raise RequestError(answer.code, answer.remark or "")
        for old, new in self.changes:
            answer.body = bytes(answer.body).replace(old.encode(), new)
        return answer

    def asking(self, key: bytes = SECRET, group: bytes = GROUP) -> Asking:
        rng = Random(1)
        return Asking(cast(RemotingClient, self), group, key, lambda: rng.randbytes(32))


def serving(
    store: MessageStore, epochs: Sequence[EpochEntry] = EPOCHS, keys: Sequence[bytes] = (SECRET,)
) -> RangeServer:
    return RangeServer(keys, GROUP, store.commitlog, lambda: epochs)


def copy_log(source: MessageStore, replica: MessageStore) -> None:
    """Give an empty replica the whole log of its master, durable and dispatched."""
    data = log_bytes(source)
    offset = source.commitlog.min_offset
    for first in itertools.count(0, 1000):
        if first >= len(data):
            break
        offset = replica.append_replicated(offset, data[first : first + 1000])
    replica.mark_flushed(replica.sync())
    while replica.dispatch_offset < replica.commitlog.complete_offset:
        replica.dispatch(replica.commitlog.complete_offset)
