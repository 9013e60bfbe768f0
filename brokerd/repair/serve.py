"""READ_LOG_RANGE, from the asked broker's side: hands out records of the log to brokers of its group whose copy is damaged.

Served in every role: a record that is durable here, whole and intact, is what its master wrote, whoever leads now. One request
reads and checks about 64 KiB, or one record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from brokerd.repair.log_range import Found, Holding, answer, decode_question, key_of, prove_answer
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.store.log.commitlog import CommitLog
from remoting import codes
from remoting.frame import Command
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.server import each


@dataclass(frozen=True, slots=True)
class RangeServer:
    """The handler. `keys` are the secrets that an asker may prove to know, `group` is `cluster#brokerName`, `epochs` gives this
    log's entries as they are now."""

    keys: Sequence[bytes] = field(repr=False)
    group: bytes
    log: CommitLog
    epochs: Callable[[], Sequence[EpochEntry]]

    def handlers(self) -> dict[int, Handler]:
        return {codes.READ_LOG_RANGE: each(self.handle)}

    def handle(self, connection: RemotingConnection, request: Command) -> None:
        question, proof = decode_question(request.ext)
        key = key_of(self.keys, self.group, question, proof)
        log = self.log
        found: Found = answer(
            question,
            Holding(log.read, log.min_offset, min(log.flushed_offset, log.complete_offset), log.shape, self.epochs()),
        )
        ext = {
            "nextOffset": str(found.next_offset),
            "proof": prove_answer(key, self.group, question, found).hex(),
        }
        connection.respond(request, ext=ext, body=found.content)
