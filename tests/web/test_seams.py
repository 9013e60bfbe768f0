"""What the console and the worker must agree on, though neither imports the other's part of it."""

from __future__ import annotations

import inspect
import io
import subprocess
import sys
from pathlib import Path

from django.core.management import call_command

from remoting.client.blocking import AdminClient
from tasks import operations
from tasks.app import app
from tests.web.fakes import FakeCluster
from webapp import queue
from webapp.operations.registry import KINDS
from webapp.reports.catalogue import CATALOGUE

PROJECT = Path(__file__).resolve().parents[2]


def test_every_change_for_the_worker_is_one_that_it_can_make() -> None:
    assert {kind.name for kind in KINDS.values() if kind.by_worker} == set(operations.KINDS)


def test_every_task_that_is_sent_exists_and_goes_to_the_same_queue() -> None:
    app.loader.import_default_modules()
    for name in (queue.RUN_OPERATION, queue.RUN_REPORT, queue.CANCEL_REPORT):
        assert name in app.tasks
        theirs = app.amqp.router.route({}, name)["queue"].name
        mine = queue.CeleryQueue()._celery.amqp.router.route({}, name)["queue"].name
        assert theirs == mine, name


def test_every_report_of_the_catalogue_has_its_job() -> None:
    for name in CATALOGUE:
        assert (PROJECT / "tasks" / "reports" / name / "job.py").exists()


def test_the_fake_cluster_is_asked_as_the_real_one_is() -> None:
    own = {"clear", "add_topic", "store"}
    for name, method in inspect.getmembers(FakeCluster, inspect.isfunction):
        if not name.startswith("_") and name not in own:
            assert inspect.signature(method).parameters == inspect.signature(getattr(AdminClient, name)).parameters


def test_django_finds_nothing_wrong_with_the_console(db: None) -> None:
    call_command("check", fail_level="WARNING", stderr=io.StringIO())


def test_a_worker_starts_without_views_and_rest_schema() -> None:
    words = (
        "import sys, tasks.app; tasks.app.app.loader.import_default_modules(); "
        "print(sorted(name for name in sys.modules if name in ('tasks.operations', 'rest_framework.views', 'webapp.urls')))"
    )
    told = subprocess.run([sys.executable, "-c", words], cwd=PROJECT, check=True, capture_output=True, text=True)
    assert told.stdout.strip() == "['tasks.operations']"


def test_no_migration_is_missing(db: None) -> None:
    call_command("makemigrations", "--check", "--dry-run", stdout=io.StringIO())
