"""Whatever is sent to the REST API, within its schema or beside it, is answered: never an error of ours, always a document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import schemathesis
from django.contrib.auth import SESSION_KEY
from django.test import Client
from hypothesis import HealthCheck, settings
from schemathesis import GenerationMode

from webapp.accounts.models import User

pytestmark = [pytest.mark.slow, pytest.mark.django_db]

schema = schemathesis.openapi.from_path(Path(__file__).parents[2] / "webapp" / "api" / "openapi.yaml")
schema.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])


@schema.parametrize()
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_request_is_answered(case: Any, users: dict[str, User], client: Client) -> None:
    if SESSION_KEY not in client.session:  # the first request, or the one before has ended the session
        client.force_login(users["admin"])
    path = case.path
    for name, value in (case.path_parameters or {}).items():
        path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
    query = urlencode({name: str(value) for name, value in (case.query or {}).items()}, doseq=True)
    body = case.body if isinstance(case.body, str | bytes) else json.dumps(case.body, default=str)
    headers = {name: value for name, value in (case.headers or {}).items() if name in {"Idempotency-Key", "If-Match"}}
    response = client.generic(
        case.method.upper(), f"{path}?{query}", body, content_type="application/json", headers=headers
    )
    assert response.status_code < 500 or response.status_code in {502, 503}, response.content
    if response.status_code >= 400:
        assert response["Content-Type"] == "application/problem+json"
        assert response.json()["code"]
