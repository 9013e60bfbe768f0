"""All that a pull asks for but where it begins: what most clients say again and again, word for word."""

from __future__ import annotations

from array import array
from typing import Final

from brokerd.metadata.names import is_brokers_group
from brokerd.processors import fields
from brokerd.processors.pulling.checks import FLAG_COMMIT, FLAG_SUSPEND, Checked
from brokerd.processors.pulling.standing import MASTERS, MOST_BYTES, Standing
from remoting import codes

MAX_MESSAGES: Final = 32
MAX_BYTES: Final = MOST_BYTES
MAX_SUSPEND_MS: Final = 25_000  # clients give up after 30 s
_SCANNED: Final = 800  # units, where not all messages are wanted


class PullTerms:
    """Of a request that passed the checks. `tags` are the codes that are wanted in order, as the library takes them, None for all
    messages; `is_by_units`: a queue's units alone say what is wanted."""

    __slots__ = (
        "checked",
        "commits",
        "group",
        "group_config",
        "is_by_units",
        "is_lite",
        "max_bytes",
        "max_count",
        "message_filter",
        "most_units",
        "queue_id",
        "reader",
        "standing",
        "suspend_ms",
        "tags",
        "tags_codes",
        "topic",
    )

    def __init__(self, code: int, ext: dict[str, str], checked: Checked) -> None:
        """Raises InvalidParameter for numbers that are none."""
        self.standing: Standing | None = None  # of requests that are asked again and again
        self.is_lite = code == codes.LITE_PULL_MESSAGE
        self.checked = checked
        self.group, self.group_config, self.topic, _, self.queue_id, flags, self.message_filter, _, _ = checked
        self.reader = self.group, self.topic, self.queue_id
        self.commits = bool(flags & FLAG_COMMIT) and not is_brokers_group(self.group)
        self.suspend_ms = 0
        if flags & FLAG_SUSPEND:
            self.suspend_ms = min(fields.integer(ext, "suspendTimeoutMillis", 0), MAX_SUSPEND_MS)
        # The Go client's polling consumer asks for no message and wants some.
        count = fields.SMALL.get(ext.get("maxMsgNums", ""))
        if count is None:
            count = fields.integer(ext, "maxMsgNums", MAX_MESSAGES, low=-fields.MAX_INT, high=fields.MAX_INT)
        self.max_count = max(1, min(count, MAX_MESSAGES))
        self.max_bytes = MAX_BYTES
        if "maxMsgBytes" in ext:
            asked = fields.integer(ext, "maxMsgBytes", 0, low=-1, high=fields.MAX_INT)
            self.max_bytes = min(asked, MAX_BYTES) if asked > 0 else MAX_BYTES
        wanted = self.tags_codes = self.message_filter.tags_codes
        self.tags = None if wanted is None else array("q", sorted(wanted))
        self.is_by_units = wanted is not None or self.message_filter.is_exact
        self.most_units = self.max_count if wanted is None else max(self.max_count, _SCANNED)

    def stand(self, standing: Standing) -> None:
        """Ask for it."""
        standing.sight.read(self.topic, self.queue_id, self.most_units, self.max_count)
        standing.ask(self.most_units, self.max_count, self.max_bytes, self.tags, self.group_config.group_sys_flag)
        standing.suggest(MASTERS)
