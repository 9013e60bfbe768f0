"""The settings that a client is answered: its own message, with what the server decides written over it (pure).

The answer starts as a copy, so that fields that this version does not know survive. Some clients stop for ever on an answer that
lacks a part, others take a missing number as zero; so everything that any of them reads is always set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerd.metadata.configs import GroupConfig
from brokerd.pop.queue_ledger import MAX_BATCH
from brokerd.proxy.protobuf import definition
from brokerd.proxy.status import Code, Refusal
from remoting.record.layout import MAX_BODY_BYTES

PRODUCER_ATTEMPTS: Final = 3
LONG_POLLING_S: Final = 20
BACKOFF_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)

PRODUCER, LITE_PUSH_CONSUMER, LITE_SIMPLE_CONSUMER = (
    definition.ClientType.Value(name) for name in ("PRODUCER", "LITE_PUSH_CONSUMER", "LITE_SIMPLE_CONSUMER")
)


def refuse_unsupported(client_type: int) -> None:
    """Refuse the kinds of clients that need what this version does not have."""
    if client_type in (LITE_PUSH_CONSUMER, LITE_SIMPLE_CONSUMER):
        raise Refusal(
            Code.UNSUPPORTED, "lite consumers are not supported by this version; use a push or simple consumer"
        )


def merge(settings: Any, group: GroupConfig | None) -> Any:
    """The answer to a client's settings. `group` is the consumer's group as it is configured, None when it is not known."""
    refuse_unsupported(settings.client_type)
    merged = definition.Settings()
    merged.CopyFrom(settings)
    if settings.HasField("publishing"):
        _merge_publishing(merged)
    elif settings.HasField("subscription"):
        _merge_subscription(merged, group or GroupConfig(""))
    else:
        raise Refusal(Code.BAD_REQUEST, "settings need publishing (a producer's) or subscription (a consumer's)")
    merged.metric.Clear()
    merged.metric.on = False
    return merged


def _merge_publishing(merged: Any) -> None:
    policy = merged.backoff_policy
    policy.max_attempts = PRODUCER_ATTEMPTS
    backoff = policy.exponential_backoff
    backoff.initial.FromMilliseconds(10)
    backoff.max.FromMilliseconds(1000)
    backoff.multiplier = 2
    merged.publishing.max_body_size = MAX_BODY_BYTES
    merged.publishing.validate_message_type = True


def _merge_subscription(merged: Any, group: GroupConfig) -> None:
    policy = merged.backoff_policy
    policy.max_attempts = group.retry_max_times + 1
    _merge_delays(policy, group.retry_policy or {})
    subscription = merged.subscription
    subscription.fifo = group.fifo
    subscription.receive_batch_size = MAX_BATCH
    subscription.long_polling_timeout.seconds = LONG_POLLING_S
    subscription.long_polling_timeout.nanos = 0


def _merge_delays(policy: Any, given: Mapping[str, Any]) -> None:
    """After which times a message comes again: as the group's retry policy says, else the usual ones."""
    exponential = given.get("exponentialRetryPolicy")
    if given.get("type") == "EXPONENTIAL" and exponential is not None:
        backoff = policy.exponential_backoff
        backoff.initial.FromMilliseconds(exponential["initial"])
        backoff.max.FromMilliseconds(exponential["max"])
        backoff.multiplier = exponential["multiplier"]
        return
    del policy.customized_backoff.next[:]
    customized = given.get("customizedRetryPolicy") or {}
    for delay_ms in customized.get("next") or [1000 * seconds for seconds in BACKOFF_S]:
        policy.customized_backoff.next.add().FromMilliseconds(delay_ms)
