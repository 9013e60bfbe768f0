"""What REST views share: how changes are answered, how lists are paged, how endpoints are described in the OpenAPI document."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import exceptions, serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from remoting.facts.words import Outcome
from webapp.accounts.permissions import actor_of
from webapp.errors import InvalidInput
from webapp.operations.models import Operation
from webapp.operations.services import Submitted, broken_rules, submit
from webapp.operations.waiting import wait
from webapp.rules import Rules

View = TypeVar("View", bound=Callable[..., Any])
Item = TypeVar("Item")
MAX_LIMIT = 500
DEFAULT_LIMIT = 100


# ---- serializers


class Int64Field(serializers.CharField):
    """A 64-bit number as decimal text, since a JSON reader may round larger ones; null when unknown."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("allow_null", True)
        super().__init__(**options)


class ProblemSerializer(serializers.Serializer):
    """application/problem+json"""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    code = serializers.CharField(help_text="Stable; compare this.")
    detail = serializers.CharField(help_text="For a person: which rule was broken, or what to do.")
    request_id = serializers.CharField(help_text="As in the header X-Request-Id and in the console's log.")
    errors = serializers.DictField(
        child=serializers.ListField(child=serializers.CharField()), required=False, help_text="Per field."
    )


class NodeSerializer(serializers.Serializer):
    node = serializers.CharField()
    outcome = serializers.ChoiceField(choices=[each.value for each in Outcome])
    detail = serializers.CharField(allow_blank=True)


class PlanStepSerializer(serializers.Serializer):
    node = serializers.CharField()
    change = serializers.CharField()


class OperationErrorSerializer(serializers.Serializer):
    code = serializers.CharField()
    detail = serializers.CharField()


class OperationSerializer(serializers.Serializer):
    """A change: asked for, under way, or over. A dry run answers one with the state `planned` and without id."""

    id = serializers.CharField(allow_null=True)
    kind = serializers.CharField()
    target = serializers.CharField(allow_blank=True)
    state = serializers.ChoiceField(choices=["planned", *(state.value for state in Operation.STATES)])
    parameters = serializers.DictField()
    plan = serializers.ListField(child=PlanStepSerializer(), required=False)
    progress = serializers.DictField()
    nodes = serializers.ListField(child=NodeSerializer())
    result = serializers.JSONField(allow_null=True)
    once = serializers.DictField(
        child=serializers.CharField(),
        required=False,
        help_text="Shown in this answer only, such as a new token's secret.",
    )
    error = OperationErrorSerializer(source="failure", allow_null=True)
    cancel_requested = serializers.BooleanField()
    requested_by = serializers.CharField(source="requested_by_name")
    created_at = serializers.DateTimeField(allow_null=True)
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)


def operation_document(operation: Operation, submitted: Submitted | None = None) -> dict[str, Any]:
    """An operation as REST shows it."""
    document = dict(OperationSerializer(operation).data)
    if submitted is not None:
        document |= {"id": None, "state": "planned"} if submitted.dry_run else {}
        document |= {name: value for name in ("plan", "once") if (value := getattr(submitted, name))}
    return document


# ---- changes


def change(request: Request, kind: str, parameters: dict[str, Any]) -> Response:
    """Carry a change through `operations.submit` and answer its operation: 200 when it is over, 202 while it is not.

    `?dry_run=true` plans only; `Idempotency-Key` makes a repeat find the first; `Prefer: wait=n` waits up to n
    seconds (at most 10).
    """
    rules = Rules(request.query_params)
    dry_run = rules.flag("dry_run")
    rules.finish()
    submitted = submit(
        actor_of(request), kind, parameters, dry_run=dry_run, idempotency_key=request.headers.get("Idempotency-Key")
    )
    if dry_run:
        return Response(operation_document(submitted.operation, submitted))
    operation = wait(submitted.operation, preferred_wait_s(request))
    return Response(
        operation_document(operation, submitted),
        status=200 if operation.finished else 202,
        headers={"Location": f"/api/v1/operations/{operation.pk}"},
    )


