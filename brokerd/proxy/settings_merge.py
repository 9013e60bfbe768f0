"""The settings that a client is answered: its own message, with what the server decides written over it (pure).

The answer starts as a copy, so that fields that this version does not know survive. Some clients stop for ever on an answer that
lacks a part, others take a missing number as zero; so everything that any of them reads is always set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from brokerd.metadata.configs import GroupConfig
from brokerd.pop.batch import MAX_BATCH
from brokerd.proxy.mapping import MAX_LITE_TOPIC
from brokerd.proxy.protobuf import definition
from brokerd.proxy.status import Code, Refusal
from remoting.record.layout import MAX_BODY_BYTES

PRODUCER_ATTEMPTS: Final = 3
LONG_POLLING_S: Final = 20
BACKOFF_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)

PRODUCER, PUSH_CONSUMER, LITE_PUSH_CONSUMER, LITE_SIMPLE_CONSUMER = (
    definition.ClientType.Value(name)
    for name in ("PRODUCER", "PUSH_CONSUMER", "LITE_PUSH_CONSUMER", "LITE_SIMPLE_CONSUMER")
)
_PYTHON: Final = definition.Language.Value("PYTHON")
# They export in another form than OpenTelemetry's.
_EXPORT_OTHERWISE: Final = frozenset(definition.Language.Value(name) for name in ("CPP", "GOLANG"))


LITE_CONSUMERS: Final = frozenset({LITE_PUSH_CONSUMER, LITE_SIMPLE_CONSUMER})
# Some clients wait for settings until they give up, without a word of why; and none asks for a subscription beyond its quota. So
# they get settings, and room to ask: what they ask for is refused by name.
LITE_SUBSCRIPTION_QUOTA: Final = 1


def refuse_lite(client_type: int) -> None:
    """Refuse the kinds of clients that need what this version does not have."""
    if client_type in LITE_CONSUMERS:
        raise Refusal(
            Code.UNSUPPORTED, "lite consumers are not supported by this version; use a push or simple consumer"
        )


# Node.js ("HTTP") does not read delays one by one: it takes them as no attempt beyond the first, and an ordered consumer of its
# then gives up what its listener refuses once.
READ_NO_LISTS: Final = frozenset({"HTTP"})
# Python reads lists alone, and whole seconds of their delays: without a list it gives messages up by a count of its own, and
# less than a second is none to it.
READ_SECONDS_OF_LISTS: Final = frozenset({"PYTHON"})
_MOST_DELAYS: Final = 64


def merge(settings: Any, group: GroupConfig | None, language: str = "", *, takes_metrics: bool = False) -> Any:
    """The answer to a client's settings. `group` is the consumer's group as it is configured, None when it is not known.

    `language` is the client's, as its header says it. `takes_metrics`: this broker's port takes what clients measure.
    """
    merged = definition.Settings()
    merged.CopyFrom(settings)
    if settings.HasField("publishing"):
        _merge_publishing(merged)
    elif settings.HasField("subscription"):
        _merge_subscription(merged, group or GroupConfig(""), language)
    else:
        raise Refusal(Code.BAD_REQUEST, "settings need publishing (a producer's) or subscription (a consumer's)")
    merged.metric.Clear()
    merged.metric.on = takes_metrics and can_have_metrics(settings)
    if merged.metric.on:  # one address: exporters take several as one name
        merged.metric.endpoints.scheme = settings.access_point.scheme
        merged.metric.endpoints.addresses.add().CopyFrom(settings.access_point.addresses[0])
    return merged


def can_have_metrics(settings: Any) -> bool:
    """Whether a client may be told to send what it measures to where it reached us. It must have said where that was; and the
    push consumer of Python stops to read its telemetry stream when it is told so."""
    language = settings.user_agent.language
    breaks = language == _PYTHON and settings.client_type == PUSH_CONSUMER
    return bool(settings.access_point.addresses) and language not in _EXPORT_OTHERWISE and not breaks


def _merge_publishing(merged: Any) -> None:
    policy = merged.backoff_policy
    policy.max_attempts = PRODUCER_ATTEMPTS
    backoff = policy.exponential_backoff
    backoff.initial.FromMilliseconds(10)
    backoff.max.FromMilliseconds(1000)
    backoff.multiplier = 2
    merged.publishing.max_body_size = MAX_BODY_BYTES
    merged.publishing.validate_message_type = True


def _merge_subscription(merged: Any, group: GroupConfig, language: str) -> None:
    policy = merged.backoff_policy
    policy.max_attempts = group.retry_max_times + 1
    _merge_delays(policy, group.retry_policy or {}, language)
    subscription = merged.subscription
    subscription.fifo = group.fifo
    subscription.receive_batch_size = MAX_BATCH
    subscription.long_polling_timeout.seconds = LONG_POLLING_S
    subscription.long_polling_timeout.nanos = 0
    if merged.client_type in LITE_CONSUMERS:
        subscription.lite_subscription_quota = LITE_SUBSCRIPTION_QUOTA
        subscription.max_lite_topic_size = MAX_LITE_TOPIC


def _merge_delays(policy: Any, given: Mapping[str, Any], language: str) -> None:
    """After which times a message comes again: as the group's retry policy says, else the usual ones; in the form that clients of
    the language read."""
    exponential = given.get("exponentialRetryPolicy") if given.get("type") == "EXPONENTIAL" else None
    if exponential is not None:
        range_ms = exponential["initial"], exponential["max"], exponential["multiplier"]
        if language in READ_SECONDS_OF_LISTS:
            _tell_list(policy, [_whole_seconds(each) for each in _growing(*range_ms, policy.max_attempts)])
        else:
            _tell_range(policy, *range_ms)
        return
    customized = given.get("customizedRetryPolicy") or {}
    delays_ms = customized.get("next") or [1000 * seconds for seconds in BACKOFF_S]
    if language in READ_NO_LISTS:  # from where to where they double
        _tell_range(policy, delays_ms[0], delays_ms[-1], 2)
    elif language in READ_SECONDS_OF_LISTS:
        _tell_list(policy, [_whole_seconds(each) for each in delays_ms])
    else:
        _tell_list(policy, delays_ms)


def _tell_range(policy: Any, initial_ms: int, longest_ms: int, multiplier: int) -> None:
    backoff = policy.exponential_backoff
    backoff.initial.FromMilliseconds(initial_ms)
    backoff.max.FromMilliseconds(longest_ms)
    backoff.multiplier = multiplier


def _tell_list(policy: Any, delays_ms: Sequence[int]) -> None:
    del policy.customized_backoff.next[:]
    for delay_ms in delays_ms:
        policy.customized_backoff.next.add().FromMilliseconds(delay_ms)


def _growing(initial_ms: int, longest_ms: int, multiplier: int, attempts: int) -> Sequence[int]:
    """The delays one by one: none is longer than the longest one, which is the last where there are that many attempts."""
    delays_ms = [initial_ms]
    while delays_ms[-1] < longest_ms and len(delays_ms) < min(attempts, _MOST_DELAYS):
        delays_ms.append(min(max(delays_ms[-1], 1) * multiplier, longest_ms))
    return [min(each, longest_ms) for each in delays_ms]


def _whole_seconds(delay_ms: int) -> int:
    """At least so long."""
    return max(1000, -(-delay_ms // 1000) * 1000)
