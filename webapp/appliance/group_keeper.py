"""Following what people want of broker groups: who is switched off, and what is mounted.

One look after the other, each at the files as they are then; what a look finds wanted and not so is done, in the order that two
processes never have one address: the group's own brokers are off before its mount starts, and the mount before they do.
Called by `up`.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping

from webapp.appliance.layout import DataLayout
from webapp.appliance.plan import Plan, ProcessSpec, mount_of
from webapp.appliance.supervisor import Supervisor
from webapp.wishes import GroupWish, Wish, WishUnreadable, read_wishes

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5


class GroupKeeper:
    """`tell` gets a line for the person who watches `up`."""

    def __init__(self, plan: Plan, layout: DataLayout, supervisor: Supervisor, tell: Callable[[str], None]) -> None:
        self._groups = plan.broker_groups
        self._layout = layout
        self._supervisor = supervisor
        self._tell = tell
        self._told: dict[str, str] = {}
        self._off: set[str] = set()
        self._first: set[str] = set()  # groups of which one broker is on
        self._mounts: dict[str, ProcessSpec] = {}

    def begin(self) -> None:
        """Before anything is started: what is off stays off."""
        for group, wish in self._look().items():
            if wish is not None:
                self._off.add(group)
                self._supervisor.keep_off(self._own(group))

    async def run(self) -> None:
        """For as long as the appliance runs."""
        while True:
            await self.follow()
            await asyncio.sleep(LOOK_EVERY_S)

    async def follow(self) -> None:
        """One look, and what follows from it."""
        wishes = self._look()
        await asyncio.gather(*(self._follow_group(group, wish) for group, wish in wishes.items()))

    def _look(self) -> dict[str, GroupWish | WishUnreadable | None]:
        found: Mapping[str, GroupWish | WishUnreadable] = {}
        try:
            found = read_wishes(self._layout.groups)
        except OSError as error:
            self._say("", f"what is wanted of broker groups cannot be read, and all stays as it is: {error}")
            return {}
        return {group: found.get(group) for group in self._groups}

    async def _follow_group(self, group: str, wish: GroupWish | WishUnreadable | None) -> None:
        if isinstance(wish, WishUnreadable):
            self._say(group, str(wish))
            return  # it stays as it is
        wanted = self._wanted_mount(wish)
        if (present := self._mounts.get(group)) is not None and present != wanted:
            await self._supervisor.remove(present.name)
            del self._mounts[group]
            self._say(group, f"{group} is not mounted any more")
        if wish is None:
            if group in self._off:
                self._off.discard(group)
                self._first.discard(group)
                self._supervisor.switch_on(self._own(group))
                self._say(group, f"{group} is switched on")
            return
        if group not in self._off or (wish.wish is not Wish.FIRST and group in self._first):
            self._first.discard(group)
            await self._supervisor.switch_off(self._own(group))
            self._off.add(group)
            self._say(group, f"{group} is switched off")
        if wish.wish is Wish.FIRST:
            first = [name for name in self._own(group) if self._layout.has_log(name)]
            self._supervisor.switch_on(first)
            self._first.add(group)
            self._say(group, f"{', '.join(first)} of {group} is switched on, the others when it leads")
        if wanted is not None and group not in self._mounts and not self._supervisor.is_stopping():
            try:
                self._make_directory(group, wanted)
            except OSError as error:
                self._say(group, f"{group} cannot be mounted: there is no directory for it: {error}")
                return
            self._mounts[group] = wanted
            self._supervisor.add(wanted)
            self._say(group, f"{group} is being mounted read-only from its tier")

    def _wanted_mount(self, wish: GroupWish | None) -> ProcessSpec | None:
        if wish is None or wish.wish is not Wish.MOUNTED:
            return None
        return mount_of(self._groups[wish.group][0], self._layout.mount(wish.group, wish.id))

    def _make_directory(self, group: str, wanted: ProcessSpec) -> None:
        """That of this mount; what older ones left goes."""
        directory = self._layout.mounts(group)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        keep = wanted.argv[wanted.argv.index("--data") + 1]
        for each in directory.iterdir():
            if str(each) != keep:
                shutil.rmtree(each, ignore_errors=True)

    def _own(self, group: str) -> list[str]:
        return [process.name for process in self._groups[group]]

    def _say(self, group: str, text: str) -> None:
        if self._told.get(group) != text:
            self._told[group] = text
            self._tell(text)
