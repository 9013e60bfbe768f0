"""Consumer groups come into being when somebody consumes, unless that is off."""

from __future__ import annotations

from brokerd.metadata.configs import GroupConfig, Metadata
from remoting import codes
from remoting.errors import RequestError, raise_refusal


def ensure_group(metadata: Metadata, name: str, create: bool) -> GroupConfig:
    """The group, made when it is not there and may be made.

    Raises RequestError with the reason when it cannot be made, or SUBSCRIPTION_GROUP_NOT_EXIST.
    """
    group = metadata.group(name)
    if group is None and create:
        refusals: list[RequestError | None] = []
        metadata.put_group(GroupConfig(name), refusals.append)
        group = metadata.group(name)
        if group is None and refusals:
            raise_refusal(refusals.pop())
    if group is None:
        raise RequestError(codes.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group {name} does not exist; create it")
    return group
