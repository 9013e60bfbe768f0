"""The messages that send requests carry (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from brokerd.delay.rules import asks_for_delay
from brokerd.processors import fields
from brokerd.store.draft import Draft
from brokerd.timers.rules import asks_for_moment
from brokerd.transactions.records import is_half
from remoting import codes
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.names import RETRY_PREFIX
from remoting.record.batch import decode_batch_body
from remoting.record.layout import SYS_COMPRESSED, SYS_TRANSACTION_MASK


def limit_of(ext: Mapping[str, str], name: str) -> int | None:
    """How often a consumer wants to get a message again; None when it does not say. Raises InvalidParameter."""
    return fields.integer(ext, name, low=fields.MIN_INT, high=fields.MAX_INT) if ext.get(name) else None


def drafts_of_request(request: Command, born_host: bytes) -> list[Draft]:
    """The messages of a send request with short field names. Raises a LogboomError that names what is wrong."""

    ext = request.ext
    try:
        topic = ext["b"]
        queue_id, sys_flag, flag = int(ext["e"]), int(ext["f"]), int(ext["h"])
        born_timestamp, reconsume_times = int(ext["g"]), int(ext.get("j") or 0)
    except (KeyError, ValueError) as error:
        raise RequestError(codes.INVALID_PARAMETER, f"the send header lacks or garbles a field: {error}") from error
    if not (
        0 <= sys_flag < 1 << 31
        and -(1 << 31) <= flag < 1 << 31
        and 0 <= reconsume_times < 1 << 31
        and 0 <= born_timestamp < 1 << 62
        and queue_id < 1 << 31
    ):
        raise RequestError(codes.INVALID_PARAMETER, "a number of the send header is out of range")
    if ext.get("m") != "true":
        return [
            Draft(
                topic,
                queue_id,
                bytes(request.body),
                ext.get("i", "").encode(),
                born_timestamp,
                born_host,
                flag,
                sys_flag,
                reconsume_times,
            )
        ]
    if topic.startswith(RETRY_PREFIX):
        raise RequestError(codes.MESSAGE_ILLEGAL, "a batch cannot go to a retry topic; send its messages one by one")
    items = decode_batch_body(request.body)
    if not items:
        raise RequestError(codes.MESSAGE_ILLEGAL, "the batch is empty")
    if any(
        asks_for_delay(properties) for properties in (ext.get("i", "").encode(), *(item.properties for item in items))
    ):
        raise RequestError(
            codes.MESSAGE_ILLEGAL, "a batch cannot be delayed (property DELAY); send its messages one by one"
        )
    if asks_for_moment(ext.get("i", "").encode()):
        raise RequestError(
            codes.MESSAGE_ILLEGAL, "a batch has no delivery time of its own; give it to each of its messages"
        )
    drafts = [
        Draft(
            topic,
            queue_id,
            bytes(item.body),
            item.properties,
            born_timestamp,
            born_host,
            item.flag,
            sys_flag & ~SYS_COMPRESSED,
            reconsume_times,
        )
        for item in items
    ]
    if sys_flag & SYS_TRANSACTION_MASK or any(map(is_half, drafts)):
        raise RequestError(
            codes.MESSAGE_ILLEGAL, "a batch cannot be part of a transaction; send its messages one by one"
        )
    return drafts
