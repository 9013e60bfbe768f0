"""Whatever is sent to the REST API, within its schema or beside it, is answered: never an error of ours, always a document.

Schemathesis is loaded, and makes its requests, only where a test runs: each process that collects this file would pay for it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.contrib.auth import SESSION_KEY
from django.test import Client
from hypothesis import HealthCheck, settings

from webapp.accounts.models import User

pytestmark = [pytest.mark.slow, pytest.mark.django_db]

SCHEMA = Path(__file__).parents[2] / "webapp" / "api" / "openapi.yaml"
SETTINGS = settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))


def labels() -> list[str]:
    """Of all operations, such as `GET /api/v1/cluster`, without what it takes to load the document."""
    found, path = [], ""
    for line in SCHEMA.read_text().splitlines():
        if match := re.fullmatch(r"  (/\S+):", line):
            path = match[1]
        elif match := re.fullmatch(r"    (get|post|put|patch|delete):", line):
            found.append(f"{match[1].upper()} {path}")
    return found


@pytest.fixture(scope="module")
def operations() -> dict[str, Any]:
    """By their labels."""
    import schemathesis

    schema = schemathesis.openapi.from_path(SCHEMA)
    schema.config.generation.update(modes=[schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE])
    return {operation.label: operation for operation in (each.ok() for each in schema.get_all_operations())}


def test_no_operation_is_left_out(operations: dict[str, Any]) -> None:
    assert sorted(labels()) == sorted(operations)


@pytest.mark.parametrize("label", labels())
def test_every_request_is_answered(
    label: str, operations: dict[str, Any], users: dict[str, User], client: Client
) -> None:
    from schemathesis.generation.hypothesis.builder import HypothesisTestConfig, HypothesisTestMode, create_test

    def is_answered(case: Any) -> None:
        if SESSION_KEY not in client.session:  # the first request, or the one before has ended the session
            client.force_login(users["admin"])
        path = case.path
        for name, value in (case.path_parameters or {}).items():
            path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
        query = urlencode({name: str(value) for name, value in (case.query or {}).items()}, doseq=True)
        body = case.body if isinstance(case.body, str | bytes) else json.dumps(case.body, default=str)
        given = {"Idempotency-Key", "If-Match"}
        headers = {name: value for name, value in (case.headers or {}).items() if name in given}
        response = client.generic(
            case.method.upper(), f"{path}?{query}", body, content_type="application/json", headers=headers
        )
        assert response.status_code < 500 or response.status_code in {502, 503}, response.content
        if response.status_code >= 400:
            assert response["Content-Type"] == "application/problem+json"
            assert response.json()["code"]

    operation = operations[label]
    config = operation.schema.config
    of_all_kinds = HypothesisTestConfig(
        project=config,
        modes=list(HypothesisTestMode),
        settings=config.get_hypothesis_settings(operation=operation, phase="fuzzing"),
        explicit_settings=SETTINGS,
    )
    create_test(operation=operation, test_func=is_answered, config=of_all_kinds)()
