"""Names of topics and groups as gRPC clients give them: a namespace and a name (pure).

Two namespaces are two worlds: what the log knows is `namespace%name`, so equal names in different namespaces never meet. A
namespace has no % itself, or `b%c` in `a` would be `c` in `a%b`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brokerd.metadata import names
from brokerd.proxy.status import Code, Refusal
from remoting.errors import InvalidParameter
from remoting.names import is_system_topic


def name_of_one_address(broker_name: str, address: str) -> str:
    """What a broker group is called towards clients that take one address of a broker for the broker."""
    return f"{broker_name}@{address}"


def broker_group(name: str) -> str:
    """The broker group of a name that a route gave; empty when none is given."""
    return name.partition("@")[0]


def full_name(resource: Any) -> str:
    """The name that the broker knows."""
    namespace: str = resource.resource_namespace
    name: str = resource.name
    return f"{namespace}%{name}" if namespace else name


def topic_name(resource: Any) -> str:
    """The broker's name of a topic; refuses names that no client's topic can have."""
    name = _legal(resource, names.check_topic_name, Code.ILLEGAL_TOPIC)
    if not resource.name:
        raise Refusal(Code.ILLEGAL_TOPIC, "a topic name is required")
    if is_system_topic(resource.name):
        raise Refusal(Code.ILLEGAL_TOPIC, f"{resource.name} is a topic of the system; choose another one")
    return name


def group_name(resource: Any) -> str:
    """The broker's name of a consumer group; refuses names that no client's group can have."""
    name = _legal(resource, names.check_group_name, Code.ILLEGAL_CONSUMER_GROUP)
    if not resource.name or resource.name.startswith(names.SYSTEM_GROUP_PREFIX):
        raise Refusal(Code.ILLEGAL_CONSUMER_GROUP, f"{name!r} is not a group that clients can use; choose another one")
    return name


def _legal(resource: Any, check: Callable[[str], None], code: Code) -> str:
    name = full_name(resource)
    if "%" in resource.resource_namespace:
        raise Refusal(code, f"a namespace has no %, as {resource.resource_namespace[:32]!r} does")
    try:
        check(name)
    except InvalidParameter as error:
        raise Refusal(code, error.message) from error
    return name
