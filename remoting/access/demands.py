"""The kinds of needs that a request may have: how each reads, from fields or body, which resources it is about (pure)

A `Need` gives the demands, all of which must be met, and says in words what it asks for; `remoting/registry.py` names one for
each request code. They follow the original's annotations; where it checks nothing (settings, consumer groups, batch acks), these
do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from remoting import codes
from remoting.access.decision import Demand
from remoting.access.model import CLUSTER, CREATE, GET, GROUP, LIST, PUB, SUB, TOPIC, UPDATE
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.names import DEAD_LETTER_PREFIX, HALF_TOPIC, RETRY_PREFIX, group_of_retry_topic

_MAX_OBJECTS: Final = 10_000
_MAX_DEMANDS: Final = 4096  # each is decided in the turn of the loop in which the request came


@dataclass(frozen=True, slots=True)
class Need:
    """What a caller must be allowed to do. `demands` gets the request and the cluster's name; it raises RequestError
    NO_PERMISSION when the request does not say what it is about. `super_user`: while permissions are off, only super users may.
    """

    text: str
    demands: Callable[[Command, str], list[Demand]]
    super_user: bool = False


def _need(text: str) -> Callable[[Callable[[Command, str], list[Demand]]], Need]:
    """The need that a function reads."""
    return lambda demands: Need(text, demands)


def group_demand(name: str, *actions: str) -> Demand:
    return Demand(GROUP, name.removeprefix(RETRY_PREFIX).removeprefix(DEAD_LETTER_PREFIX), actions)


def topic_demand(name: str, *actions: str) -> Demand:
    """A retry or dead-letter topic belongs to its group."""
    if name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        return group_demand(group_of_retry_topic(name) or name, *actions)
    return Demand(TOPIC, name, actions)


# ---- needs that are read from fields


def cluster(*actions: str) -> Need:
    return Need(f"Cluster: {_any_of(actions)}", lambda _request, name: [Demand(CLUSTER, name, actions)])


def super_user(need: Need) -> Need:
    """The same for what manages users."""
    return replace(need, text=f"{need.text}; a super user while permissions are off", super_user=True)


def fields(*actions: str, topic: str = "", group: str = "", topics: str = "", groups: str = "") -> Need:
    """Fields that name a topic and a group; `topics` and `groups` hold several names. An absent field demands nothing, unless all
    are absent."""

    def demands(request: Command, cluster: str) -> list[Demand]:
        ext = request.ext
        found = [topic_demand(ext[topic], *actions)] if topic and ext.get(topic) else []
        if group and ext.get(group):
            found.append(group_demand(ext[group], *actions))
        found += [topic_demand(each, *actions) for each in ext.get(topics, "").split(";") if each] if topics else []
        found += [group_demand(each, *actions) for each in ext.get(groups, "").split(",") if each] if groups else []
        return found or [Demand(CLUSTER, cluster, actions)]

    named = (("Topic", topic), ("Group", group), ("Topics", topics), ("Groups", groups))
    return Need(", ".join(f"{kind} `{name}`" for kind, name in named if name) + f": {_any_of(actions)}", demands)


def send(topic: str) -> Need:
    def demands(request: Command, cluster: str) -> list[Demand]:
        name = request.ext.get(topic, "")
        if name.startswith(RETRY_PREFIX):
            return [_retry_demand(name)]
        return [topic_demand(name, PUB)]

    return Need(f"Topic `{topic}`: Pub; of a retry topic its Group: Sub", demands)


@_need("Topic `topic` (of a retry topic its Group), Group `consumerGroup`: Sub")
def pull(request: Command, cluster: str) -> list[Demand]:
    topic, group = request.ext.get("topic", ""), request.ext.get("consumerGroup", "")
    if topic.startswith(RETRY_PREFIX):
        own, asks = _retry_demand(topic), group_demand(group, SUB)
        return [own] if own == asks else [own, asks]
    return [topic_demand(topic, SUB), group_demand(group, SUB)]


def _retry_demand(topic: str) -> Demand:
    """What is in a retry topic is its group's, whoever asks for it."""
    return group_demand(group_of_retry_topic(topic) or "", SUB)


@_need("Topic `topic`: Pub or Sub or Get")
def route(request: Command, cluster: str) -> list[Demand]:
    return [topic_demand(request.ext.get("topic", ""), PUB, SUB, GET)]


# Clients up to 4.9 do not say the topic, and those that were asked say the one that the question named, where half messages wait.
# The broker asks again for that of the half message.
@_need("Topic `topic`, when it is said and is not where half messages wait, and Topic of the half message: Pub")
def end_transaction(request: Command, cluster: str) -> list[Demand]:
    topic = request.ext.get("topic")
    return [topic_demand(topic, PUB)] if topic and topic != HALF_TOPIC else []


@_need("Group `consumerGroup`, when it is said: Sub")
def unregister(request: Command, cluster: str) -> list[Demand]:
    group = request.ext.get("consumerGroup")
    return [group_demand(group, SUB)] if group else []


