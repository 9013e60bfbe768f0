"""The command line: topics and groups through REST against a live server, tokens in the database; exit codes that tell."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pytest_django.live_server_helper import LiveServer

from remoting.group_settings import settings_of
from tests.web.fakes import FakeCluster, MemorySnapshots, RecordingQueue, snapshot_document
from webapp.accounts import services, tokens
from webapp.accounts.models import ApiToken, User
from webapp.api import client
from webapp.appliance.layout import DataLayout
from webapp.appliance.prepare import ensure_cli_token
from webapp.audit.models import AuditEntry
from webapp.operations import progress
from webapp.operations.models import Operation
from webapp.wishes import GroupWish, Wish, write_wish


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def refused(*arguments: str) -> CommandError:
    with pytest.raises(CommandError) as error:
        run(*arguments)
    return error.value


@pytest.fixture
def at_live_server(transactional_db: None, live_server: LiveServer, settings: Any, tmp_path: Path) -> None:
    """The commands talk to the live server, with the token that the appliance keeps."""
    services.ensure_admin()
    ensure_cli_token(tmp_path / "secrets" / "cli-token")
    address = live_server.url.removeprefix("http://")
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, http=address, data=DataLayout(tmp_path))
    assert settings.ENVIRONMENT.data.cli_token_file == tmp_path / "secrets" / "cli-token"


def worker(outcome: str) -> Any:
    """A queue whose worker carries out each operation at once."""

    def send(self: RecordingQueue, name: str, operation_id: str) -> None:
        progress.start(operation_id)
        progress.node(operation_id, "broker-a", outcome, "" if outcome == "CONFIRMED" else "disk full")
        if outcome == "CONFIRMED":
            progress.succeed(operation_id)
        else:
            progress.fail(operation_id, "refused", "broker-a refused")

    return send


@pytest.mark.usefixtures("at_live_server")
def test_topics_and_groups_from_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordingQueue, "send", worker("CONFIRMED"))
    assert run("topic", "create", "payments", "--type", "FIFO", "--queues", "4") == "created payments\n"
    assert Operation.objects.get().parameters == {
        "name": "payments",
        "type": "FIFO",
        "queues": 4,
        "perm": 6,
        "group": None,
    }
    assert run("topic", "create", "orders", "--if-missing") == "orders exists\n"
    assert "orders\tNORMAL\t4 queues\t600 messages" in run("topic", "list")
    assert "rmq_sys" not in run("topic", "list")
    assert run("topic", "delete", "orders") == "deleted orders\n"
    assert run("group", "create", "mail", "--fifo") == "created mail\n"
    assert "billing\tlag 30\t1 members" in run("group", "list")
    assert run("group", "delete", "audit_log") == "deleted audit_log\n"


@pytest.mark.usefixtures("at_live_server")
def test_settings_of_a_group_from_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordingQueue, "send", worker("CONFIRMED"))
    FakeCluster.settings["billing"] = settings_of({"invisible.max.ms": "30000"})
    named = ("--order-scope", "QUEUE", "--invisible-min-ms", "20000", "--invisible-default-ms", "none")
    assert run("group", "set", "billing", *named) == "changed billing\n"
    changed = Operation.objects.get()
    assert (changed.kind, changed.parameters) == (
        "group.update",
        {"name": "billing", "order_scope": "QUEUE", "invisible_min_ms": 20_000, "invisible_default_ms": None},
    )
    assert [entry.action for entry in AuditEntry.objects.filter(operation_id=changed.pk)] == ["group.update"]
    assert "must not be more than invisible_max_ms, which is 30000" in str(
        refused("group", "set", "billing", "--invisible-min-ms", "30001")
    )
    assert "Name at least one of" in str(refused("group", "set", "billing"))
    assert "There is no consumer group" in str(refused("group", "set", "nobody", "--order-scope", "QUEUE"))
    assert "invisible-max-ms" in str(refused("group", "set", "billing", "--invisible-max-ms", "soon"))
    assert "invisible_max_ms\tnone" in run("group", "settings", "billing").splitlines()
    assert json.loads(run("group", "settings", "billing", "--json"))["order_scope"] is None
    run("group", "create", "made", "--fifo", "--order-scope", "QUEUE", "--invisible-max-ms", "5000")
    parameters = Operation.objects.get(kind="group.create").parameters
    assert (parameters["order_scope"], parameters["invisible_max_ms"]) == ("QUEUE", 5000)


@pytest.mark.usefixtures("at_live_server")
def test_broker_groups_that_nobody_knows_any_more_are_found_by_what_is_wanted_of_them(tmp_path: Path) -> None:
    document = snapshot_document()
    document["groups"] = []
    document["processes"][1] |= {"group": "broker-a", "kind": "broker"}
    MemorySnapshots.put(document)
    assert "There is no broker group broker-a" in str(refused("group", "mount", "broker-a"))
    write_wish(tmp_path / "groups", GroupWish("DefaultCluster", "broker-a", Wish.DOWN))
    assert "controllers: forget the replicas of broker-a" in run("group", "mount", "broker-a", "--dry-run")
    assert run("group", "up", "broker-a", "--dry-run") == "broker-a-1: is started\n"


def test_where_nothing_is_found_nothing_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "pages", lambda path: [])
    assert (run("topic", "list"), run("group", "list")) == ("", "")
    assert (run("topic", "list", "--json"), run("group", "list", "--json")) == ("[]\n", "[]\n")


@pytest.mark.usefixtures("at_live_server")
def test_refusals_and_failures_have_their_code_and_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused("topic", "create", "orders")
    assert (error.returncode, "exists already" in str(error)) == (client.REFUSED, True)
    error = refused("topic", "create", "a b")
    assert "letters, digits" in str(error)
    monkeypatch.setattr(RecordingQueue, "send", worker("REFUSED"))
    error = refused("topic", "create", "payments")
    assert (error.returncode, "broker-a: REFUSED disk full" in str(error)) == (client.REFUSED, True)


@pytest.mark.usefixtures("at_live_server")
def test_an_operation_that_does_not_end_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "WAIT_S", 0)
    error = refused("topic", "create", "payments")
    assert error.returncode == client.UNKNOWN
    assert str(Operation.objects.get().pk) in str(error)


def test_a_console_that_is_not_there_is_said_so(settings: Any, tmp_path: Path) -> None:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, http="127.0.0.1:1", data=DataLayout(tmp_path))
    error = refused("topic", "list")
    assert (error.returncode, "No token" in str(error)) == (client.UNREACHABLE, True)
    (tmp_path / "secrets").mkdir()
    settings.ENVIRONMENT.data.cli_token_file.write_text("lb_x_y")
    error = refused("topic", "list")
    assert (error.returncode, "make up" in str(error)) == (client.UNREACHABLE, True)


def test_a_token_is_made_listed_and_revoked(users: dict[str, User]) -> None:
    text = run(
        "token", "create", "deploy", "--scope", "cluster.read", "--scope", "topics.write", "--user", "operator"
    ).strip()
    found = tokens.find(text)
    assert found is not None
    assert (found.owner.username, found.scopes) == ("operator", ["cluster.read", "topics.write"])
    assert f"{found.prefix}\tvalid\toperator\tdeploy\tcluster.read topics.write" in run("token", "list")
    run("token", "revoke", found.prefix)
    assert tokens.find(text) is None
    assert "revoked" in run("token", "list")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--scope", "everything"], "no such scope"),
        (["--scope", "users.write", "--user", "viewer"], "you may not do this yourself"),
        (["--scope", "cluster.read", "--user", "nobody"], "no active user"),
        (["--scope", "cluster.read", "--days", "0"], "from 1 to 366"),
    ],
)
def test_bad_tokens_are_refused_with_the_rule(users: dict[str, User], arguments: list[str], sentence: str) -> None:
    assert sentence in str(refused("token", "create", "x", *arguments))
    assert not ApiToken.objects.exists()
