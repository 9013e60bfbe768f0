"""Consumer groups: codes 200, 201, 207, 225, 352, 353. How far they are is in consumption.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from brokerd.metadata.configs import PERM_READ, GroupConfig
from brokerd.metadata.service import DataVersion, MetadataService
from brokerd.processors import bodies, fields
from brokerd.processors.administration.group_bodies import decode_group, group_json
from brokerd.processors.administration.pages import page
from brokerd.processors.administration.topics import MAX_LIST, check_different
from brokerd.processors.answers import when_done
from brokerd.processors.bodies import encode
from remoting import codes
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection


@dataclass(frozen=True, slots=True)
class GroupProcessor:
    metadata: MetadataService
    data_version: Callable[[], DataVersion]

    def put(self, connection: RemotingConnection, request: Command) -> None:
        """Code 200: create or change."""
        config = self._decode(bodies.decode_object(request.body, "a consumer group"))
        unchanged = self.metadata.group(config.name) == config
        self.metadata.put_group(config, when_done(connection, request, unchanged=unchanged))

    def put_list(self, connection: RemotingConnection, request: Command) -> None:
        """Code 225: create or change several, all or none."""
        document = bodies.decode_object(request.body, "a list of consumer groups")
        configs = [self._decode(each) for each in bodies.objects(document, "groupConfigList", MAX_LIST)]
        check_different(config.name for config in configs)
        unchanged = all(self.metadata.group(config.name) == config for config in configs)
        self.metadata.put_groups(configs, when_done(connection, request, unchanged=unchanged))

    def _decode(self, document: dict[str, Any]) -> GroupConfig:
        present = self.metadata.group(bodies.text(document, "groupName"))
        return decode_group(document, present.attributes if present is not None else {})

    def one(self, connection: RemotingConnection, request: Command) -> None:
        """Code 352: a group's configuration."""
        name = fields.text(request.ext, "group")
        config = self.metadata.group(name)
        if config is None:
            raise RequestError(codes.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group {name} does not exist; create it")
        connection.respond(request, body=encode(group_json(config)))

    def delete(self, connection: RemotingConnection, request: Command) -> None:
        """Code 207. An unknown group is deleted already."""
        name = fields.text(request.ext, "groupName")
        clean = fields.flag(request.ext, "cleanOffset")
        unchanged = self.metadata.group(name) is None
        self.metadata.delete_group(name, when_done(connection, request, unchanged=unchanged), clean)

    def all(self, connection: RemotingConnection, request: Command) -> None:
        """Code 201: everything, or a page of it."""
        version, groups = self.data_version(), self.metadata.groups()
        chosen, is_part = page(groups, version, request.ext, "groupSeq", "maxGroupNum")
        body = {
            "dataVersion": version.as_json(),
            "forbiddenTable": {
                group: dict.fromkeys(topics, PERM_READ)
                for group, topics in self.metadata.forbidden().items()
                if group in chosen
            },
            "subscriptionGroupTable": {name: group_json(each) for name, each in chosen.items()},
        }
        connection.respond(request, ext={"totalGroupNum": str(len(groups))} if is_part else {}, body=encode(body))

    def forbid(self, connection: RemotingConnection, request: Command) -> None:
        """Code 353: whether a group may read a topic; without `readable` only told, which any replica can."""
        group, topic = fields.text(request.ext, "group"), fields.text(request.ext, "topic")

        def done(error: RequestError | None) -> None:
            if error is not None:
                connection.respond_error(request, error)
                return
            readable = not self.metadata.is_forbidden(group, topic)
            connection.respond(request, body=encode({"group": group, "readable": readable, "topic": topic}))

        if request.ext.get("readable"):
            self.metadata.forbid(group, topic, not fields.flag(request.ext, "readable"), done)
        else:
            done(None)