@_need("Group `srcGroup`: Get; Group `destGroup`, Topic `topic`: Update")
def clone_offset(request: Command, cluster: str) -> list[Demand]:
    ext = request.ext
    found = [group_demand(ext.get("srcGroup", ""), GET), group_demand(ext.get("destGroup", ""), UPDATE)]
    return [*found, topic_demand(ext["topic"], UPDATE)] if ext.get("topic") else found


# ---- needs that are read from bodies


@_need("every Group and Topic that the body subscribes to: Sub")
def heartbeat(request: Command, cluster: str) -> list[Demand]:
    found = []
    for consumer in _objects(_body(request), "consumerDataSet"):
        found.append(group_demand(_text(consumer, "groupName"), SUB))
        for subscription in _objects(consumer, "subscriptionDataSet"):
            topic = _text(subscription, "topic")
            if not topic.startswith(RETRY_PREFIX):
                found.append(topic_demand(topic, SUB))
            _bound(found)
    return _bound(found)


@_need("Group, Topics of the body: Sub")
def locks(request: Command, cluster: str) -> list[Demand]:
    body = _body(request)
    topics = {_text(each, "topic") for each in _objects(body, "mqSet")}
    found = [topic_demand(each, SUB) for each in sorted(topics) if not each.startswith(RETRY_PREFIX)]
    return [group_demand(_text(body, "consumerGroup"), SUB), *_bound(found)]


@_need("every Group and Topic of the body: Sub")
def batch_ack(request: Command, cluster: str) -> list[Demand]:
    named = {
        (_either(each, "c", "consumerGroup"), _either(each, "t", "topic")) for each in _objects(_body(request), "acks")
    }
    return _bound(
        [demand for group, topic in sorted(named) for demand in (group_demand(group, SUB), topic_demand(topic, SUB))]
    )


@_need("Group, Topic of the body: Sub")
def client_config(request: Command, cluster: str) -> list[Demand]:
    body = _body(request)
    found = [group_demand(_text(body, "group"), SUB)]
    subscription = body.get("subscriptionData")
    return [*found, topic_demand(_text(subscription, "topic"), SUB)] if isinstance(subscription, dict) else found


def body_names(*actions: str) -> Need:
    """A body that names a topic and a consumer group."""

    def demands(request: Command, cluster: str) -> list[Demand]:
        body = _body(request)
        return [topic_demand(_text(body, "topic"), *actions), group_demand(_text(body, "consumerGroup"), *actions)]

    return Need(f"Topic, Group of the body: {_any_of(actions)}", demands)


@_need("Group of the body: Create or Update")
def put_group(request: Command, cluster: str) -> list[Demand]:
    return [group_demand(_text(_body(request), "groupName"), CREATE, UPDATE)]


@_need("every Group of the body: Create or Update")
def put_groups(request: Command, cluster: str) -> list[Demand]:
    return _bound(
        [group_demand(_text(each, "groupName"), CREATE, UPDATE) for each in _objects(_body(request), "groupConfigList")]
    )


@_need("every Topic of the body: Create")
def put_topics(request: Command, cluster: str) -> list[Demand]:
    return _bound(
        [topic_demand(_text(each, "topicName"), CREATE) for each in _objects(_body(request), "topicConfigList")]
    )


# ---- bodies


def _body(request: Command) -> dict[str, Any]:
    try:
        body = orjson.loads(request.body)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise _unclear(request.code)
    return body


def _objects(body: Mapping[str, Any], key: str) -> Iterable[dict[str, Any]]:
    value = body.get(key) or []
    if not isinstance(value, list) or len(value) > _MAX_OBJECTS or not all(isinstance(each, dict) for each in value):
        raise RequestError(codes.NO_PERMISSION, f"{key} must be a list of at most {_MAX_OBJECTS} objects")
    return value


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    return value if isinstance(value, str) else ""


def _either(body: Mapping[str, Any], short: str, long: str) -> str:
    """A text that may have either name: the short one when it says something, as those who carry it out read it."""
    return _text(body, short) or _text(body, long)


def _bound(demands: list[Demand]) -> list[Demand]:
    if len(demands) > _MAX_DEMANDS:
        raise RequestError(codes.NO_PERMISSION, f"a request may be about {_MAX_DEMANDS} topics and groups at most")
    return demands


def _unclear(code: int) -> RequestError:
    return RequestError(
        codes.NO_PERMISSION, f"the body of request {code} must be JSON: what it is about cannot be told"
    )


def _any_of(actions: Iterable[str]) -> str:
    return " or ".join(actions)


CHANGE_CLUSTER: Final = cluster(UPDATE)
READ_CLUSTER: Final = cluster(GET, LIST)
# Only components of this cluster send these; no user may, not even a super user.
COMPONENT: Final = replace(CHANGE_CLUSTER, text="a component of this cluster")
# Taken on connections that a signed RAFT_HELLO introduced, and on no others.
INTRODUCED: Final = replace(CHANGE_CLUSTER, text="a connection that RAFT_HELLO introduced; no signature")
# What brokers ask of their clients; were it asked of a daemon, it would change the cluster.
OF_CLIENT: Final = replace(CHANGE_CLUSTER, text="brokers send it")
