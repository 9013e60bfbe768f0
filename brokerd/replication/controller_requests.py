"""What controllers ask of a broker: to look who is master (1008), and to hand its mastership over in a planned switch."""

from __future__ import annotations

from brokerd.replication.controllers.controller_link import ControllerLink
from brokerd.replication.controllers.session import Session
from brokerd.replication.sockets.hub import Hub
from remoting import codes
from remoting.errors import InvalidParameter
from remoting.frame import Command
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.server import each


class ControllerRequests:
    """The handlers."""

    def __init__(self, hub: Hub, session: Session, link: ControllerLink) -> None:
        self._hub = hub
        self._session = session
        self._link = link

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            codes.NOTIFY_BROKER_ROLE_CHANGED: each(self._notified),
            codes.HAND_OVER_MASTER: each(self._hand_over),
        }

    def _notified(self, connection: RemotingConnection, request: Command) -> None:
        self._hub.tell(self._session.notified)
        self._link.step()
        connection.respond(request)

    def _hand_over(self, connection: RemotingConnection, request: Command) -> None:
        successor, epoch, wait_ms, hold_ms = (
            _number(request, name) for name in ("brokerId", "masterEpoch", "waitMs", "holdMs")
        )

        def told(reason: str, end_offset: int) -> None:
            code = codes.SERVICE_NOT_AVAILABLE if reason else codes.SUCCESS
            connection.respond(request, code, {"maxOffset": str(end_offset)}, remark=reason or None)

        self._hub.tell(self._hub.driver.hand_over, successor, epoch, wait_ms, hold_ms, told)


def _number(request: Command, name: str) -> int:
    try:
        found = int(request.ext[name])
    except (KeyError, ValueError) as error:
        raise InvalidParameter(f"request {request.code} needs the number {name}") from error
    if found < 0:
        raise InvalidParameter(f"the field {name} of request {request.code} must not be negative")
    return found
