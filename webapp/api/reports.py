"""Reports over REST: the catalogue, schedules, runs with their rows, and downloads."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID
from zoneinfo import ZoneInfo

from django.http import HttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from webapp.api.base import (
    LIST_PARAMETERS,
    PROBLEM,
    Int64Field,
    asked,
    changing,
    filtered,
    limit_of,
    listed,
    page_by_time,
    reads,
    showing,
)
from webapp.api.facts import FactSerializer
from webapp.errors import InvalidInput
from webapp.lifecycle import State
from webapp.reports import catalogue, cron
from webapp.reports.changes import find_run, find_schedule
from webapp.reports.downloads import download
from webapp.reports.models import ReportRun, ReportSchedule
from webapp.reports.results import rows_after
from webapp.rules import MAX_INT64, Rules

NEXT_RUNS = 5


def _rfc3339(run: datetime) -> str:
    return run.strftime("%Y-%m-%dT%H:%M:%SZ")


class SectionSerializer(FactSerializer):
    fact = catalogue.Section
    hidden = ("sort", "chart")


class ReportParameterSerializer(FactSerializer):
    fact = catalogue.Parameter
    hidden = ("least", "most")
    default = serializers.JSONField(allow_null=True)


class ReportSerializer(FactSerializer):
    fact = catalogue.Report


class CatalogueSerializer(serializers.Serializer):
    items = ReportSerializer(many=True)


class ScheduleSerializer(serializers.ModelSerializer):
    cron_in_words = serializers.SerializerMethodField()
    next_runs = serializers.SerializerMethodField()

    class Meta:
        model = ReportSchedule
        exclude = ("created_by", "decided_until")

    def get_cron_in_words(self, schedule: ReportSchedule) -> str:
        return cron.describe(schedule.cron)

    @extend_schema_field(serializers.ListField(child=serializers.DateTimeField()))
    def get_next_runs(self, schedule: ReportSchedule) -> list[str]:
        return [_rfc3339(run) for run in schedule.next_runs(NEXT_RUNS)]


class WriteScheduleSerializer(serializers.Serializer):
    name = serializers.CharField()
    report = serializers.CharField()
    parameters = serializers.DictField(required=False)
    cron = serializers.CharField(help_text="Five fields: minute hour day-of-month month day-of-week.")
    time_zone = serializers.CharField(required=False, help_text="IANA name; UTC if absent.")
    enabled = serializers.BooleanField(required=False)
    overlap = serializers.ChoiceField(choices=ReportSchedule.Overlap.values, required=False)
    catch_up = serializers.ChoiceField(
        choices=ReportSchedule.CatchUp.values,
        required=False,
        help_text="What happens to runs that were missed while the appliance was down; latest if absent.",
    )


class CronSerializer(serializers.Serializer):
    cron = serializers.CharField()
    in_words = serializers.CharField()
    time_zone = serializers.CharField()
    next_runs = serializers.ListField(child=serializers.DateTimeField())


class RunSerializer(serializers.ModelSerializer):
    tick = serializers.DateTimeField(
        allow_null=True,
        help_text="When its schedule was due; the report looks back from then. Null: a person started it.",
    )
    note = serializers.CharField(
        allow_blank=True, help_text="What is unusual about it: moved by daylight saving, or caught up."
    )
    last_seq = Int64Field()
    rows_count = Int64Field()

    class Meta:
        model = ReportRun
        exclude = ("spark_session_id", "spark_tag", "parquet_path", "requested_by")


class StartRunSerializer(serializers.Serializer):
    report = serializers.CharField(required=False, help_text="One of the catalogue; or give schedule_id.")
    parameters = serializers.DictField(required=False)
    schedule_id = serializers.IntegerField(required=False, help_text="Run what this schedule says, now.")


class ProgressSerializer(serializers.Serializer):
    state = serializers.ChoiceField(choices=State.values)
    reason = serializers.CharField(allow_blank=True)
    progress = serializers.JSONField()
    last_seq = Int64Field()


class RowSerializer(serializers.Serializer):
    section = serializers.CharField()
    key = serializers.CharField()
    seq = Int64Field()
    final = serializers.BooleanField()
    data = serializers.DictField()


class RowsSerializer(serializers.Serializer):
    state = serializers.ChoiceField(choices=State.values)
    items = RowSerializer(many=True)
    last_seq = Int64Field(help_text="Ask again with after=<this> for what came later.")
    complete = serializers.BooleanField(help_text="False: there are more rows now; ask again after the last seq given.")


SchedulePage = listed("SchedulePage", ScheduleSerializer)
RunPage = listed("RunPage", RunSerializer)


class ReportsView(APIView):
    read_permission = "reports.read"

    @reads("reports", "The reports there are", CatalogueSerializer)
    def get(self, request: Request) -> Response:
        return Response(CatalogueSerializer({"items": list(catalogue.CATALOGUE.values())}).data)


class CronView(APIView):
    read_permission = "reports.read"

    @reads(
        "cron",
        "What a cron expression means, and its next five runs",
        CronSerializer,
        [OpenApiParameter("cron", OpenApiTypes.STR, required=True), OpenApiParameter("time_zone", OpenApiTypes.STR)],
    )
    def get(self, request: Request) -> Response:
        rules = Rules(request.query_params)
        expression, zone = rules.text("cron", least=1, most=120), rules.time_zone("time_zone")
        rules.finish()
        try:
            ticks = cron.parse(expression).next_ticks(timezone.now(), ZoneInfo(zone), NEXT_RUNS)
        except cron.CronError as error:
            raise InvalidInput(f"cron: {error}", fields={"cron": [str(error)]}) from error
        runs = [_rfc3339(tick.at) for tick in ticks]
        return Response(
            {"cron": expression, "in_words": cron.describe(expression), "time_zone": zone, "next_runs": runs}
        )


class SchedulesView(APIView):
    read_permission = "reports.read"

    @reads("schedules", "The schedules", SchedulePage, LIST_PARAMETERS)
    def get(self, request: Request) -> Response:
        found, following = page_by_time(request, ReportSchedule.objects.all())
        return Response({"items": ScheduleSerializer(found, many=True).data, "next": following})

    post = changing("schedule_create", "Schedule a report", "schedule.create", WriteScheduleSerializer)


class ScheduleView(APIView):
    read_permission = "reports.read"

    get = showing("schedule", "One schedule", ScheduleSerializer, find_schedule)
    patch = changing("schedule_change", "Change a schedule", "schedule.change", WriteScheduleSerializer)
    delete = changing("schedule_delete", "Delete a schedule; its runs stay", "schedule.delete")


class RunsView(APIView):
    read_permission = "reports.read"

    @reads(
        "report_runs",
        "Runs, newest first",
        RunPage,
        [*LIST_PARAMETERS, *asked("report", "state"), OpenApiParameter("schedule", OpenApiTypes.INT)],
    )
    def get(self, request: Request) -> Response:
        runs = filtered(request, ReportRun.objects.all(), report=60, state=10)
        rules = Rules(request.query_params)
        if rules.has("schedule"):
            runs = runs.filter(schedule=rules.integer("schedule", least=1, most=MAX_INT64))
        rules.finish()
        found, following = page_by_time(request, runs)
        return Response({"items": RunSerializer(found, many=True).data, "next": following})

    post = changing("report_run", "Run a report now; `result.run_id` names the run", "report.run", StartRunSerializer)


class RunView(APIView):
    read_permission = "reports.read"

    get = showing("report_run_get", "One run", RunSerializer, find_run)


class ProgressView(APIView):
    read_permission = "reports.read"

    get = showing("report_run_progress", "How far a run is", ProgressSerializer, find_run)


class RowsView(APIView):
    read_permission = "reports.read"

    @reads(
        "report_run_rows",
        "Rows of a run, partial ones while it runs",
        RowsSerializer,
        [
            OpenApiParameter("section", OpenApiTypes.STR),
            OpenApiParameter("after", OpenApiTypes.STR, description="Only rows written after this seq."),
            OpenApiParameter("limit", OpenApiTypes.INT),
        ],
    )
    def get(self, request: Request, run_id: UUID) -> Response:
        run = find_run(run_id)
        rules = Rules(request.query_params)
        after = rules.integer("after", least=0, most=MAX_INT64, default=0)
        section = rules.text("section", most=60)
        rules.finish()
        name = catalogue.report(run.report).section(section).name if section else ""
        found, upto = rows_after(run, after, limit_of(request), name)
        document = {"state": run.state, "items": found, "last_seq": upto, "complete": upto == run.last_seq}
        return Response(RowsSerializer(document).data)


class CancelRunView(APIView):
    post = changing("report_run_cancel", "Cancel a run", "report.cancel")


class DownloadView(APIView):
    read_permission = "reports.read"

    @extend_schema(
        operation_id="report_run_download",
        summary="A section of a run's result as a file",
        parameters=[
            OpenApiParameter("section", OpenApiTypes.STR, description="The first one if absent."),
            OpenApiParameter("as", OpenApiTypes.STR, enum=["csv", "parquet"], description="csv if absent."),
        ],
        responses={
            (200, "text/csv"): OpenApiResponse(OpenApiTypes.STR),
            (200, "application/vnd.apache.parquet"): OpenApiResponse(OpenApiTypes.BINARY),
            **PROBLEM,
        },
    )
    def get(self, request: Request, run_id: UUID) -> HttpResponse:
        return download(find_run(run_id), request.query_params)
