"""Where a consumer should read: at the master; or, when it is far behind, at a replica, so that old files are read there (pure).

A replica serves up to its confirm offset, so never what its master has not confirmed; but perhaps not the newest yet: a reader
there sees the past, never something that is lost later. Readers who have caught up are sent back to the master at once, instead
of being held for messages that the master may have given out already. While no master is there, a replica answers whoever comes.

Who reads in bulk is served by every replica that is in sync, whatever the settings say of consumers: such a reader knows which
offsets it wants, and asks the master for what a replica does not have yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from brokerd.loop.cold_line import ColdLine
from remoting import codes
from remoting.errors import RequestError
from remoting.settings import Live, check, setting

MASTER: Final = 0
USUAL_SLOW_ID: Final = 1

REFUSED: Final = RequestError(
    codes.SYSTEM_BUSY,
    "this broker is a replica and gives out no messages (pull.slave_read is off): read from the master of its group",
)

NO_LITE: Final = RequestError(
    codes.NO_PERMISSION, "pulls of lite consumers are switched off on this broker (pull.lite_pull)"
)

NOT_IN_SYNC: Final = RequestError(
    codes.SERVICE_NOT_AVAILABLE,
    "this broker is neither the master of its group nor in its sync-state set: read from another one",
)


@dataclass(frozen=True, slots=True)
class PullSettings:
    """Who answers pulls, and who is suggested for the next one."""

    slave_read: bool = setting(
        False,
        "replicas answer pulls too, and a master sends readers who are far behind to one; what they read may be old",
        live=True,
        original="slaveReadEnable",
    )
    slow_reads_from: int = setting(
        1,
        "the broker id that is suggested to readers far behind; clients take the next one if it is the master",
        minimum=1,
        maximum=99,
    )
    memory_percent: int = setting(
        40,
        "far behind = by more log than this share of the machine's memory, so that it has to come from disk",
        minimum=1,
        maximum=100,
        live=True,
        original="accessMessageInMemoryMaxRatio",
    )
    reset_at_broker: bool = setting(
        True,
        "a reset of offsets waits here for the next pull, whoever is connected; off: connected consumers are told instead",
        live=True,
        original="useServerSideResetOffset",
    )
    notify_ids_changed: bool = setting(
        True,
        "tell the members of a group at once when others join or leave; off: they look for themselves now and then",
        live=True,
        original="notifyConsumerIdsChangedEnable",
    )
    lite_pull: bool = setting(
        True, "answer the pulls of lite pull consumers (code 361)", live=True, original="litePullMessageEnable"
    )

    bulk_messages: int = setting(
        4096,
        "the most messages of one answer to who reads in bulk (reports)",
        minimum=32,
        maximum=16_384,
        live=True,
    )
    bulk_bytes: int = setting(
        2 << 20,
        "likewise the most bytes; one message always comes",
        minimum=64 << 10,
        maximum=4 << 20,
        live=True,
    )
    bulk_messages_on_disk: int = setting(
        1024,
        "likewise, of messages so old that they may have to come from disk (see memory_percent)",
        minimum=8,
        maximum=16_384,
        live=True,
    )
    bulk_bytes_on_disk: int = setting(
        512 << 10,
        "likewise the most bytes of such messages",
        minimum=64 << 10,
        maximum=4 << 20,
        live=True,
    )

    def __post_init__(self) -> None:
        check("pull", self)

    def bulk_limits(self, *, on_disk: bool) -> tuple[int, int]:
        """The most messages and bytes of one bulk answer."""
        if on_disk:
            return self.bulk_messages_on_disk, self.bulk_bytes_on_disk
        return self.bulk_messages, self.bulk_bytes


@dataclass(slots=True)
class ReadPlace:
    """The rules at one broker.

    `is_master_known`: a replica's master is there, by the replica's own connection to it. `is_in_sync`: this is the master or
    stands in for it, or copies its log and is in the sync-state set. In `cold_line` stands who reads what only the tier has.
    """

    settings: Live[PullSettings]
    is_master: Callable[[], bool]
    is_master_known: Callable[[], bool]
    is_in_sync: Callable[[], bool]
    log_end: Callable[[], int]
    memory_bytes: int
    cold_line: ColdLine | None = None

    def check(self, *, lite: bool) -> None:
        """Raise RequestError when pulls are not answered here."""
        refusal = self.refusal(lite=lite)
        if refusal is not None:
            raise refusal.with_traceback(None)

    def refusal(self, *, lite: bool) -> RequestError | None:
        """Why pulls are not answered here; None when they are."""
        if lite and not self.settings.value.lite_pull:
            return NO_LITE
        if not self.settings.value.slave_read and not self.is_master() and self.is_master_known():
            return REFUSED
        return None

    def check_bulk(self) -> None:
        """Raise RequestError when nobody reads in bulk here at the moment."""
        if not self.is_in_sync():
            raise NOT_IN_SYNC.with_traceback(None)

    def suggest(self, read_up_to: int | None, usual_id: int = MASTER, slow_id: int = USUAL_SLOW_ID) -> int:
        """The broker id for the next pull, after reading up to a position of the log (None = nothing was found).

        `usual_id` and `slow_id` are the group's; one that says nothing special gets the broker's `slow_reads_from`.
        """
        if not self.settings.value.slave_read:
            return MASTER
        if read_up_to is None:
            return MASTER if self.sends_back else usual_id
        usual_id, far_id, far_below, _ = self.suggestions(usual_id, slow_id)
        return far_id if read_up_to < far_below else usual_id

    def suggestions(self, usual_id: int, slow_id: int) -> tuple[int, int, int, int]:
        """All that may be the same: the broker id of whoever finds something; the one of those who read up to a position that is
        far behind; below which position that is; and the one of those who find nothing."""
        if not self.settings.value.slave_read:
            return MASTER, MASTER, 0, MASTER
        far_id = slow_id if slow_id != USUAL_SLOW_ID else self.settings.value.slow_reads_from
        return usual_id, far_id, self._far_below, self.suggest(None, usual_id)

    def is_far_behind(self, position: int) -> bool:
        return position < self._far_below

    @property
    def _far_below(self) -> int:
        return self.log_end() - self.memory_bytes * self.settings.value.memory_percent // 100

    @property
    def sends_back(self) -> bool:
        """Whether a reader who found nothing is sent to the master instead of being held."""
        return not self.is_master() and self.is_master_known()
