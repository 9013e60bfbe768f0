"""Broker groups of the appliance, switched off and on, served read-only from their tier, and given back.

What is wanted of a group is a file that the supervisor follows (`webapp.wishes`); the work here is to refuse what cannot be, to
write the files in the right order around what the controllers and the tier have to know, and to see that it came true. Each step
may be made again: a worker that takes one up later finds in the files, and in its place, how far it is.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from remoting.client.blocking import NodeOutcome
from remoting.errors import ConnectionLost, RequestError, RequestTimeout, SettingsError
from remoting.facts.words import Outcome
from remoting.tier.leases import LEASE_S, Lease, LeaseState, sentence_of
from tasks.appliance import Appliance, NotReleased
from tasks.changes import Change, ChangeFailed, GoOnLater, Stopped
from tasks.tier.mounts import has_manifest, latest_lease
from tasks.tier.objects import TierError
from webapp.wishes import (
    Busy,
    GroupWish,
    Wish,
    WishUnreadable,
    alone,
    mount_process,
    read_wish,
    remove_wish,
    write_wish,
)

LOOK_EVERY_S: Final = 1.0
WORK_FOR_S: Final = 25.0  # then others have their turn
# How many looks each step has
STOP_LOOKS: Final = 40
DEATH_LOOKS: Final = 60  # until the controllers believe it
RENEWAL_LOOKS: Final = 15  # a holder renews its lease every 10 s
SERVE_LOOKS: Final = 150
START_LOOKS: Final = 60
MOST_RESTARTS: Final = 3  # of a mount that ends each time
_ID_BYTES: Final = 4
_IDENTITY: Final = "brokerIdentity"  # of a broker that the controllers know

_OFF: Final = (Wish.DOWN, Wish.RELEASED)
_LEFT: Final = {
    None: "to its own brokers",
    Wish.DOWN: "off",
    Wish.RELEASED: "off",
    Wish.MOUNTED: "mounted",
    Wish.FIRST: "to the one of its brokers that has a log",
}


class _Work:
    """One operation on one group, in slices. `place` is what the next slice has to know."""

    def __init__(self, change: Change, appliance: Appliance) -> None:
        self.change = change
        self.appliance = appliance
        self.cluster: str = change.parameters["cluster"]
        self.group: str = change.parameters["group"]
        self.place: dict[str, Any] = dict(change.place or {})
        self._began_s = change.now_s()

    # ---- what is wanted

    def wish(self) -> GroupWish | None:
        return read_wish(self.appliance.wishes, self.group)

    def want(self, wish: Wish, mount_id: str, given_up: bool) -> None:
        write_wish(self.appliance.wishes, GroupWish(self.cluster, self.group, wish, mount_id, given_up))

    # ---- what runs

    def own(self) -> list[Mapping[str, Any]]:
        """The group's own brokers, as the supervisor has them now. Raises ChangeFailed."""
        found = [each for each in self._brokers() if not _is_mount(each, self.group)]
        if not found:
            raise ChangeFailed(
                "not-of-the-appliance",
                f"No supervisor of this machine's appliance runs brokers of {self.group}. What `manage.py up` did not start is "
                "switched off where it was started, and mounted with `python -m brokerd --mount`.",
            )
        return found

    def mount(self) -> Mapping[str, Any] | None:
        """The process that serves the group in their place."""
        return next((each for each in self._brokers() if _is_mount(each, self.group)), None)

    def _brokers(self) -> list[Mapping[str, Any]]:
        return [each for each in self.appliance.brokers() if each["group"] == self.group]

    # ---- going on

    def tell(self, text: str) -> None:
        """Raises Stopped when somebody wants the end of it."""
        if self.change.tell_place(0, None, text, self.place):
            raise Stopped({"sentence": f"Stopped while {text}."})

    def until(self, step: str, look: Callable[[], str], looks: int, code: str) -> None:
        """Look until nothing is lacking any more. Raises ChangeFailed with what is, after so many looks."""
        while lacks := self._asked(look):
            seen = self.place.get(step, 0)
            if seen >= looks:
                raise ChangeFailed(code, f"{lacks}. Asking again is safe, and goes on.")
            self.place[step] = seen + 1
            self.tell(f"waiting: {lacks}")
            self.pause_or_go_on_later()

    def pause_or_go_on_later(self) -> None:
        if self.change.now_s() - self._began_s >= WORK_FOR_S:
            raise GoOnLater
        self.change.pause(LOOK_EVERY_S)

    def begin_slice(self) -> None:
        """What comes now takes long, so it has a slice of its own."""
        if self.change.now_s() - self._began_s >= LOOK_EVERY_S:
            self.tell("going on")
            raise GoOnLater

    def _asked(self, look: Callable[[], str]) -> str:
        try:
            return look()
        except RequestError as error:
            if not error.retriable:
                raise
            return f"the controllers cannot say now: {error.message}"
        except (ConnectionLost, RequestTimeout) as error:
            return f"the controllers do not answer: {error}"

    # ---- what the controllers know

    def living(self) -> list[str]:
        """The addresses of the group's replicas that the controllers hear."""
        for each in self.change.client.cluster_view().groups:
            if (each.cluster_name, each.broker_name) == (self.cluster, self.group):
                return [replica.address or f"replica {replica.broker_id}" for replica in each.replicas if replica.alive]
        return []

    def forget_dead(self) -> str:
        """Have the controllers forget the group's replicas, which are dead; what is lacking for that."""
        if living := self.living():
            return f"{self.group} has living replicas: {', '.join(living)}"
        known = [(each.cluster_name, each.broker_name) for each in self.change.client.cluster_view().groups]
        if (self.cluster, self.group) in known:
            self.place["given_up"] = True  # also when the answer is lost
            try:
                self.change.client.forget_replicas(self.cluster, self.group)
            except RequestError as error:
                return f"the controllers do not forget the replicas of {self.group} yet: {error.message}"
        return ""


