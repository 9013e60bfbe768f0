"""Settings of the name server inside a controller."""

from __future__ import annotations

from dataclasses import dataclass

from remoting.settings import setting


@dataclass(frozen=True, slots=True)
class NameServerSettings:
    """What clients and brokers are told. Two of these matter to groups only that ask for acting masters when they register."""

    acting_master: bool = setting(
        True,
        "show a group's smallest id as read-only master while it has none",
        live=True,
        original="supportActingMaster",
    )
    notify_min_broker_id: bool = setting(
        True,
        "tell such a group's brokers at once when its smallest id changes",
        live=True,
        original="notifyMinBrokerIdChanged",
    )
    order_topics: bool = setting(
        True, "hand the ordered topics' configuration to brokers and clients", live=True, original="orderMessageEnable"
    )
    wait_s: int = setting(
        0, "refuse route requests for this time after the start, until brokers registered", minimum=0, maximum=600
    )