def change_by_body(
    request: Request, kind: str, serializer: type[serializers.Serializer], address: Mapping[str, Any]
) -> Response:
    """As `change`, with the parameters of the request's JSON, which may have gaps in a PATCH, and those of the address.

    A refusal of its shape names the rules that the rest of it breaks as well: all that is wrong, at once.
    """
    checked = serializer(data=request.data, partial=request.method == "PATCH")
    if checked.is_valid():
        return change(request, kind, {**checked.validated_data, **address})
    wrong = checked.errors
    if isinstance(request.data, Mapping):
        rest = serializer(data={name: value for name, value in request.data.items() if name not in wrong}, partial=True)
        given = rest.validated_data if rest.is_valid() else {}
        rules = broken_rules(actor_of(request), kind, {**given, **address})
        wrong = {**wrong, **{name: said for name, said in rules.items() if name.partition(".")[0] not in wrong}}
    raise exceptions.ValidationError(wrong)


def preferred_wait_s(request: Request) -> float:
    """How long the client is willing to wait for an operation."""
    found = re.search(r"(?:^|[,;\s])wait=(\d{1,3})\b", request.headers.get("Prefer", ""))
    return float(found[1]) if found else 0.0


# ---- lists


def filtered(request: Request, rows: QuerySet, **longest: int) -> QuerySet:
    """The rows with the values that the query string asks for; of the fields named, each with the length of its longest value."""
    rules = Rules(request.query_params)
    asked = {name: rules.text(name, most=most) for name, most in longest.items()}
    rules.finish()
    return rows.filter(**{name: value for name, value in asked.items() if value})


def limit_of(request: Request) -> int:
    """The page size that was asked for."""
    rules = Rules(request.query_params)
    limit = rules.integer("limit", least=1, most=MAX_LIMIT, default=DEFAULT_LIMIT)
    rules.finish()
    return limit


def read_cursor(request: Request) -> Any:
    """What `write_cursor` was given, or None at the start."""
    text = request.query_params.get("cursor")
    if not text:
        return None
    try:
        return json.loads(base64.urlsafe_b64decode(text.encode("ascii")))
    except (ValueError, RecursionError) as error:
        raise foreign_cursor() from error


def foreign_cursor() -> InvalidInput:
    """The refusal of a cursor that no answer gave."""
    return InvalidInput("cursor: take it from the answer before, unchanged", fields={"cursor": ["is not one of ours"]})


