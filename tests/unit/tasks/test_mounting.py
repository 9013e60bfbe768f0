"""Switching broker groups off and on, mounting and unmounting: what is refused, what comes when, what a stop leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from remoting import codes
from remoting.errors import ConnectionLost, RequestError
from remoting.facts.cluster_view import ClusterView, GroupView, ReplicaView
from remoting.tier.leases import Lease, LeaseState, encode_lease
from remoting.tier.names import lease_name
from remoting.tier.object_stores import StorePlace
from tasks.appliance import Appliance, NotReleased
from tasks.changes import Change, ChangeFailed, GoOnLater, Stopped
from tasks.mounting import MOST_RESTARTS, carry_out, mount, switch_off, switch_on, unmount
from webapp.appliance.layout import DataLayout
from webapp.wishes import GroupWish, Wish, alone, read_wish, write_wish

OWN, MOUNT, ADDRESS = "broker-a-1", "mount-broker-a", "127.0.0.1:1"


class World(Appliance):
    """An appliance with one group of one broker, and its controllers. The supervisor follows the wishes at each look at it."""

    def __init__(self, root: Path, has_tier: bool = True) -> None:
        place = StorePlace(f"file://{root}/tier", "", 1000, ("a", "b")) if has_tier else None
        super().__init__(DataLayout(root), place)
        self.states = {OWN: "running"}
        self.replicas: list[int] = [1]
        self.alive: set[int] = {1}
        self.did: list[str] = []
        self.lives_on = 0  # for so many looks the controllers believe that the dead live
        self.mount_state, self.why, self.restarts = "running", "", 0
        self.silent_looks = 0
        self.lease_is_free = True
        self.renewals = 0
        self.runs = True

    # -- the supervisor

    def brokers(self) -> Sequence[Mapping[str, Any]]:
        if not self.runs:
            return []
        wish = read_wish(self.wishes, "broker-a")
        self.states[OWN] = "running" if wish is None else "held"
        if wish is not None and wish.wish is Wish.MOUNTED:
            self.states[MOUNT] = self.mount_state
            if self.mount_state == "running" and 7 not in self.replicas:
                self.replicas, self.alive = [*self.replicas, 7], {7}
        else:
            self.states.pop(MOUNT, None)
            if not self.lives_on:
                self.alive = {1} if wish is None else set()
        return [
            {
                "name": name,
                "state": state,
                "group": "broker-a",
                "address": ADDRESS,
                "why": self.why,
                "restarts": self.restarts,
            }
            for name, state in self.states.items()
        ]

    # -- the tier

    def upload(self) -> None:
        self.objects("c", "broker-a").put("manifest/1-1", b"x")

    def lease(self, token: int, state: LeaseState = LeaseState.HELD) -> None:
        written = Lease(token, "h", f"{token:032x}", "far (10.0.0.9:10911)", 1_764_000_000_000, state)
        self.objects("c", "broker-a").put(lease_name(token), encode_lease(written))

    def release(self, cluster: str, group: str) -> str:
        self.did.append("release")
        if not self.lease_is_free:
            raise NotReleased("the mount at far serves")
        return "given back"

    # -- the controllers

    def cluster_view(self) -> ClusterView:
        if self.silent_looks:
            self.silent_looks -= 1
            raise ConnectionLost("nobody")
        if self.lives_on:
            self.lives_on -= 1
        else:
            self.brokers()
        replicas = tuple(
            ReplicaView(broker_id=each, address=ADDRESS, alive=each in self.alive or self.lives_on > 0)
            for each in self.replicas
        )
        groups = (GroupView(cluster_name="c", broker_name="broker-a", replicas=replicas),) if replicas else ()
        return ClusterView(controllers=(), groups=groups)

    def masters(self) -> dict[str, str]:
        return {"broker-a": ADDRESS} if self.alive else {}

    def forget_replicas(self, cluster: str, group: str) -> None:
        self.did.append(f"forget {self.replicas} while {(read_wish(self.wishes, group) or (None,) * 3)[2]}")
        if self.alive:
            raise RequestError(codes.SYSTEM_ERROR, "there is a master")
        self.replicas = []


class Asked:
    """An operation, in as many slices as it takes."""

    def __init__(self, world: World, stops: Callable[[str], bool] = lambda text: False) -> None:
        self.world, self.stops = world, stops
        self.now_s, self.place, self.slices = 0.0, None, 0
        self.texts: list[str] = []
        self.outcomes: dict[str, str] = {}

    def run(self, make: Callable[..., dict[str, Any]]) -> str:
        while True:
            self.slices += 1
            change = Change(
                self.world,  # type: ignore[arg-type]
                {"cluster": "c", "group": "broker-a"},
                lambda node, outcome, detail: self.outcomes.update({node: outcome}),
                lambda done, total, text: self.texts.append(text),
                now_s=lambda: self.now_s,
                pause=self.pause,
                place=self.place,
                tell_place=self.tell,
            )
            try:
                return str(carry_out(make, change, self.world)["sentence"])
            except GoOnLater:
                continue

    def pause(self, seconds: float) -> None:
        self.now_s += seconds
        if self.world.renewals:
            self.world.renewals += 1
            self.world.lease(self.world.renewals)

    def tell(self, done: int, total: int | None, text: str, place: Any) -> bool:
        self.texts.append(text)
        self.place = dict(place)
        return self.stops(text)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def wish_of(world: World) -> Wish | None:
    wish = read_wish(world.wishes, "broker-a")
    return None if wish is None else wish.wish


def test_a_group_is_switched_off_and_on(world: World) -> None:
    assert "switched off" in Asked(world).run(switch_off)
    assert (wish_of(world), world.states) == (Wish.DOWN, {OWN: "held"})
    again = Asked(world)
    again.run(switch_off)
    assert again.outcomes == {OWN: "UNCHANGED"}
    assert "runs its own brokers" in Asked(world).run(switch_on)
    assert (wish_of(world), world.states) == (None, {OWN: "running"})
    again = Asked(world)
    again.run(switch_on)
    assert again.outcomes == {OWN: "UNCHANGED"}


def test_a_group_that_is_off_is_mounted_and_given_back(world: World) -> None:
    world.upload()
    Asked(world).run(switch_off)
    world.lives_on = 30  # a slice is shorter
    asked = Asked(world)
    sentence = asked.run(mount)
    assert f"mounted read-only at {ADDRESS}" in sentence
    assert asked.slices > 1
    assert any(text.startswith("waiting: broker-a has living replicas") for text in asked.texts)
    assert world.did == ["forget [1] while down"], "before the mount, so that it is the only replica"
    first = read_wish(world.wishes, "broker-a")
    assert first is not None
    assert (first.wish, first.given_up) == (Wish.MOUNTED, True)
    data = world.layout.mount("broker-a", first.id)
    data.mkdir(parents=True)
    with pytest.raises(ChangeFailed, match="is mounted already"):
        Asked(world).run(mount)
    for make in (switch_off, switch_on):
        with pytest.raises(ChangeFailed, match="is mounted"):
            Asked(world).run(make)

    world.did.clear()
    assert "not mounted any more" in Asked(world).run(unmount)
    assert world.did == ["release", "forget [7] while released"]
    assert (wish_of(world), data.exists()) == (Wish.RELEASED, False)
    assert "not mounted any more" in Asked(world).run(unmount), "it may be made again"

    Asked(world).run(mount)
    second = read_wish(world.wishes, "broker-a")
    assert second is not None
    assert second.id != first.id, "each mount has a directory of its own"


def test_replicas_that_were_given_up_are_not_started_by_their_old_names(world: World) -> None:
    write_wish(world.wishes, GroupWish("c", "broker-a", Wish.RELEASED, "0badcafe", given_up=True))
    identity = world.layout.broker(OWN) / "brokerIdentity"
    identity.parent.mkdir(parents=True)
    identity.touch()
    with pytest.raises(ChangeFailed, match=str(identity)):
        Asked(world).run(switch_on)
    identity.unlink()
    Asked(world).run(switch_on)
    assert wish_of(world) is None


class OfThree(World):
    """A group of three brokers, whose replicas were given up; the directories of some have a log."""

    NAMES = ("broker-a-1", "broker-a-2", "broker-a-3")

    def __init__(self, root: Path, *with_logs: str) -> None:
        super().__init__(root)
        self.leads_after = 3  # looks
        self.seen: list[tuple[Wish | None, list[str]]] = []
        write_wish(self.wishes, GroupWish("c", "broker-a", Wish.RELEASED, "0badcafe", given_up=True))
        for name in with_logs:
            (self.layout.broker(name) / "commitlog").mkdir(parents=True)
            (self.layout.broker(name) / "commitlog" / "00000000000000000000").touch()

    def running(self) -> list[str]:
        wish = wish_of(self)
        return [each for each in self.NAMES if wish is None or (wish is Wish.FIRST and self.layout.has_log(each))]

    def brokers(self) -> Sequence[Mapping[str, Any]]:
        self.seen.append((wish_of(self), self.running()))
        one = super().brokers()[0]
        states = {each: "running" if each in self.running() else "held" for each in self.NAMES}
        return [{**one, "name": name, "state": state, "address": name} for name, state in states.items()]

    def masters(self) -> dict[str, str]:
        self.seen.append((wish_of(self), self.running()))
        self.leads_after -= bool(self.running())
        return {"broker-a": self.running()[0]} if self.running() and self.leads_after <= 0 else {}


def test_of_replicas_that_were_given_up_the_one_that_has_a_log_begins(tmp_path: Path) -> None:
    world = OfThree(tmp_path, "broker-a-2")
    asked = Asked(world)
    assert "runs its own brokers" in asked.run(switch_on)
    running = [running for wish, running in world.seen if wish is Wish.FIRST]
    assert running
    assert all(each == ["broker-a-2"] for each in running), "nobody else may be heard before it leads"
    assert any("broker-a-2, which has the log, does not lead" in text for text in asked.texts)
    assert (wish_of(world), world.running()) == (None, list(world.NAMES))


def test_one_of_them_that_never_leads_is_left_alone_and_asked_again_or_switched_off(tmp_path: Path) -> None:
    world = OfThree(tmp_path, "broker-a-2")
    world.leads_after = 1 << 30
    with pytest.raises(ChangeFailed, match="does not lead the group yet"):
        Asked(world).run(switch_on)
    assert wish_of(world) is Wish.FIRST
    (world.layout.broker("broker-a-2") / "brokerIdentity").touch()  # its own, of this start
    with pytest.raises(ChangeFailed, match="is not mounted"):
        Asked(world).run(unmount)
    world.leads_after = 1
    Asked(world).run(switch_on)
    assert wish_of(world) is None
    write_wish(world.wishes, GroupWish("c", "broker-a", Wish.FIRST, "0badcafe", given_up=True))
    Asked(world).run(switch_off)
    left = read_wish(world.wishes, "broker-a")
    assert left is not None
    assert (left.wish, left.given_up) == (Wish.DOWN, False)


def test_where_several_of_them_have_a_log_nobody_is_started(tmp_path: Path) -> None:
    world = OfThree(tmp_path, "broker-a-1", "broker-a-3")
    with pytest.raises(ChangeFailed, match="which of their logs has every acknowledged message") as refused:
        Asked(world).run(switch_on)
    assert all(str(world.layout.broker(name)) in str(refused.value) for name in ("broker-a-1", "broker-a-3"))
    assert str(world.layout.broker("broker-a-2")) not in str(refused.value)
    assert wish_of(world) is Wish.RELEASED


def test_without_a_log_they_begin_anew_together(tmp_path: Path) -> None:
    world = OfThree(tmp_path)
    Asked(world).run(switch_on)
    assert Wish.FIRST not in [wish for wish, _ in world.seen]
    assert wish_of(world) is None


def test_a_group_that_somebody_else_has_mounted_is_not_switched_on(world: World) -> None:
    Asked(world).run(switch_off)
    world.lease(3)
    with pytest.raises(ChangeFailed, match=r"mounted read-only by far \(10.0.0.9:10911\).*group unmount broker-a"):
        Asked(world).run(switch_on)
    assert wish_of(world) is Wish.DOWN
    world.lease(4, LeaseState.RELEASED)
    Asked(world).run(switch_on)


def test_what_cannot_be_mounted_says_why(tmp_path: Path) -> None:
    world = World(tmp_path)
    with pytest.raises(ChangeFailed, match=r"runs its own brokers \(alive: 127.0.0.1:1\).*group down broker-a"):
        Asked(world).run(mount)
    Asked(world).run(switch_off)
    with pytest.raises(ChangeFailed, match=r"no manifest of broker-a in file://"):
        Asked(world).run(mount)
    world.place = None
    with pytest.raises(ChangeFailed, match="no tier"):
        Asked(world).run(mount)
    world.runs = False
    for make in (mount, unmount, switch_off, switch_on):
        with pytest.raises(ChangeFailed, match="No supervisor"):
            Asked(world).run(make)
    assert wish_of(world) is Wish.DOWN
    assert world.did == []


def test_a_lease_that_is_renewed_is_not_waited_for_and_one_that_is_not_is_no_obstacle(world: World) -> None:
    world.upload()
    Asked(world).run(switch_off)
    world.lease(1)
    world.renewals = 1
    with pytest.raises(ChangeFailed, match=r"mounted by far \(10.0.0.9:10911\).*until 2025-11-24 16:00:30 UTC"):
        Asked(world).run(mount)
    assert (wish_of(world), world.did) == (Wish.DOWN, []), "nothing was given up for it"
    world.renewals = 0
    Asked(world).run(mount)
    assert wish_of(world) is Wish.MOUNTED


def test_replicas_that_live_elsewhere_keep_a_group_from_being_mounted(world: World) -> None:
    world.upload()
    Asked(world).run(switch_off)
    world.lives_on = 10_000
    with pytest.raises(ChangeFailed, match="has living replicas"):
        Asked(world).run(mount)
    wish = read_wish(world.wishes, "broker-a")
    assert wish is not None
    assert (wish.wish, wish.given_up, world.did) == (Wish.DOWN, False, []), "they may be switched on as they are"


def test_a_mount_that_keeps_ending_is_given_up_with_its_last_words(world: World) -> None:
    world.upload()
    Asked(world).run(switch_off)
    world.mount_state, world.why = "backing-off", "ended with exit code 1; it last said: no disk"
    world.restarts = MOST_RESTARTS
    with pytest.raises(ChangeFailed, match=r"cannot be mounted, and is off again: .*no disk"):
        Asked(world).run(mount)
    wish = read_wish(world.wishes, "broker-a")
    assert wish is not None
    assert (wish.wish, wish.given_up) == (Wish.DOWN, True), "the controllers forgot its replicas"


def test_a_stop_leaves_the_group_off(world: World) -> None:
    world.upload()
    Asked(world).run(switch_off)
    world.mount_state, world.why = "starting", "it waits for the lease"
    with pytest.raises(Stopped, match="stopped") as stopped:
        Asked(world, stops=lambda text: "it waits for the lease" in text).run(mount)
    assert "the mount is starting" in stopped.value.result["sentence"]
    assert stopped.value.result["sentence"].endswith("broker-a is left off.")
    assert wish_of(world) is Wish.DOWN


def test_controllers_that_are_silent_for_a_while_are_asked_again(world: World) -> None:
    world.upload()
    Asked(world).run(switch_off)
    world.silent_looks = 5
    asked = Asked(world)
    asked.run(mount)
    assert "waiting: the controllers do not answer: nobody" in asked.texts


def test_a_lease_that_is_not_given_back_is_told(world: World) -> None:
    world.upload()
    Asked(world).run(switch_off)
    Asked(world).run(mount)
    world.lease_is_free = False
    with pytest.raises(ChangeFailed, match="lease of broker-a is not given back: the mount at far serves"):
        Asked(world).run(unmount)
    with pytest.raises(ChangeFailed, match="not mounted"):
        Asked(World(world.layout.root / "other")).run(unmount)


def test_two_do_not_switch_one_group_at_once(world: World) -> None:
    with (
        alone(world.wishes, "broker-a"),
        pytest.raises(ChangeFailed, match="somebody else is switching broker group broker-a"),
    ):
        Asked(world).run(switch_off)
    (world.wishes / "broker-a.json").write_text("{")
    with pytest.raises(ChangeFailed, match="does not say what is wanted"):
        Asked(world).run(mount)
