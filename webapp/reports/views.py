"""The pages of reports: catalogue, schedules, runs."""

from __future__ import annotations

import dataclasses
import re
from datetime import datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from webapp import snapshot
from webapp.lifecycle import State
from webapp.operations.services import Submitted
from webapp.pages import change, form_page, go_to, needs, page, posted
from webapp.paging import paged
from webapp.reports import catalogue, cron, results
from webapp.reports.changes import find_run, find_schedule
from webapp.reports.downloads import download as download_section
from webapp.reports.models import ReportRun, ReportSchedule
from webapp.rules import Rules, known_time_zones
from webapp.topics.purpose import in_order

NEXT_RUNS = 5


@require_GET
@needs("reports.read")
def reports(request: HttpRequest) -> HttpResponse:
    runs = ReportRun.objects.select_related("schedule").order_by("-created_at")
    state, schedule = request.GET.get("state", ""), request.GET.get("schedule", "")
    if state in ReportRun.STATES:
        runs = runs.filter(state=state)
    if re.fullmatch(r"[0-9]{1,18}", schedule):
        runs = runs.filter(schedule=int(schedule))
    context: dict[str, Any] = {"page": paged(runs[:2000], request.GET, 25), "states": ReportRun.STATES}
    if request.htmx and request.htmx.target == "runs":
        return page(request, "reports/_runs.html", context)
    context.update(
        reports=list(catalogue.CATALOGUE.values()), schedules=[_shown(each) for each in ReportSchedule.objects.all()]
    )
    return page(request, "reports/list.html", context)


def _shown(schedule: ReportSchedule) -> dict[str, Any]:
    return {
        "schedule": schedule,
        "words": cron.describe(schedule.cron),
        "next": next(iter(schedule.next_runs(1)), None),
        "last": schedule.runs.exclude(state=State.SKIPPED).order_by("-created_at").first(),
        "skipped": schedule.runs.filter(state=State.SKIPPED).order_by("-created_at").first(),
    }


# ---- runs


@require_http_methods(["GET", "POST"])
@needs("reports.write")
def run_now(request: HttpRequest, report: str) -> HttpResponse:
    """The form with the report's parameters; sent, it starts the run and goes to its page."""
    chosen = catalogue.report(report)
    parameters = {"report": report, "parameters": _parameters(request, chosen)}
    return form_page(request, "reports/run_now.html", _form(chosen), "report.run", parameters, _go_to_run)


@require_POST
@needs("reports.write")
def run_schedule(request: HttpRequest, schedule_id: int) -> HttpResponse:
    return _go_to_run(change(request, "report.run", {"schedule_id": schedule_id}))


def _go_to_run(submitted: Submitted) -> HttpResponse:
    return HttpResponseRedirect(reverse("report-run", args=[submitted.operation.result["run_id"]]))


@require_GET
@needs("reports.read")
def run(request: HttpRequest, run_id: UUID) -> HttpResponse:
    found = find_run(run_id)
    report = catalogue.report(found.report)
    sections = []
    for section in report.sections:
        data = results.rows(found, section) if found.finished else []
        sections.append(
            {
                "section": section,
                "rows": data[: results.MAX_SHOWN_ROWS],
                "total": len(data),
                "chart": results.chart_data(section, data) if data else None,
            }
        )
    context = {
        "run": found,
        "report": report,
        "sections": sections,
        "layout": [dataclasses.asdict(section) for section in report.sections],
        "most_rows": results.MAX_SHOWN_ROWS,
    }
    template = "reports/_results.html" if request.htmx else "reports/run.html"
    return page(request, template, context)


@require_POST
@needs("reports.write")
def cancel(request: HttpRequest, run_id: UUID) -> HttpResponse:
    change(request, "report.cancel", {"run_id": str(run_id)})
    return HttpResponseRedirect(reverse("report-run", args=[run_id]))


@require_GET
@needs("reports.read")
def download(request: HttpRequest, run_id: UUID) -> HttpResponse:
    return download_section(find_run(run_id), request.GET)


# ---- schedules


@require_http_methods(["GET", "POST"])
@needs("reports.write")
def create_schedule(request: HttpRequest, report: str) -> HttpResponse:
    chosen = catalogue.report(report)
    zone = timezone.get_current_timezone_name()
    values = {
        "cron": "0 6 * * *",
        "time_zone": zone,
        "enabled": "on",
        "overlap": "skip",
        "catch_up": "latest",
        "name": f"{chosen.title} daily",
    }
    context = {**_form(chosen), "values": values, "title": f"Schedule {chosen.title}"}
    parameters = {**_schedule_given(request, chosen), "report": report}
    return form_page(request, "reports/schedule.html", context, "schedule.create", parameters, go_to("reports"))


