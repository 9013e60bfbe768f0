"""The task that asks for the exports that are due: an operation for each topic, unless one is under way.

Beat calls for it every few minutes. What is due is decided by the tier, so a call that is missed changes only when it is found.
"""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import Final

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from remoting.client.blocking import AdminClient
from remoting.errors import LogboomError
from tasks.app import MAKE_DUE_EXPORTS, app
from tasks.export import work
from tasks.tier.objects import Objects
from tasks.tier.settings import tier_place
from webapp.lifecycle import State
from webapp.operations.models import Operation
from webapp.queue import RUN_OPERATION

log = logging.getLogger(__name__)

REQUESTED_BY: Final = "the topic's policy"
AGAIN_AFTER: Final = timedelta(minutes=30)  # what failed is not tried again before, by itself


@app.task(name=MAKE_DUE_EXPORTS)  # type: ignore[untyped-decorator]
def make() -> None:
    """Ask for what is due. What is made and not queued, the janitor queues."""
    if tier_place(os.environ) is None or settings.READ_ONLY:
        return
    for operation in make_due(AdminClient(settings.CONTROLLERS)):
        app.send_task(RUN_OPERATION, [str(operation.pk)])


def make_due(client: AdminClient, open_objects: work.OpenObjects = Objects.open) -> list[Operation]:
    """The rows of operations that were not there."""
    topics: set[str] = set()
    try:
        for group in work.group_exports(client, os.environ, open_objects):
            topics.update(work.due_topics(group))
    except LogboomError as error:
        log.warning("what is to be exported is not known now: %s", error)
    return [made for topic in sorted(topics) if (made := _make(topic)) is not None]


def _make(topic: str) -> Operation | None:
    last = Operation.objects.filter(kind=work.KIND, target=topic).order_by("-created_at").first()
    if last is not None and not last.finished:
        return None
    if last is not None and last.state == State.FAILED and last.created_at > timezone.now() - AGAIN_AFTER:
        return None
    with transaction.atomic():
        operation = Operation(kind=work.KIND, target=topic, parameters={"name": topic}, requested_by_name=REQUESTED_BY)
        operation.save(force_insert=True)
        operation.announce_after_commit()
    return operation