def write_cursor(value: Any) -> str:
    """An opaque cursor."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode("ascii")


def page_by_time(request: Request, rows: QuerySet, moment: str = "created_at") -> tuple[list[Any], str | None]:
    """One page of rows by the field that is a moment, newest first, and the cursor to the next one."""
    limit, cursor = limit_of(request), read_cursor(request)
    if cursor is not None:
        try:
            at = datetime.fromisoformat(cursor[0]).astimezone(UTC)
            key = rows.model._meta.pk.to_python(str(cursor[1]))
        except (TypeError, ValueError, LookupError, OverflowError, ValidationError) as error:
            raise foreign_cursor() from error
        rows = rows.filter(Q(**{f"{moment}__lt": at}) | Q(**{moment: at}, pk__lt=key))
    found = list(rows.order_by(f"-{moment}", "-pk")[: limit + 1])
    if len(found) <= limit:
        return found, None
    last = found[limit - 1]
    return found[:limit], write_cursor([getattr(last, moment).isoformat(), str(last.pk)])


def page_by_name(
    request: Request, items: list[Item], name_of: Callable[[Item], str] = attrgetter("name")
) -> tuple[list[Item], str | None]:
    """One page of a list in the order of the names, and the cursor to the next one."""
    limit, cursor = limit_of(request), read_cursor(request)
    items = sorted(items, key=name_of)
    if cursor is not None:
        items = [item for item in items if name_of(item) > str(cursor)]
    if len(items) <= limit:
        return items, None
    return items[:limit], write_cursor(name_of(items[limit - 1]))


def found_by_name(request: Request, find: Callable[..., list[Item]], *, most: int) -> tuple[list[Item], str | None]:
    """One page of what the snapshot finds by the part of its name that the query string asks for; see `search_parameters`."""
    rules = Rules(request.query_params)
    wanted, with_system = rules.text("q", most=most), rules.flag("system")
    rules.finish()
    return page_by_name(request, find(wanted, with_system=with_system))


# ---- description

PROBLEM = {
    (status, "application/problem+json"): OpenApiResponse(ProblemSerializer, description=text)
    for status, text in (
        (400, "The input breaks a rule."),
        (401, "No valid token and no session."),
        (403, "The role or the token's scopes do not allow it."),
        (404, "There is no such thing."),
        (409, "The change does not fit the present state."),
        (503, "A part that is needed does not answer."),
    )
}
LIST_PARAMETERS = [
    OpenApiParameter("limit", OpenApiTypes.INT, description=f"1 to {MAX_LIMIT}; {DEFAULT_LIMIT} if absent."),
    OpenApiParameter("cursor", OpenApiTypes.STR, description="`next` of the answer before."),
]


def asked(*names: str, **described: str) -> list[OpenApiParameter]:
    """Parameters of the query string that are text, some with words for the reader."""
    texts = {**dict.fromkeys(names, ""), **described}
    return [OpenApiParameter(name, OpenApiTypes.STR, description=text) for name, text in texts.items()]


def search_parameters(system: str) -> list[OpenApiParameter]:
    """Those of a list that is searched by name; `system` says what it leaves out else."""
    return [
        *LIST_PARAMETERS,
        *asked(q="Part of the name."),
        OpenApiParameter("system", OpenApiTypes.BOOL, description=system),
    ]


PREFER = OpenApiParameter(
    "Prefer", OpenApiTypes.STR, OpenApiParameter.HEADER, description="`wait=n`: wait up to n seconds for the end."
)
CHANGE_PARAMETERS = [
    OpenApiParameter("dry_run", OpenApiTypes.BOOL, description="Check and plan only; nothing is changed."),
    OpenApiParameter(
        "Idempotency-Key", OpenApiTypes.STR, OpenApiParameter.HEADER, description="A repeat finds the first."
    ),
    PREFER,
]


def reads(
    operation_id: str, summary: str, serializer: Any, parameters: list[OpenApiParameter] | None = None
) -> Callable[[View], View]:
    """Describe an endpoint that answers what `serializer` shows."""
    statuses = {key: value for key, value in PROBLEM.items() if key[0] in {400, 401, 403, 404, 503}}
    return extend_schema(
        operation_id=operation_id,
        summary=summary,
        parameters=parameters or [],
        responses={(200, "application/json"): serializer, **statuses},
    )


def changes(operation_id: str, summary: str, request: Any = None) -> Callable[[View], View]:
    """Describe an endpoint that makes a change."""
    return extend_schema(
        operation_id=operation_id,
        summary=summary,
        request=request,
        parameters=CHANGE_PARAMETERS,
        responses={
            (200, "application/json"): OpenApiResponse(OperationSerializer, description="Over, or planned."),
            (202, "application/json"): OpenApiResponse(OperationSerializer, description="Under way; see Location."),
            **PROBLEM,
        },
    )


def changing(
    operation_id: str,
    summary: str,
    kind: str,
    body: type[serializers.Serializer] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> Callable[..., Response]:
    """A view's method that asks for a change of `kind`: its parameters are those of the body and of the address.

    `renamed` says which of the address's the kind knows by another name.
    """

    @changes(operation_id, summary, body)
    def method(view: APIView, request: Request, **address: Any) -> Response:
        named = {(renamed or {}).get(name, name): value for name, value in address.items()}
        return change(request, kind, named) if body is None else change_by_body(request, kind, body, named)

    return method


def showing(
    operation_id: str, summary: str, serializer: type[serializers.Serializer], find: Callable[..., Any]
) -> Callable[..., Response]:
    """A view's method that answers what `find` finds by the values of the address."""

    @reads(operation_id, summary, serializer)
    def method(view: APIView, request: Request, **address: Any) -> Response:
        return Response(serializer(find(**address)).data)

    return method


def observed(name: str, item: type[serializers.Serializer]) -> type[serializers.Serializer]:
    """The serializer class of all `item`s of a snapshot."""
    fields: dict[str, Any] = {"as_of": serializers.CharField(allow_null=True), "items": item(many=True)}
    return type(f"{name}Serializer", (serializers.Serializer,), fields)


def listed(name: str, item: type[serializers.Serializer], **extra: serializers.Field) -> type[serializers.Serializer]:
    """The serializer class of a page of `item`s."""
    fields: dict[str, Any] = {
        "items": item(many=True),
        "next": serializers.CharField(allow_null=True, help_text="Cursor of the next page; null at the end."),
        **extra,
    }
    return type(name, (serializers.Serializer,), fields)
