"""Looking at what a pop would get: codes 200052 (peek), 200054 (tell me when there is something), 200055 (how many wait)."""

from __future__ import annotations

from brokerd.loop.scheduler import Scheduler
from brokerd.metadata.service import MetadataService
from brokerd.pop.looking import Notice, PopLooking
from brokerd.pop.requests import MAX_ATTEMPT_ID, PopOutcome, PopRequest, PopStatus
from brokerd.pop.service import PopService
from brokerd.processors import fields
from brokerd.processors.parked import ParkedRequests
from brokerd.processors.pop.answers import pop_header
from brokerd.processors.pop.pop import poll_wait_ms
from brokerd.processors.pop.request_age import RequestAges
from remoting import codes
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection


class PopLookingProcessor:
    """The handlers."""

    def __init__(
        self, looking: PopLooking, service: PopService, metadata: MetadataService, scheduler: Scheduler
    ) -> None:
        self._looking = looking
        self._service = service
        self._metadata = metadata
        self._scheduler = scheduler
        self._ages: dict[object, RequestAges] = {}
        self._parked = ParkedRequests()

    def connection_closed(self, connection: object) -> None:
        """Whoever waits on it is not told any more."""
        self._ages.pop(connection, None)
        self._parked.cancel_all(connection)

    def peek(self, connection: RemotingConnection, request: Command) -> None:
        """Code 200052: the stored records, without handles: nothing is taken, so there is nothing to ack."""
        asked = self._asked(request, fields.integer(request.ext, "maxMsgNums", high=fields.MAX_INT))
        records, rest_count = self._looking.peek(asked)
        header = pop_header(PopOutcome(PopStatus.NOTHING, rest_count=rest_count), ordered=False)
        if records:
            connection.respond(request, codes.SUCCESS, header, b"".join(records))
        else:
            connection.respond(request, codes.PULL_NOT_FOUND, header)

    def notify(self, connection: RemotingConnection, request: Command) -> None:
        """Code 200054."""
        now_ms = int(self._scheduler.time() * 1000)
        wait_ms = poll_wait_ms(request.ext, self._ages.setdefault(connection, RequestAges()), now_ms) or 0
        tickets: list[int] = []

        def done(notice: Notice) -> None:
            if tickets:
                self._parked.forget(connection, tickets.pop())
            if notice.error is not None:
                connection.respond_error(request, notice.error)
                return
            found, full = (str(each).lower() for each in (notice.has_messages, notice.is_full))
            connection.respond(request, ext={"hasMsg": found, "pollingFull": full})

        waiting = self._looking.notify(self._asked(request, 1, deadline_ms=now_ms + wait_ms), done)
        if waiting is not None:
            request.drop_content()
            tickets.append(self._parked.add(connection, waiting))

    def polling_info(self, connection: RemotingConnection, request: Command) -> None:
        """Code 200055: how many pops of a group wait for a queue (-1: for any)."""
        count = self._service.polling_count(self._asked(request, 1))
        connection.respond(request, ext={"pollingNum": str(count)})

    def _asked(self, request: Command, count: int, *, deadline_ms: int = 0) -> PopRequest:
        ext = request.ext
        group = fields.text(ext, "consumerGroup")
        config = self._metadata.group(group)
        return PopRequest(
            group=group,
            topic=fields.text(ext, "topic"),
            queue_id=fields.integer(ext, "queueId", low=-1, high=fields.MAX_INT),
            max_count=count,
            invisible_time_ms=0,
            deadline_ms=deadline_ms,
            fifo=fields.flag(ext, "order") or (config is not None and config.fifo),
            attempt_id=(ext.get("attemptId") or "")[:MAX_ATTEMPT_ID],
        )
