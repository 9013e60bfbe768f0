"""The console under test: twins in place of Redis, cluster and Celery; users of each role; clients that are logged in."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import django
import pytest

django.setup()  # this file is imported before pytest-django does it, and models can be imported only afterwards

from channels.layers import channel_layers  # noqa: E402
from django.contrib.auth.models import AnonymousUser  # noqa: E402
from django.test import Client  # noqa: E402

from tests.web.fakes import FakeAccess, FakeCluster, MemorySnapshots, RecordingQueue, snapshot_document  # noqa: E402
from webapp import queue, snapshot  # noqa: E402
from webapp.accounts import tokens  # noqa: E402
from webapp.accounts.models import User  # noqa: E402
from webapp.accounts.permissions import Actor, actor_for, set_role  # noqa: E402

PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def console(settings: object) -> Iterator[None]:
    """Twins everywhere, forgotten after each test."""
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    settings.SNAPSHOT_SOURCE = "tests.web.fakes.MemorySnapshots"
    settings.CLUSTER_CLIENT = "tests.web.fakes.FakeCluster"
    settings.ACCESS_CLIENT = "tests.web.fakes.FakeAccess"
    settings.TASK_QUEUE = "tests.web.fakes.RecordingQueue"
    settings.WHITENOISE_AUTOREFRESH = True  # else each client begins with a walk through all static files
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.STORAGES = {
        "default": {"BACKEND": "django.core.files.storage.InMemoryStorage"},
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }
    for twin in (MemorySnapshots, RecordingQueue, FakeCluster, FakeAccess):
        twin.clear()
    snapshot.reader.cache_clear()
    queue.task_queue.cache_clear()
    channel_layers.backends.clear()
    MemorySnapshots.put(snapshot_document())
    FakeCluster.add_topic("orders")
    yield
    snapshot.reader.cache_clear()
    queue.task_queue.cache_clear()
    channel_layers.backends.clear()


def make_user(role: str) -> User:
    user = User.objects.create_user(username=role, password=PASSWORD)
    set_role(user, role)
    return user


@pytest.fixture
def users(db: None) -> dict[str, User]:
    """One user of each role, named like it."""
    return {role: make_user(role) for role in ("viewer", "operator", "admin")}


@pytest.fixture
def viewer(users: dict[str, User]) -> Client:
    return logged_in(users["viewer"])


@pytest.fixture
def operator(users: dict[str, User]) -> Client:
    return logged_in(users["operator"])


@pytest.fixture
def admin(users: dict[str, User]) -> Client:
    return logged_in(users["admin"])


@pytest.fixture
def anonymous(db: None) -> Client:
    return Client()


@pytest.fixture
def actor(users: dict[str, User]) -> Callable[[str], Actor]:
    """The actor of a role; "" is nobody."""
    return lambda role: actor_for(users[role] if role else AnonymousUser(), ip="127.0.0.1")


@pytest.fixture
def bearer(users: dict[str, User]) -> Callable[..., dict[str, str]]:
    """Request headers of a new token of a role."""

    def make(role: str, *scopes: str) -> dict[str, str]:
        _, text = tokens.create(users[role], "test", list(scopes))
        return {"Authorization": f"Bearer {text}"}

    return make


def logged_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client
