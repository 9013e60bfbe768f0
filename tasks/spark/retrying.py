"""Doing again what a Python worker of Spark's did not survive.

Spark itself does tasks again, but not what it asks Python before there are tasks: what a source is, and what it will read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from tasks.spark.errors import is_worker_lost, reason

log = logging.getLogger(__name__)

T = TypeVar("T")

TIMES: Final = 3


def again_if_worker_lost(ask: Callable[[], T]) -> T:
    """What `ask` returns, which must be something that may be done twice. Raises as it does."""
    from pyspark.errors import PySparkException

    for _ in range(TIMES - 1):
        try:
            return ask()
        except PySparkException as error:
            if not is_worker_lost(error):
                raise
            log.warning("asking Spark again: %s", reason(error))
    return ask()
