"""The replication driver of a simulated broker as its core wants it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.replication.roles.driver import ReplicationDriver
from brokerd.store.put_status import PutStatus


class SimReplica:
    """The driver as `BrokerCore` wants it."""

    def __init__(
        self,
        driver: ReplicationDriver,
        now_ms: Callable[[], int],
        appended: Callable[[int, int], None],
        happened: Callable[[], None],
    ) -> None:
        self._driver = driver
        self._now_ms = now_ms
        self._appended = appended
        self._happened = happened
        self.add_role_listener = driver.role_listeners.append
        self.add_confirm_listener = driver.confirm_listeners.append

    @property
    def is_master(self) -> bool:
        return self._driver.is_master

    @property
    def accepts_messages(self) -> bool:
        return self._driver.accepts_messages

    @property
    def acknowledges_alone(self) -> bool:
        return self._driver.acknowledges_alone

    @property
    def acknowledges_durable(self) -> bool:
        return self._driver.acknowledges_durable

    @property
    def refusal(self) -> PutStatus:
        return self._driver.refusal

    @property
    def confirm_offset(self) -> int:
        return self._driver.machine.confirm_offset

    @property
    def epochs(self) -> Sequence[EpochEntry]:
        return self._driver.machine.epochs.entries

    def on_appended(self, end_offset: int) -> None:
        self._appended(self._driver.machine.log.end_offset, end_offset)
        self._driver.on_appended(end_offset, self._now_ms())
        self._happened()

    def wait(self, position: int, callback: Callable[[PutStatus], None]) -> None:
        self._driver.wait(position, callback, self._now_ms())