def _is_mount(process: Mapping[str, Any], group: str) -> bool:
    return bool(process["name"] == mount_process(group))


def switch_off(work: _Work) -> dict[str, Any]:
    """No broker of the group runs any more, nor is one started, until it is switched on."""
    work.own()
    wish = work.wish()
    if wish is not None and wish.wish is Wish.MOUNTED:
        raise ChangeFailed("mounted", f"{work.group} is mounted: its own brokers are off. Unmount it to end that, too.")
    if wish is None:
        work.want(Wish.DOWN, "", given_up=False)
    elif wish.wish is Wish.FIRST:  # the controllers know that broker again
        work.want(Wish.DOWN, wish.id, given_up=False)

    def lacks() -> str:
        running = [each["name"] for each in work.own() if each["state"] != "held"]
        return f"{', '.join(running)} still {'runs' if len(running) == 1 else 'run'}" if running else ""

    work.until("off", lacks, STOP_LOOKS, "not-off")
    names = [each["name"] for each in work.own()]
    work.change.record(
        [NodeOutcome(name, Outcome.CONFIRMED if wish is None else Outcome.UNCHANGED, "is off") for name in names]
    )
    return {
        "sentence": f"{work.group} is switched off, and stays so over a start, until `manage.py group up {work.group}`."
    }


def switch_on(work: _Work) -> dict[str, Any]:
    """The group's own brokers run again."""
    own = work.own()
    wish = work.wish()
    if wish is not None:
        if wish.wish is Wish.MOUNTED:
            raise ChangeFailed(
                "mounted", f"{work.group} is mounted: unmount it first (`manage.py group unmount {work.group}`)."
            )
        if wish.wish is not Wish.FIRST:
            if wish.given_up:
                _refuse_identities(work, own)
            _refuse_foreign_lease(work)
        if wish.given_up and (first := _only_log(work, own)) is not None:
            work.want(Wish.FIRST, wish.id, given_up=True)
            work.until("first", lambda: _does_not_lead(work, first), START_LOOKS, "not-on")
        remove_wish(work.appliance.wishes, work.group)

    def lacks() -> str:
        idle = [each for each in work.own() if each["state"] != "running"]
        return "; ".join(f"{each['name']} is {each['state']}: {each['why']}" for each in idle)

    work.until("on", lacks, START_LOOKS, "not-on")
    outcome = Outcome.CONFIRMED if wish is not None else Outcome.UNCHANGED
    work.change.record([NodeOutcome(each["name"], outcome, "runs") for each in own])
    return {"sentence": f"{work.group} runs its own brokers."}


def _refuse_identities(work: _Work, own: Sequence[Mapping[str, Any]]) -> None:
    """Replicas that were given up are unknown to the controllers, which refuse them for ever."""
    files = [work.appliance.layout.broker(each["name"]) / _IDENTITY for each in own]
    if found := [str(each) for each in files if each.exists()]:
        raise ChangeFailed(
            "given-up",
            f"{work.group} was mounted, and for that its replicas were given up: the controllers refuse them by their old names. "
            f"To go on with their logs, move these files away, then switch the group on: {', '.join(found)}",
        )


