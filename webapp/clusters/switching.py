"""Broker groups switched off and on, mounted and given back: asked for here, carried out by a worker (`tasks.mounting`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from django.conf import settings

from remoting.facts.retiring import told, what_is_left
from remoting.facts.snapshot import Process
from webapp import gateway, snapshot
from webapp.accounts.permissions import Actor
from webapp.clusters import retiring
from webapp.clusters.retiring import PERMISSION, TARGET, named_group
from webapp.errors import Conflict, Problem
from webapp.operations.kinds import Kind, Parameters
from webapp.rules import Rules
from webapp.wishes import GroupWish, Wish, WishUnreadable, mount_process, read_wish, read_wishes

_BROKER: Final = "broker"


class SwitchedGroup(NamedTuple):
    """A broker group that does not run its own brokers. `process` is that of its mount, when it has one; `why`: what is wrong."""

    cluster: str
    group: str
    wish: str
    process: str
    state: str
    why: str

    @property
    def offers(self) -> list[tuple[str, str]]:
        """What may be done next: the change and what its button says."""
        changes = {
            Wish.MOUNTED: ["unmount"],
            Wish.DOWN: ["mount", "up"],
            Wish.RELEASED: ["mount", "up"],
            Wish.FIRST: ["up", "down"],
        }
        return [(each, DIALOGS[each].verb) for each in changes.get(Wish(self.wish), [])] if self.wish else []


def switched_groups(processes: Sequence[Process]) -> list[SwitchedGroup]:
    """All of them, by their names; `processes` are the appliance's."""
    found = []
    for group, wish in read_wishes(settings.ENVIRONMENT.data.groups).items():
        if isinstance(wish, WishUnreadable):
            found.append(SwitchedGroup("", group, "", "", "", str(wish)))
            continue
        mount = next((each for each in processes if each.name == mount_process(group)), None)
        seen = (mount.name, mount.state, mount.why or "") if mount is not None else ("", "", "")
        found.append(SwitchedGroup(wish.cluster, group, wish.wish, *seen))
    return found


def _own(group: str) -> list[Process]:
    """The group's own brokers, those that the appliance's supervisor has. Raises Conflict."""
    processes = snapshot.current().facts.processes
    own = [
        each for each in processes if each.group == group and each.kind == _BROKER and each.name != mount_process(group)
    ]
    if not own:
        raise Conflict(
            f"No supervisor of this machine's appliance runs brokers of {group}: what `manage.py up` did not start is switched "
            "off where it was started, and mounted with `python -m brokerd --mount`.",
            code="not-of-the-appliance",
        )
    return own


def _wish(group: str) -> GroupWish | None:
    try:
        return read_wish(settings.ENVIRONMENT.data.groups, group)
    except WishUnreadable as error:
        raise Conflict(f"{error}.", code="wish-unreadable") from error


def _may_down(group: str, wish: GroupWish | None) -> None:
    if wish is not None and wish.wish is Wish.MOUNTED:
        raise Conflict(f"{group} is mounted: its own brokers are off. Unmount it to end that, too.", code="mounted")


def _may_up(group: str, wish: GroupWish | None) -> None:
    if wish is not None and wish.wish is Wish.MOUNTED:
        raise Conflict(f"{group} is mounted: unmount it first.", code="mounted")


def _may_mount(group: str, wish: GroupWish | None) -> None:
    if wish is None:
        raise Conflict(
            f"{group} runs its own brokers, and to mount it is to give their logs up. If they are lost, or not wanted any more, "
            f"switch them off first: `manage.py group down {group}`.",
            code="not-off",
        )
    if wish.wish is Wish.MOUNTED:
        raise Conflict(f"{group} is mounted already.", code="mounted")


def _may_unmount(group: str, wish: GroupWish | None) -> None:
    if wish is None:
        raise Conflict(f"{group} is not mounted: it runs its own brokers.", code="not-mounted")


def _validate(may: Callable[[str, GroupWish | None], None]) -> Callable[[Actor, Parameters], Parameters]:
    def validate(actor: Actor, parameters: Parameters) -> Parameters:
        rules = Rules(parameters)
        cleaned = named_group(rules)
        rules.finish()
        _own(cleaned["group"])
        may(cleaned["group"], _wish(cleaned["group"]))
        return cleaned

    return validate


def _plan_down(parameters: Parameters) -> list[dict[str, str]]:
    group = parameters["group"]
    steps = [{"node": each.name, "change": "stops, and is not started again"} for each in _own(group)]
    try:
        state = gateway.master_state(group)
    except Problem:
        state = None
    left = what_is_left(state) if state is not None else {}
    if left:
        steps.append({"node": group, "change": f"messages that only its own brokers have: {told(left)}"})
    return steps


def _plan_up(parameters: Parameters) -> list[dict[str, str]]:
    return [{"node": each.name, "change": "is started"} for each in _own(parameters["group"])]


def _plan_mount(parameters: Parameters) -> list[dict[str, str]]:
    group = parameters["group"]
    return [
        {"node": "controllers", "change": f"forget the replicas of {group}: their logs do not count any more"},
        {"node": mount_process(group), "change": f"serves what the tier has, read-only, at {_own(group)[0].address}"},
        {"node": group, "change": "messages that wait for a time are not delivered, also those that wait in the tier"},
    ]


def _plan_unmount(parameters: Parameters) -> list[dict[str, str]]:
    group = parameters["group"]
    return [
        {"node": mount_process(group), "change": "stops, and gives its lease in the tier back"},
        {"node": "controllers", "change": "forget the mount"},
    ]


def _kind(
    action: str,
    title: str,
    may: Callable[[str, GroupWish | None], None],
    plan: Callable[[Parameters], list[dict[str, str]]],
) -> Kind:
    return Kind(
        f"broker-group.{action}", title, PERMISSION, _validate(may), plan, target=TARGET, is_dangerous=action != "up"
    )


DOWN: Final = _kind("down", "Switch off broker group", _may_down, _plan_down)
UP: Final = _kind("up", "Switch on broker group", _may_up, _plan_up)
MOUNT: Final = _kind("mount", "Mount broker group", _may_mount, _plan_mount)
UNMOUNT: Final = _kind("unmount", "Unmount broker group", _may_unmount, _plan_unmount)


class Dialog(NamedTuple):
    """How one of them is asked for: what it means for people, and what the button says."""

    kind: Kind
    meaning: str
    verb: str


DIALOGS: Final[Mapping[str, Dialog]] = {
    "retire": Dialog(
        retiring.RETIRE,
        "Producers go to other broker groups from now on; consumers go on. When nothing waits there any more, and the tier has "
        "all of it, its brokers may be switched off. A stop makes its topics writable again.",
        "Retire",
    ),
    "down": Dialog(
        DOWN,
        "Its brokers stop, also over the next start: nobody can send to it or read from it until it is switched on again.",
        "Switch off",
    ),
    "up": Dialog(UP, "Its own brokers are started, with what is on their disks.", "Switch on"),
    "mount": Dialog(
        MOUNT,
        "Its own brokers are given up for good. What was uploaded is served read-only under the same name; messages that were "
        "not, and open transactions, are not there. Messages that wait for a time are not delivered, also those that wait in the "
        "tier: send them again elsewhere, or switch the group on with a disk that is left.",
        "Mount",
    ),
    "unmount": Dialog(
        UNMOUNT,
        "Nobody serves it any more, and consumers wait. What they finished is kept in the tier, for the next mount.",
        "Unmount",
    ),
}
