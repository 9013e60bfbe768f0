"""Every address of the console. Each page needs a login unless its view says otherwise (`webapp.middleware.LoginRequired`)."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path

from webapp import converters  # noqa: F401  registers the path converters
from webapp.access import views as access
from webapp.accounts import views as accounts
from webapp.audit import views as audit
from webapp.clusters import views as clusters
from webapp.groups import views as groups
from webapp.history import views as history
from webapp.messages import views as messages
from webapp.operations import views as operations
from webapp.palette import palette
from webapp.reports import views as reports
from webapp.timers import views as timers
from webapp.topics import views as topics
from webapp.transactions import views as transactions

urlpatterns: list[URLPattern | URLResolver] = [
    path("", clusters.landing, name="landing"),
    path("palette", palette, name="palette"),
    path("elections/new", clusters.elect, name="elect"),
    path("controllers/<slug:action>", clusters.controller, name="controller"),
    path("topics/", topics.topics, name="topics"),
    path("topics/new", topics.create, name="topic-create"),
    path("topics/<name:name>/", topics.topic, name="topic"),
    path("topics/<name:name>/edit", topics.edit, name="topic-edit"),
    path("topics/<name:name>/delete", topics.delete, name="topic-delete"),
    path("topics/<name:name>/open-gate", topics.open_gate, name="topic-open-gate"),
    path("topics/<name:name>/export", topics.export, name="topic-export"),
    path("topics/<name:name>/send", messages.send, name="message-send"),
    path("topics/<name:name>/messages", messages.messages, name="messages"),
    path("topics/<name:name>/messages/<name:group>/<int:queue_id>/<int64:offset>", messages.message, name="message"),
    path("broker-groups/<slug:change>", clusters.broker_group, name="broker-group"),
    path("timers/", timers.timers, name="timers"),
    path("timers/find", timers.find, name="timers-find"),
    path("timers/recall", timers.recall, name="timers-recall"),
    path("transactions/", transactions.transactions, name="transactions"),
    path("transactions/decide", transactions.decide, name="transaction-decide"),
    path("groups/", groups.groups, name="groups"),
    path("groups/new", groups.create, name="group-create"),
    path("groups/<name:name>/", groups.group, name="group"),
    path("groups/<name:name>/edit", groups.edit, name="group-edit"),
    path("groups/<name:name>/delete", groups.delete, name="group-delete"),
    path("reports/", reports.reports, name="reports"),
    path("reports/cron", reports.cron_preview, name="cron-preview"),
    path("reports/<slug:report>/run", reports.run_now, name="report-run-now"),
    path("reports/<slug:report>/schedule", reports.create_schedule, name="schedule-create"),
    path("reports/schedules/<int:schedule_id>/edit", reports.edit_schedule, name="schedule-edit"),
    path("reports/schedules/<int:schedule_id>/delete", reports.delete_schedule, name="schedule-delete"),
    path("reports/schedules/<int:schedule_id>/run", reports.run_schedule, name="schedule-run"),
    path("reports/runs/<uuid:run_id>/", reports.run, name="report-run"),
    path("reports/runs/<uuid:run_id>/cancel", reports.cancel, name="report-cancel"),
    path("reports/runs/<uuid:run_id>/download", reports.download, name="report-download"),
    path("operations/", operations.operations, name="operations"),
    path("operations/<uuid:operation_id>/", operations.operation, name="operation"),
    path("operations/<uuid:operation_id>/cancel", operations.cancel, name="operation-cancel"),
    path("history/", history.history, name="history"),
    path("audit/", audit.audit, name="audit"),
    path("audit/verify", audit.verify, name="audit-verify"),
    path("tokens/", accounts.tokens, name="tokens"),
    path("tokens/<int:token_id>/revoke", accounts.revoke_token, name="token-revoke"),
    path("clients/", access.users, name="client-users"),
    path("clients/<str:name>/", access.user, name="client-user"),
    path("clients/<str:name>/delete", access.delete, name="client-user-delete"),
    path("clients/<str:name>/permissions", access.put_permission, name="permission-put"),
    path("clients/<str:name>/permissions/remove", access.remove_permission, name="permission-remove"),
    path("users/", accounts.users, name="users"),
    path("users/reading", accounts.reading, name="reading"),
    path("users/reading/<int:right_id>/remove", accounts.remove_read_right, name="read-right-remove"),
    path("users/<int:user_id>/", accounts.change_user, name="user-change"),
    path("account", accounts.account, name="account"),
    path("account/confirm", accounts.confirm, name="confirm"),
    path("theme", accounts.set_theme, name="theme"),
    path("login", accounts.log_in, name="login"),
    path("logout", accounts.log_out, name="logout"),
    path("api/v1/", include("webapp.api.urls")),
]

handler400 = "webapp.errors.bad_request"
handler403 = "webapp.errors.permission_denied"
handler404 = "webapp.errors.not_found"
handler500 = "webapp.errors.server_error"
