"""Every method of gRPC, asked by a user who may do everything with one topic and one group, and nothing else: what is expected is
written down, so that a new method needs a row here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from brokerd.proxy.access import DEMANDS
from brokerd.proxy.protobuf import service
from remoting.access.decision import decide
from remoting.access.model import ALL, ALLOW, CUSTOM, AccessState, Entry, User, resource

OWN, FOREIGN, INTERNAL = "own", "foreign", "SCHEDULE_TOPIC_XXXX"
GROUP, FOREIGN_GROUP = "group", "foreign-group"
# own, foreign topic, foreign group, topic of the brokers' own, nothing; receipt and recall handles prove themselves
EXPECTED: Final[Mapping[str, str]] = {
    "+ - + - -": "QueryRoute SendMessage EndTransaction RecallMessage QueryOffset",
    "+ - - - -": """
        QueryAssignment ReceiveMessage AckMessage ChangeInvisibleDuration ForwardMessageToDeadLetterQueue PullMessage
        UpdateOffset GetOffset SyncLiteSubscription""",
    "+ + - + +": "Heartbeat NotifyClientTermination",
    "+ - - - +": "Telemetry",
}
_STATE: Final = AccessState(
    1,
    {"mia": User("mia", "")},
    {
        "mia": {
            CUSTOM: tuple(
                Entry(resource(each), (ALL,), ALLOW) for each in (f"Topic:{OWN}", f"Group:{GROUP}", f"Topic:{INTERNAL}")
            )
        }
    },
)


def test_every_method_is_in_the_table() -> None:
    assert sorted(name for names in EXPECTED.values() for name in names.split()) == sorted(DEMANDS)


@pytest.mark.parametrize("expected", EXPECTED)
def test_what_is_ones_own_is_let_in_and_nothing_else(expected: str) -> None:
    for name in EXPECTED[expected].split():
        asked = ((OWN, GROUP), (FOREIGN, GROUP), (OWN, FOREIGN_GROUP), (INTERNAL, GROUP), ("", ""))
        assert " ".join(answer(name, request(name, *each)) for each in asked) == expected, name


def answer(name: str, said: Any) -> str:
    """An empty send is about nothing: its method refuses it."""
    demands = DEMANDS[name](said)
    return "+" if all(decide(_STATE, "mia", each, "10.0.0.1").allowed for each in demands) else "-"


def request(name: str, topic: str, group: str) -> Any:
    """What says these in all fields of a method's request that name a topic or a group."""
    if name == "Telemetry":
        command = service.TelemetryCommand()
        if topic:
            command.settings.publishing.topics.add().name = topic
            command.settings.subscription.group.name = group
            command.settings.subscription.subscriptions.add().topic.name = topic
        return command
    message = getattr(service, f"{name}Request")()
    fields = message.DESCRIPTOR.fields_by_name
    if "messages" in fields:
        message.messages.add().topic.name = topic
    if "topic" in fields:
        message.topic.name = topic
    if "message_queue" in fields:
        message.message_queue.topic.name = topic
    if "group" in fields:
        message.group.name = group
    return message
