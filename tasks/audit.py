"""Anchoring the console's audit trail in the controllers' log, once a minute when it has grown."""

from __future__ import annotations

import logging

from remoting.errors import LogboomError
from tasks.app import ANCHOR_AUDIT, app
from webapp.audit import anchoring
from webapp.errors import Problem

log = logging.getLogger(__name__)


@app.task(name=ANCHOR_AUDIT)  # type: ignore[untyped-decorator]
def anchor() -> None:
    """Have the controllers keep the end of the chain. What they refuse is for a person to look at."""
    try:
        anchoring.keep()
    except (LogboomError, Problem) as error:
        log.error("the audit trail is not anchored: %s; see `manage.py audit verify`", error)
