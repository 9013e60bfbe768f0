"""Errors of the REST API: application/problem+json with a stable code, for our own refusals and for the framework's."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

from webapp import errors

log = logging.getLogger(__name__)


def handle_exception(exception: Exception, context: dict[str, Any]) -> Response | None:
    """The answer to whatever a REST view raised; None (a 500 that is logged) for what nobody foresaw."""
    set_rollback()
    response = _answer_to(exception)
    if response is not None:
        response.data["request_id"] = context["request"].id
    return response


def _answer_to(exception: Exception) -> Response | None:
    headers: dict[str, str] = {}
    if isinstance(exception, errors.Problem):
        if isinstance(exception, errors.TooMany):
            headers["Retry-After"] = str(exception.retry_after_s)
        return answer(exception.status, exception.code, exception.title, exception.detail, exception.fields, headers)
    if isinstance(exception, Http404):
        return answer(404, "not-found", "Not found", "There is nothing at this address.")
    if isinstance(exception, PermissionDenied):
        return answer(403, "permission-denied", "Not permitted", str(exception) or "Your role does not allow this.")
    if isinstance(exception, RequestDataTooBig):
        return answer(
            413, "too-large", "The request is too large", "The body of the request is over the limit of 6 MiB."
        )
    if not isinstance(exception, exceptions.APIException):
        return None
    if wait := getattr(exception, "wait", None):
        headers["Retry-After"] = str(int(wait) + 1)
    if challenge := getattr(exception, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    if isinstance(exception, exceptions.ValidationError):
        fields = _fields(exception.detail)
        name, sentences = next(iter(fields.items()))
        return answer(400, "invalid-input", "The input breaks a rule", f"{name}: {sentences[0]}", fields, headers)
    code = {401: "not-authenticated", 405: "method-not-allowed", 415: "unsupported-media-type"}.get(
        exception.status_code, str(getattr(exception, "default_code", "error")).replace("_", "-")
    )
    title = HTTPStatus(exception.status_code).phrase
    return answer(exception.status_code, code, title, str(exception.detail), headers=headers)


def answer(
    status: int,
    code: str,
    title: str,
    detail: str,
    fields: dict[str, list[str]] | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """One problem document."""
    body = errors.document(status, code, title, detail)
    if fields:
        body["errors"] = fields
    return Response(body, status=status, content_type=errors.CONTENT_TYPE, headers=headers)


def _fields(detail: Any, prefix: str = "") -> dict[str, list[str]]:
    """DRF's nested error detail as a flat mapping of dotted names."""
    if isinstance(detail, dict):
        flat: dict[str, list[str]] = {}
        for name, value in detail.items():
            flat.update(_fields(value, f"{prefix}.{name}" if prefix else str(name)))
        return flat
    if isinstance(detail, list):
        return {prefix or "request": [str(each) for each in detail]}
    return {prefix or "request": [str(detail)]}
