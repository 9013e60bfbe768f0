"""A controller whose files lost what it promised asks its group to take it again, as a new incarnation of itself.

It serves nothing meanwhile, and keeps its damaged files until a majority of the others has decided to take it: until then they
may be what somebody has to look at. Then the directory is emptied, and the controller starts as a learner that is sent
everything. With no majority nobody answers, and it goes on asking and says what can be done.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from controllerd.raft.incarnations import name_of
from controllerd.raft.log_file import RaftLogFile
from controllerd.settings import ControllerSettings
from remoting import codes
from remoting.access.secret_file import load_secrets
from remoting.disk import Disk
from remoting.errors import LogboomError
from remoting.transport.client import RemotingClient
from remoting.transport.identity import component_identity
from remoting.transport.tls import dialling_context

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.5
_REPORT_EVERY: Final = 60
_ANSWER_MS: Final = 9000  # the leader answers when the change is decided


async def come_back(settings: ControllerSettings, disk: Disk, reason: str) -> None:
    """Return when the group has taken this controller again and its directory is ready for a new start.

    Raises StorageError, and SettingsError when the directory is another controller's.
    """
    file = RaftLogFile(disk, settings.raft.group, settings.node_id, ())
    own = file.renounce(reason)
    known = {name_of(node): address for node, address in file.readable_members().items()} | dict(settings.peers)
    others = sorted(address for name, address in known.items() if name != settings.node_id)
    ext = {
        "group": settings.raft.group,
        "node": own.next_id,
        "address": settings.address,
        "reason": own.reason[:200],
    }
    log.error(
        "this controller cannot remember what it promised, so it votes no more under its old identity: %s. It asks %s to take it "
        "again, as %s",
        own.reason,
        ", ".join(others) or "nobody (no other member is known)",
        own.next_id,
    )
    secrets = load_secrets(settings.cluster_secret) if settings.cluster_secret is not None else ()
    client = RemotingClient(identity=component_identity(secrets, dialling_context(settings.tls)))
    try:
        await _ask_until_taken(client, others, ext)
    finally:
        client.close()
    file.begin_anew()
    log.warning("the group has taken this controller again, as %s: it starts anew and is sent everything", own.next_id)


async def _ask_until_taken(client: RemotingClient, others: list[str], ext: dict[str, str]) -> None:
    attempts = 0
    while True:
        refusals = []
        for address in others:
            try:
                await client.call(address, codes.RAFT_RETURN, ext, timeout_ms=_ANSWER_MS)
            except LogboomError as error:
                refusals.append(f"{address}: {error}")
            else:
                return
        if attempts % _REPORT_EVERY == 0:
            log.error(
                "still out of service: the group did not take this controller again (%s). Start the other controllers, of which "
                "a majority is needed; if they are lost, restore the data directories of all from one backup, or begin a new "
                "group with empty ones",
                "; ".join(refusals) or "name the other members with --peers",
            )
        attempts += 1
        await asyncio.sleep(_RETRY_S)
