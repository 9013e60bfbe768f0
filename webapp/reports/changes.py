"""Running, cancelling and scheduling reports, as kinds of operations."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

from django.contrib.auth.models import AnonymousUser
from django.db import transaction
from django.forms.models import model_to_dict
from django.utils import timezone

from webapp import gateway, snapshot
from webapp.accounts.permissions import Actor
from webapp.errors import Conflict, NotFound, Problem
from webapp.lifecycle import WorkOver
from webapp.operations.kinds import Done, Kind, Parameters
from webapp.queue import CANCEL_REPORT, RUN_REPORT, task_queue
from webapp.reports import catalogue, cron, line, schedules, stream
from webapp.reports.models import ReportRun, ReportSchedule
from webapp.rules import Rules

log = logging.getLogger(__name__)

MAX_SCHEDULES = 200


# ---- runs


def _validate_run(actor: Actor, parameters: Parameters) -> Parameters:
    if parameters.get("schedule_id") is not None:
        schedule = find_schedule(parameters.get("schedule_id"))
        rules = Rules(parameters)
        _refuse_unknown_topics(rules, catalogue.report(schedule.report), schedule.parameters)
        rules.finish()
        return {"report": schedule.report, "parameters": schedule.parameters, "schedule_id": schedule.pk}
    rules = Rules(parameters)
    chosen = catalogue.report(parameters.get("report"))
    cleaned = catalogue.clean_parameters(rules, chosen, parameters.get("parameters"))
    _refuse_unknown_topics(rules, chosen, cleaned)
    rules.finish()
    return {"report": chosen.name, "parameters": cleaned, "schedule_id": None}


def _refuse_unknown_topics(
    rules: Rules, chosen: catalogue.Report, parameters: Parameters, known: Parameters | None = None
) -> None:
    """Refuse topics that the cluster certainly has not, unless they stood in the `known` parameters before.

    While a master does not answer, nobody here knows them all; then the worker asks when it runs the report. A topic that was
    made a moment ago may be missing in the snapshot, so the cluster has the last word.
    """
    present = snapshot.current(fresh=True)
    if not present.lists_all_topics:
        return
    for name in (each.name for each in chosen.parameters if each.type == "topics"):
        spared = {*present.topics, *((known or {}).get(name) or ())}
        missing = [topic for topic in parameters.get(name) or () if topic not in spared and _is_unknown(topic)]
        if missing:
            rules.refuse(f"parameters.{name}", f"the cluster has no topic {', '.join(missing)}")


def _is_unknown(topic: str) -> bool:
    try:
        gateway.queue_ranges(topic)
    except NotFound:
        return True
    except Problem as problem:
        log.info("not known whether the cluster has a topic %s: %s", topic, problem.detail)
    return False


def _run(actor: Actor, parameters: Parameters) -> Done:
    assert not isinstance(actor.user, AnonymousUser)
    run = ReportRun.objects.create(
        report=parameters["report"],
        parameters=parameters["parameters"],
        schedule_id=parameters["schedule_id"],
        requested_by=actor.user,
        requested_by_name=actor.name[:150],
        progress=line.JUST_QUEUED,
    )
    transaction.on_commit(lambda: _send(run))
    line.tell_places_after_commit()
    return Done({"run_id": str(run.pk)})


def _send(run: ReportRun) -> None:
    try:
        task_queue().send(RUN_REPORT, str(run.pk))
    except Problem as problem:
        stream.failed(run.pk, problem.detail)


def _validate_cancel(actor: Actor, parameters: Parameters) -> Parameters:
    run = find_run(parameters.get("run_id"))
    if run.finished:
        raise Conflict(f"The run is already over: it {run.state}.", code="run-finished")
    return {"run_id": str(run.pk), "report": run.report}


def _cancel(actor: Actor, parameters: Parameters) -> Done:
    try:
        run = stream.request_cancel(parameters["run_id"])
    except WorkOver as error:
        raise Conflict("The run ended a moment ago.", code="run-finished") from error
    if not run.finished:
        # The worker that runs it also looks at cancel_requested; this task interrupts Spark at once.
        transaction.on_commit(lambda: _send_cancel(run))
    return Done({"run_id": str(run.pk), "state": run.state})


def _send_cancel(run: ReportRun) -> None:
    try:
        task_queue().send(CANCEL_REPORT, str(run.pk))
    except Problem as problem:
        log.warning("run %s ends when its worker or the janitor looks: %s", run.pk, problem.detail)


def find_run(run_id: object) -> ReportRun:
    """The run of that id, or NotFound."""
    try:
        return ReportRun.objects.select_related("schedule").get(pk=UUID(str(run_id)))
    except (ValueError, ReportRun.DoesNotExist) as error:
        raise NotFound("There is no such report run.", code="run-not-found") from error


# ---- schedules


def _validate_schedule(actor: Actor, parameters: Parameters) -> Parameters:
    if ReportSchedule.objects.count() >= MAX_SCHEDULES:
        raise Conflict(f"There are {MAX_SCHEDULES} schedules; delete one first.", code="too-many-schedules")
    return _clean_schedule(parameters, None)


def _validate_schedule_change(actor: Actor, parameters: Parameters) -> Parameters:
    schedule = find_schedule(parameters.get("schedule_id"))
    present = model_to_dict(schedule, exclude=("id", "created_by"))
    return {**_clean_schedule({**present, **parameters}, schedule), "schedule_id": schedule.pk}


def _clean_schedule(parameters: Parameters, present: ReportSchedule | None) -> Parameters:
    rules = Rules(parameters)
    chosen = catalogue.report(parameters.get("report"))
    cleaned: dict[str, Any] = {
        "name": rules.text("name", least=1, most=120),
        "report": chosen.name,
        "parameters": catalogue.clean_parameters(rules, chosen, parameters.get("parameters")),
        "cron": rules.text("cron", least=1, most=120),
        "time_zone": rules.time_zone("time_zone"),
        "enabled": rules.flag("enabled", default=True),
        "overlap": rules.choice("overlap", ReportSchedule.Overlap.values, default=ReportSchedule.Overlap.SKIP.value),
        "catch_up": rules.choice(
            "catch_up", ReportSchedule.CatchUp.values, default=ReportSchedule.CatchUp.LATEST.value
        ),
    }
    try:
        cleaned["cron"] = cron.parse(cleaned["cron"]).text
    except cron.CronError as error:
        rules.refuse("cron", str(error))
    _refuse_unknown_topics(rules, chosen, cleaned["parameters"], present and present.parameters)
    if ReportSchedule.objects.filter(name=cleaned["name"]).exclude(pk=present and present.pk).exists():
        rules.refuse("name", "another schedule has this name")
    rules.finish()
    return cleaned


def _create_schedule(actor: Actor, parameters: Parameters) -> Done:
    assert not isinstance(actor.user, AnonymousUser)
    schedule = ReportSchedule.objects.create(**parameters, created_by=actor.user)
    return Done({"schedule_id": schedule.pk})


def _change_schedule(actor: Actor, parameters: Parameters) -> Done:
    now = timezone.now()
    made = schedules.make_due_of(parameters["schedule_id"], now)  # what was due before the change is run as it was then
    transaction.on_commit(lambda: _send_scheduled(made))
    schedule = ReportSchedule.objects.select_for_update().filter(pk=parameters["schedule_id"]).first()
    if schedule is None:
        raise _no_such_schedule()
    for name, value in parameters.items():
        if name != "schedule_id":
            setattr(schedule, name, value)
    schedule.decided_until = now
    schedule.save()
    return Done({"schedule_id": schedule.pk})


def _send_scheduled(made: list[ReportRun]) -> None:
    for run in made:
        try:
            task_queue().send(RUN_REPORT, str(run.pk))
        except Problem as problem:
            log.warning("run %s is left to the janitor: %s", run.pk, problem.detail)


def _validate_schedule_deletion(actor: Actor, parameters: Parameters) -> Parameters:
    schedule = find_schedule(parameters.get("schedule_id"))
    return {"schedule_id": schedule.pk, "name": schedule.name}


def _delete_schedule(actor: Actor, parameters: Parameters) -> Done:
    for schedule in ReportSchedule.objects.select_for_update().filter(pk=parameters["schedule_id"]):
        schedule.delete()
    return Done({"schedule_id": parameters["schedule_id"]})


def find_schedule(schedule_id: object) -> ReportSchedule:
    """The schedule of that id, or NotFound."""
    found = ReportSchedule.objects.filter(pk=schedule_id).first() if isinstance(schedule_id, int) else None
    if found is None:
        raise _no_such_schedule()
    return found


def _no_such_schedule() -> NotFound:
    return NotFound("There is no such schedule.", code="schedule-not-found")


def _run_plan(parameters: Parameters) -> list[dict[str, str]]:
    return [{"node": "Spark", "change": f"run the report {parameters['report']}"}]


RUN = Kind("report.run", "Run report", "reports.write", _validate_run, _run_plan, target=("report",), record=_run)
CANCEL = Kind(
    "report.cancel", "Cancel report run", "reports.write", _validate_cancel, target=("run_id",), record=_cancel
)
CREATE_SCHEDULE = Kind(
    "schedule.create", "Create schedule", "reports.write", _validate_schedule, record=_create_schedule
)
CHANGE_SCHEDULE = Kind(
    "schedule.change", "Change schedule", "reports.write", _validate_schedule_change, record=_change_schedule
)
DELETE_SCHEDULE = Kind(
    "schedule.delete", "Delete schedule", "reports.write", _validate_schedule_deletion, record=_delete_schedule
)
