"""A planned switch begins at the present master: it takes nothing new, waits until its successor has its whole log, and says so.

Then the election cuts nothing, neither what was acknowledged nor what was not yet. A master of the original cannot do that; the
switch then goes on without, as it does there.
"""

from __future__ import annotations

import logging
from typing import Final

from controllerd.replicas.state import Group
from remoting import codes
from remoting.errors import ConnectionLost, RequestError, RequestTimeout
from remoting.transport.client import RemotingClient

log = logging.getLogger(__name__)

_WAIT_MS: Final = 1200
_ANSWER_MS: Final = _WAIT_MS + 300


async def ask_to_hand_over(
    client: RemotingClient, hold_ms: int, group: Group, broker_id: int, *, needs_answer: bool = False
) -> str | None:
    """Have the group's master wait for `broker_id`, and then up to `hold_ms` for the election before it goes on.

    A sentence when the switch will cut what that one lacks. Raises RequestError ELECT_MASTER_FAILED when the master says that the
    switch should not be made now, or says nothing, and `needs_answer`.
    """
    assert group.master is not None
    ext = {
        "brokerName": group.broker_name,
        "masterEpoch": str(group.master_epoch),
        "brokerId": str(broker_id),
        "waitMs": str(_WAIT_MS),
        "holdMs": str(hold_ms),
    }
    try:
        await client.call(group.master.address, codes.HAND_OVER_MASTER, ext, timeout_ms=_ANSWER_MS)
    except (ConnectionLost, RequestTimeout) as error:
        reason = f"the master did not answer ({error})"
        if needs_answer:
            raise RequestError(codes.CONTROLLER_ELECT_MASTER_FAILED, f"no switch now: {reason}") from error
    except RequestError as error:
        if error.code != codes.REQUEST_CODE_NOT_SUPPORTED:
            raise RequestError(codes.CONTROLLER_ELECT_MASTER_FAILED, f"no switch now: {error.message}") from error
        reason = "the master cannot hand over"
    else:
        return None
    log.warning("%s: switching to broker %d without a hand-over: %s", group.broker_name, broker_id, reason)
    return f"{reason}: what broker {broker_id} lacks, which was not acknowledged by all of the set, is cut"
