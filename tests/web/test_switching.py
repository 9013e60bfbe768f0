"""Switching broker groups off and on, mounting and unmounting, in the console: asked for in a dialog, refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from django.test import Client

from tests.web.fakes import MemorySnapshots, snapshot_document
from webapp.appliance.layout import DataLayout
from webapp.operations.models import Operation
from webapp.wishes import GroupWish, Wish, write_wish

_NAMES = {"cluster": "DefaultCluster", "group": "broker-a"}
_QUERY = "cluster=DefaultCluster&group=broker-a"
_WISHES = {wish: GroupWish("DefaultCluster", "broker-a", wish, "0badcafe") for wish in Wish}


@pytest.fixture
def want(settings: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Wish | None], None]:
    """Have this wanted of broker-a, whose brokers the appliance runs."""
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, data=DataLayout(tmp_path))
    monkeypatch.setattr("webapp.gateway.master_state", lambda name: None)
    document = snapshot_document()
    for process in document["processes"]:
        if process["name"].startswith("broker-a"):
            process |= {"group": "broker-a", "kind": "broker"}
    mount = {
        "name": "mount-broker-a",
        "kind": "broker",
        "group": "broker-a",
        "state": "starting",
        "why": "it waits for the lease",
    }
    document["processes"] = [*document["processes"], mount]
    MemorySnapshots.put(document)

    def wanted(wish: Wish | None) -> None:
        if wish is not None:
            write_wish(tmp_path / "groups", _WISHES[wish])

    return wanted


@pytest.mark.parametrize(
    ("wish", "change", "step", "button"),
    [
        (None, "down", "stops, and is not started again", "Switch off"),
        (Wish.DOWN, "up", "is started", "Switch on"),
        (Wish.DOWN, "mount", "forget the replicas of broker-a", "Mount"),
        (Wish.RELEASED, "mount", "serves what the tier has, read-only", "Mount"),
        (Wish.MOUNTED, "unmount", "gives its lease in the tier back", "Unmount"),
    ],
)
def test_what_would_be_done_is_shown_and_done_when_it_is_confirmed(
    admin: Client, want: Callable[[Wish | None], None], wish: Wish | None, change: str, step: str, button: str
) -> None:
    want(wish)
    page = admin.get(f"/broker-groups/{change}?{_QUERY}").content.decode()
    assert step in page
    assert f">{button}</button>" in page
    assert not Operation.objects.exists(), "asking changes nothing"
    answer = admin.post(f"/broker-groups/{change}", _NAMES)
    operation = Operation.objects.get()
    assert (answer.status_code, operation.kind) == (302, f"broker-group.{change}")
    assert operation.target == "DefaultCluster/broker-a"


@pytest.mark.parametrize(
    ("wish", "change", "code", "sentence"),
    [
        (Wish.MOUNTED, "down", "mounted", "Unmount it to end that"),
        (Wish.MOUNTED, "up", "mounted", "unmount it first"),
        (None, "mount", "not-off", "switch them off first"),
        (Wish.MOUNTED, "mount", "mounted", "mounted already"),
        (None, "unmount", "not-mounted", "it runs its own brokers"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    admin: Client,
    bearer: Callable[..., dict[str, str]],
    want: Callable[[Wish | None], None],
    wish: Wish | None,
    change: str,
    code: str,
    sentence: str,
) -> None:
    want(wish)
    page = admin.get(f"/broker-groups/{change}?{_QUERY}").content.decode()
    assert sentence in page
    assert '<button class="button' not in page
    headers = bearer("admin", "broker-groups.write")
    refused = Client().post(f"/api/v1/groups/DefaultCluster/broker-a/{change}", headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (409, code)
    assert not Operation.objects.exists()


def test_a_group_of_somebody_else_is_not_switched_here(admin: Client, want: Callable[[Wish | None], None]) -> None:
    page = admin.get("/broker-groups/down?cluster=DefaultCluster&group=broker-z").content.decode()
    assert "No supervisor of this machine" in page
    assert admin.get("/broker-groups/explode").status_code == 404


def test_groups_that_do_not_run_their_own_brokers_are_listed(
    admin: Client,
    viewer: Client,
    bearer: Callable[..., dict[str, str]],
    want: Callable[[Wish | None], None],
    tmp_path: Path,
) -> None:
    assert "broker groups that are off" not in admin.get("/").content.decode().lower()
    assert "read-only mount" not in admin.get("/").content.decode()
    want(Wish.MOUNTED)
    (tmp_path / "groups" / "broker-c.json").write_text("{")
    page = admin.get("/").content.decode()
    assert "it waits for the lease" in page
    assert "read-only mount" in page, "beside the group's name"
    assert f'href="/broker-groups/unmount?{_QUERY.replace("&", "&amp;")}"' in page
    assert "groups/broker-c.json does not say what is wanted" in page
    assert f'href="/broker-groups/down?{_QUERY.replace("&", "&amp;")}"' not in page, "it is off"
    assert "/broker-groups/" not in viewer.get("/").content.decode()
    listed = Client().get("/api/v1/group-wishes", headers=bearer("viewer", "cluster.read")).json()["items"]
    assert [(each["group"], each["wish"], each["state"]) for each in listed] == [
        ("broker-a", "mounted", "starting"),
        ("broker-c", "", ""),
    ]


def test_who_may_only_look_may_not(viewer: Client, operator: Client, want: Callable[[Wish | None], None]) -> None:
    want(Wish.DOWN)
    for client in (viewer, operator):
        for change in ("down", "up", "mount", "unmount"):
            assert client.get(f"/broker-groups/{change}?{_QUERY}").status_code == 403
            assert client.post(f"/broker-groups/{change}", _NAMES).status_code == 403
    assert not Operation.objects.exists()
