"""Settings of sending (`--set send.key=value`)."""

from __future__ import annotations

from dataclasses import dataclass

from remoting.settings import check, setting


@dataclass(frozen=True, slots=True)
class SendSettings:
    """What the broker does for messages beside storing them."""

    auto_create_topics: bool = setting(
        False,
        "development only: make a topic when somebody sends to it, with the queues of the template TBW102",
        original="autoCreateTopicEnable",
    )
    store_replies: bool = setting(
        True, "store answers to requests too, beside pushing them to who asked", original="storeReplyMessageEnable"
    )
    beside_loop: bool = setting(
        True, "take sends of who sends densely in a thread, while no other broker has to have them to be acknowledged"
    )

    def __post_init__(self) -> None:
        check("send", self)
