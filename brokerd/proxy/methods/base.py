"""What every method does around its own work: parse, require a client id, and answer every failure with a status.

A response without a status code, or a call that ends with the transport's UNKNOWN, makes some client fail for good; so whatever
happens here becomes a status of the response.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from brokerd.cluster.routes import Routes
from brokerd.consuming.progress import ConsumerProgress
from brokerd.loop.cold_line import ColdLine
from brokerd.members.registry import ClientRegistry
from brokerd.metadata.configs import Metadata
from brokerd.pop.service import PopService
from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.outline import check_outline
from brokerd.proxy.protobuf import service
from brokerd.proxy.status import OK, Code, Refusal, refusal_of
from brokerd.sending.counters import Counters
from brokerd.sending.outcomes import Sender
from brokerd.store.store_reads import StoreReads
from brokerd.timers.clients import TimedMessages
from brokerd.transactions.service import TransactionService
from remoting.access.component import INNER_USER
from remoting.access.signature import AUTHORIZATION, read_authorization
from remoting.errors import RequestError
from remoting.record.codec import Record

log = logging.getLogger(__name__)

CLIENT_ID: Final = "x-mq-client-id"
LANGUAGE: Final = "x-mq-language"
CLIENT_VERSION: Final = "x-mq-client-version"
_MAX_HEADER_LENGTH: Final = 255

# answers a refusal; the request is None when it could not be parsed
Refuse = Callable[[Call, Any, Refusal], None]


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of the broker that the methods use. `counters` and `progress` learn what was given out; `broker_name` is that of
    its group. `may_end(call)` raises RequestError for a half message that who calls may not decide about. In `cold_line` stands
    who reads what only the tier has."""

    sender: Sender
    popper: PopService
    metadata: Metadata
    clients: ClientRegistry
    routes: Routes
    transactions: TransactionService
    timed: TimedMessages
    reads: StoreReads
    progress: ConsumerProgress
    counters: Counters
    broker_name: str
    may_end: Callable[[Call], Callable[[Record], None]]
    cold_line: ColdLine | None = None


def header(call: Call, name: str) -> str:
    """A header, bounded; empty when it is missing, which `CLIENT_ID` is not in a call that was parsed."""
    return call.metadata.get(name, "")[:_MAX_HEADER_LENGTH]


def user_of(call: Call) -> str:
    """Who signed a call, as its header says; whether that is true was asked where it came in. Components make no calls."""
    try:
        signature = read_authorization(call.metadata.get(AUTHORIZATION, ""))
    except ValueError:
        return ""
    return "" if signature is None or signature.access_key == INNER_USER else signature.access_key


def refuse_unary(call: Call, request: Any, refusal: Refusal) -> None:
    """The answer to a refused unary call: a response with nothing but its status."""
    call.answer(refusal.status)


def refuse_streamed(call: Call, request: Any, refusal: Refusal) -> None:
    """The same on a stream that goes on."""
    call.send([refusal.status])


def answer_when_done(call: Call) -> Callable[[RequestError | None], None]:
    """The `done` of a change whose answer is a status and nothing else."""
    return lambda error: call.answer(OK if error is None else refusal_of(error).status)


def attempt(call: Call, request: Any, refuse: Refuse, action: Callable[..., None], *arguments: Any) -> None:
    """Do one call's work; whatever it raises becomes the answer."""
    try:
        action(*arguments)
    except Refusal as refusal:
        refuse(call, request, refusal)
    except RequestError as error:
        refuse(call, request, refusal_of(error))
    except Exception as error:
        log.exception("a call of %s failed", call.peer.address)
        refuse(call, request, Refusal(Code.INTERNAL_SERVER_ERROR, f"internal error: {type(error).__name__}"))


def decode(call: Call, request_class: Any) -> Any:
    """The call's request message. Raises Refusal."""
    if request_class is service.SendMessageRequest:
        check_outline(call.message)
    try:
        return request_class.FromString(call.message)
    except DecodeError as error:
        raise Refusal(Code.BAD_REQUEST, f"undecodable request: {error}") from error


def parse(call: Call, request_class: Any, refuse: Refuse = refuse_unary) -> Any:
    """The call's request message; None after the call was refused, for its bytes or for the missing client id."""
    try:
        request = decode(call, request_class)
    except Refusal as refusal:
        refuse(call, None, refusal)
        return None
    try:
        check_client_id(call)
    except Refusal as refusal:
        refuse(call, request, refusal)
        return None
    return request


def check_client_id(call: Call) -> None:
    """Raises Refusal for a call that names no client."""
    if not call.metadata.get(CLIENT_ID):
        raise Refusal(Code.CLIENT_ID_REQUIRED, f"the header {CLIENT_ID} is missing")


def each(request_class: Any, handle: Callable[[Call, Any], None], refuse: Refuse = refuse_unary) -> Handler:
    """A handler that treats its calls one by one."""

    def handler(calls: Sequence[Call]) -> None:
        for call in calls:
            request = parse(call, request_class, refuse)
            if request is not None:
                attempt(call, request, refuse, handle, call, request)

    return handler