def _only_log(work: _Work, own: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Of brokers that the controllers do not know any more the one that must be heard first, since it has a log and others have
    none: they would begin the group anew, and it would drop what it has. Raises ChangeFailed when several have one."""
    layout = work.appliance.layout
    having = [each for each in own if layout.has_log(each["name"])]
    if len(having) > 1:
        raise ChangeFailed(
            "several-logs",
            f"{work.group} was mounted, and for that its replicas were given up: nobody knows any more which of their logs has "
            "every acknowledged message, and the one that is heard first would have the others drop what it lacks. Keep the one "
            "that goes on longest (epochFileCheckpoint and commitlog in its directory say how far it goes), move the directories "
            "of the others away, which copy it then, and switch the group on: "
            f"{', '.join(str(layout.broker(each['name'])) for each in having)}",
        )
    return having[0] if having and len(own) > 1 else None


def _does_not_lead(work: _Work, first: Mapping[str, Any]) -> str:
    leads = work.change.client.masters().get(work.group) == first["address"]
    return (
        "" if leads else f"{first['name']}, which has the log, does not lead the group yet; the others start behind it"
    )


def _refuse_foreign_lease(work: _Work) -> None:
    """Brokers of a group that is mounted end by themselves, so they are not started. A tier that does not answer keeps nobody."""
    if work.appliance.place is None:
        return
    try:
        lease = latest_lease(work.appliance.objects(work.cluster, work.group))
    except (TierError, SettingsError):
        return
    if lease is not None and lease.keeps_group_from_leading:
        raise ChangeFailed("mounted", f"{sentence_of(lease, work.group)}.")


def mount(work: _Work) -> dict[str, Any]:
    """What the group's tier has is served read-only under its name, in the place of its own brokers."""
    own = work.own()
    wish = work.wish()
    if "id" not in work.place:
        if wish is not None and wish.wish is Wish.MOUNTED:
            lacks = _mount_lacks(work)
            raise ChangeFailed("mounted", f"{work.group} is mounted already{f'; {lacks}' if lacks else ''}.")
        _refuse_what_cannot_be_mounted(work, wish)
        work.place |= {"id": secrets.token_hex(_ID_BYTES), "given_up": wish is not None and wish.given_up}
        work.want(
            Wish.DOWN, work.place["id"], given_up=True
        )  # before the controllers forget them: they refuse them then
        work.tell("the controllers forget the group's own replicas")
    elif wish is None or wish.id != work.place["id"]:
        raise ChangeFailed("superseded", f"Somebody else wants something else of {work.group} now.")
    mount_id = work.place["id"]
    try:
        if "forgotten" not in work.place:
            work.until("death", work.forget_dead, DEATH_LOOKS, "replicas-alive")
            work.place["forgotten"] = True
            work.want(Wish.MOUNTED, mount_id, given_up=True)
            work.tell("starting the mount")
        work.until("serving", lambda: _mount_lacks(work), SERVE_LOOKS, "mount-failed")
    except (ChangeFailed, Stopped):
        work.want(Wish.DOWN, mount_id, given_up=work.place["given_up"])
        raise
    address = own[0]["address"]
    work.change.record([NodeOutcome(mount_process(work.group), Outcome.CONFIRMED, f"serves at {address}")])
    return {
        "sentence": f"{work.group} is mounted read-only at {address}: consumers go on there, sends are refused. "
        f"`manage.py group unmount {work.group}` ends it.",
        "address": address,
    }


def _refuse_what_cannot_be_mounted(work: _Work, wish: GroupWish | None) -> None:
    group = work.group
    if wish is None or wish.wish not in _OFF:
        living = ", ".join(work.living())
        raise ChangeFailed(
            "not-off",
            f"{group} runs its own brokers{f' (alive: {living})' if living else ''}, and to mount it is to give their logs up. "
            f"If they are lost, or not wanted any more, switch them off first: `manage.py group down {group}`.",
        )
    if work.appliance.place is None:
        raise ChangeFailed(
            "no-tier", f"The appliance has no tier, so there is nothing to mount {group} from: start it with `--tier`."
        )
    try:
        objects = work.appliance.objects(work.cluster, group)
        if not has_manifest(objects):
            raise ChangeFailed(
                "no-manifest",
                f"There is no manifest of {group} in {work.appliance.place.url}: it uploaded nothing there, so nothing can be "
                "mounted. See that --tier is the one that its brokers had.",
            )
        _refuse_held(work, lambda: latest_lease(objects))
    except (TierError, SettingsError) as error:
        raise ChangeFailed("tier-unreachable", f"The tier does not say what it has of {group}: {error}") from error


def _refuse_held(work: _Work, look: Callable[[], Lease | None]) -> None:
    """When somebody else's lease is renewed while this looks. One that is not was left by a mount that died, and ends."""
    first = look()
    if first is None or first.state is not LeaseState.HELD:
        return
    for seen in range(RENEWAL_LOOKS):
        work.tell(
            f"watching whether {first.who}, whose mount it is or was, renews its lease ({seen} of {RENEWAL_LOOKS} s)"
        )
        work.change.pause(LOOK_EVERY_S)
        now = look()
        if now is not None and now.token != first.token and now.state is LeaseState.HELD:
            raise ChangeFailed(
                "lease-held",
                f"{work.group} is mounted by {now.who}, which renews its lease: it has it until {_end_of(now)} by its clock, and "
                "renews it before. Unmount it there first.",
            )


def _end_of(lease: Lease) -> str:
    at = datetime.fromtimestamp(lease.at_ms / 1000 + LEASE_S, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _mount_lacks(work: _Work) -> str:
    process = work.mount()
    if process is None:
        return "the supervisor starts the mount"
    says = f"the mount is {process['state']}: {process['why']}"
    if process["state"] == "failed" or (process["state"] == "backing-off" and process["restarts"] >= MOST_RESTARTS):
        raise ChangeFailed("mount-failed", f"{work.group} cannot be mounted, and is off again: {process['why']}")
    if process["state"] != "running":
        return says
    if work.change.client.masters().get(work.group) != process["address"]:
        return "the controllers do not know the mount as the group's master yet"
    return ""


def unmount(work: _Work) -> dict[str, Any]:
    """Nobody serves the group any more, and its lease is given back; its own brokers stay off."""
    work.own()
    wish = work.wish()
    if wish is None or wish.wish is Wish.FIRST:
        raise ChangeFailed("not-mounted", f"{work.group} is not mounted: it runs its own brokers.")
    if work.appliance.place is None:
        raise ChangeFailed(
            "no-tier", f"The appliance has no tier any more, so the lease of {work.group} cannot be given back."
        )
    if wish.wish is not Wish.RELEASED:
        work.want(Wish.RELEASED, wish.id, wish.given_up)
    work.until("stopped", lambda: "the mount ends" if work.mount() is not None else "", STOP_LOOKS, "mount-runs")
    if "released" not in work.place:
        work.begin_slice()
        work.change.tell_progress(0, None, "giving the lease back; after a kill it is watched for 30 s first")
        try:
            work.place["released"] = work.appliance.release(work.cluster, work.group)
        except NotReleased as error:
            raise ChangeFailed("not-released", f"The lease of {work.group} is not given back: {error}") from error
        work.tell("the controllers forget the mount")
    work.until("death", work.forget_dead, DEATH_LOOKS, "mount-alive")
    shutil.rmtree(work.appliance.layout.mounts(work.group), ignore_errors=True)
    work.change.record([NodeOutcome(work.group, Outcome.CONFIRMED, "is given back")])
    return {
        "sentence": f"{work.group} is not mounted any more. It stays off until it is mounted again, or switched on: "
        f"`manage.py group up {work.group}`."
    }


def carry_out(make: Callable[[_Work], dict[str, Any]], change: Change, appliance: Appliance) -> dict[str, Any]:
    """One slice of one of them, while nobody else works at the group. What goes wrong with the files becomes a sentence."""
    try:
        with alone(appliance.wishes, change.parameters["group"]):
            return make(_Work(change, appliance))
    except Stopped as stopped:
        group = change.parameters["group"]
        left = read_wish(appliance.wishes, group)
        stopped.result["sentence"] += f" {group} is left {_LEFT[left.wish if left is not None else None]}."
        raise
    except Busy as error:
        raise ChangeFailed("busy", f"Not done: {error}.") from error
    except WishUnreadable as error:
        raise ChangeFailed("wish-unreadable", f"Not done: {error}.") from error
    except OSError as error:
        raise ChangeFailed("wish-not-written", f"What is wanted cannot be written down: {error}") from error


def _here(make: Callable[[_Work], dict[str, Any]]) -> Callable[[Change], dict[str, Any]]:
    return lambda change: carry_out(make, change, Appliance.here())


MOUNTING: Mapping[str, Callable[[Change], dict[str, Any]]] = {
    "broker-group.down": _here(switch_off),
    "broker-group.up": _here(switch_on),
    "broker-group.mount": _here(mount),
    "broker-group.unmount": _here(unmount),
}