@require_http_methods(["GET", "POST"])
@needs("reports.write")
def edit_schedule(request: HttpRequest, schedule_id: int) -> HttpResponse:
    schedule = find_schedule(schedule_id)
    chosen = catalogue.report(schedule.report)
    values = {
        **{name: getattr(schedule, name) for name in ("name", "cron", "time_zone", "overlap", "catch_up")},
        "enabled": "on" if schedule.enabled else "",
        **{f"p_{parameter.name}": _as_field(parameter, schedule.parameters) for parameter in chosen.parameters},
    }
    context = {**_form(chosen, schedule), "values": values, "schedule": schedule, "title": f"Edit {schedule.name}"}
    parameters = {**_schedule_given(request, chosen), "schedule_id": schedule_id}
    return form_page(request, "reports/schedule.html", context, "schedule.change", parameters, go_to("reports"))


@require_POST
@needs("reports.write")
def delete_schedule(request: HttpRequest, schedule_id: int) -> HttpResponse:
    change(request, "schedule.delete", {"schedule_id": schedule_id})
    return HttpResponseRedirect(reverse("reports"))


@require_GET
@needs("reports.read")
def cron_preview(request: HttpRequest) -> HttpResponse:
    """What an expression means and when it would run next; part of the schedule form, asked while typing."""
    context: dict[str, Any] = {}
    rules = Rules(request.GET)
    expression, zone = rules.text("cron", most=120), rules.time_zone("time_zone")
    if rules.broken:
        context["error"] = "; ".join(sentence for sentences in rules.broken.values() for sentence in sentences)
    else:
        try:
            found = cron.parse(expression).next_ticks(timezone.now(), ZoneInfo(zone), NEXT_RUNS)
            context.update(
                words=cron.describe(expression),
                zone=zone,
                runs=[
                    (f"{tick.at.astimezone(ZoneInfo(zone)):%a %Y-%m-%d %H:%M %Z}", tick.in_place_of) for tick in found
                ],
            )
        except cron.CronError as error:
            context["error"] = str(error)
    return page(request, "reports/_cron_preview.html", context)


def _form(chosen: catalogue.Report, schedule: ReportSchedule | None = None) -> dict[str, Any]:
    present = [topic.name for topic in in_order(snapshot.current().find_topics())]
    return {
        "report": chosen,
        "topics": [*_chosen_before(chosen, schedule, present), *present],
        "zones": sorted(known_time_zones()),
        "overlaps": ReportSchedule.Overlap.choices,
        "catch_ups": ReportSchedule.CatchUp.choices,
    }


def _chosen_before(chosen: catalogue.Report, schedule: ReportSchedule | None, present: list[str]) -> list[str]:
    """Topics of a schedule that are not known now: they are to be chosen still, or saving it would lose them."""
    stored = schedule.parameters if schedule is not None else {}
    names = [topic for each in chosen.parameters if each.type == "topics" for topic in stored.get(each.name) or ()]
    return [name for name in names if name not in present]


def _parameters(request: HttpRequest, chosen: catalogue.Report) -> dict[str, Any]:
    """The report's parameters from a form, whose fields are named p_<name>."""
    given: dict[str, Any] = {}
    for parameter in chosen.parameters:
        field = f"p_{parameter.name}"
        if parameter.type == "topics":
            given[parameter.name] = request.POST.getlist(field)
        elif request.POST.get(field):
            value = request.POST[field]
            given[parameter.name] = _with_zone(value) if parameter.type == "time" else value
    return given


def _as_field(parameter: catalogue.Parameter, stored: dict[str, Any]) -> Any:
    """A stored parameter as its form field shows it."""
    value = stored.get(parameter.name)
    if parameter.type == "time" and value:
        moment = timezone.localtime(datetime.fromisoformat(value)).replace(tzinfo=None)
        is_whole = not (moment.second or moment.microsecond)
        return moment.isoformat(timespec="minutes" if is_whole else "milliseconds")
    return value


def _with_zone(text: str) -> str:
    """What a datetime-local field sends is in the viewer's zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return text if moment.tzinfo else moment.replace(tzinfo=timezone.get_current_timezone()).isoformat()


def _schedule_given(request: HttpRequest, chosen: catalogue.Report) -> dict[str, Any]:
    return {
        **posted(request, "name", "cron", "time_zone"),
        "enabled": request.POST.get("enabled", "off"),
        "overlap": request.POST.get("overlap", "skip"),
        "catch_up": request.POST.get("catch_up", "latest"),
        "parameters": _parameters(request, chosen),
    }
