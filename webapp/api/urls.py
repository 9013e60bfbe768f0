"""Addresses of the REST API, below /api/v1/."""

from __future__ import annotations

from django.urls import path, re_path
from drf_spectacular.views import SpectacularAPIView
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from webapp import converters  # noqa: F401  registers the path converters
from webapp.accounts.authentication import HasPermission
from webapp.api import (
    access,
    accounts,
    audit,
    clusters,
    consumer_groups,
    controllers,
    history,
    messages,
    openapi,  # noqa: F401  registers the authentication schemes
    operations,
    reports,
    timers,
    topics,
    transactions,
)
from webapp.errors import NotFound


class SchemaView(SpectacularAPIView):
    """The OpenAPI document; like everything else, for those who have logged in."""

    read_permission = "cluster.read"
    permission_classes = (HasPermission,)
    renderer_classes = (JSONRenderer,)


class UnknownView(APIView):
    """Addresses that are none: the same kind of answer as everywhere in the API, and only after login."""

    schema = None

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        raise NotFound("There is nothing at this address; see /api/v1/schema for what there is.")


urlpatterns = [
    path("health", clusters.HealthView.as_view(), name="api-health"),
    path("schema", SchemaView.as_view(), name="api-schema"),
    path("cluster", clusters.ClusterView.as_view()),
    path("controllers", clusters.ControllersView.as_view()),
    path("controllers/members", controllers.ControllerMembersView.as_view()),
    path("controllers/members/<name:name>", controllers.ControllerMemberView.as_view()),
    path("controllers/members/<name:name>/promote", controllers.PromoteControllerView.as_view()),
    path("controllers/leader", controllers.ControllerLeaderView.as_view()),
    path("groups", clusters.GroupsView.as_view()),
    path("groups/<name:cluster>/<name:group>", clusters.GroupView.as_view()),
    path("group-wishes", clusters.SwitchedGroupsView.as_view()),
    path("groups/<name:cluster>/<name:group>/retire", clusters.RetireView.as_view()),
    path("groups/<name:cluster>/<name:group>/down", clusters.DownView.as_view()),
    path("groups/<name:cluster>/<name:group>/up", clusters.UpView.as_view()),
    path("groups/<name:cluster>/<name:group>/mount", clusters.MountView.as_view()),
    path("groups/<name:cluster>/<name:group>/unmount", clusters.UnmountView.as_view()),
    path("groups/<name:cluster>/<name:group>/replicas", clusters.ReplicasView.as_view()),
    path("history", history.HistoryView.as_view()),
    path("elections", clusters.ElectionsView.as_view()),
    path("topics", topics.TopicsView.as_view()),
    path("topics/<name:name>", topics.TopicView.as_view()),
    path("topics/<name:name>/queues", topics.QueuesView.as_view()),
    path("topics/<name:name>/open-gate", topics.OpenGateView.as_view()),
    path("topics/<name:name>/export", topics.ExportView.as_view()),
    path("topics/<name:name>/messages", messages.MessagesView.as_view()),
    path("topics/<name:name>/messages/by-key", messages.MessagesByKeyView.as_view()),
    path("topics/<name:name>/messages/<name:group>/<int:queue_id>/<int64:offset>", messages.MessageView.as_view()),
    path("timers", timers.TimersView.as_view()),
    path("timers/found", timers.FoundTimersView.as_view()),
    path("timers/recall", timers.RecallTimersView.as_view()),
    path("transactions/given-up", transactions.GivenUpView.as_view()),
    path("client-users", access.ClientUsersView.as_view()),
    path("client-users/<str:name>", access.ClientUserView.as_view()),
    path("client-users/<str:name>/permissions", access.PermissionsView.as_view()),
    path("client-users/<str:name>/permissions/remove", access.RemovePermissionView.as_view()),
    path("access/explain", access.ExplainView.as_view()),
    path("consumer-groups", consumer_groups.ConsumerGroupsView.as_view()),
    path("consumer-groups/<name:name>", consumer_groups.ConsumerGroupView.as_view()),
    path("operations", operations.OperationsView.as_view()),
    path("operations/<uuid:operation_id>", operations.OperationView.as_view()),
    path("operations/<uuid:operation_id>/cancel", operations.CancelOperationView.as_view()),
    path("reports", reports.ReportsView.as_view()),
    path("cron", reports.CronView.as_view()),
    path("report-schedules", reports.SchedulesView.as_view()),
    path("report-schedules/<int:schedule_id>", reports.ScheduleView.as_view()),
    path("report-runs", reports.RunsView.as_view()),
    path("report-runs/<uuid:run_id>", reports.RunView.as_view()),
    path("report-runs/<uuid:run_id>/progress", reports.ProgressView.as_view()),
    path("report-runs/<uuid:run_id>/rows", reports.RowsView.as_view()),
    path("report-runs/<uuid:run_id>/cancel", reports.CancelRunView.as_view()),
    path("report-runs/<uuid:run_id>/download", reports.DownloadView.as_view()),
    path("tokens", accounts.TokensView.as_view()),
    path("tokens/<int:token_id>", accounts.TokenView.as_view()),
    path("read-rights", accounts.ReadRightsView.as_view()),
    path("read-rights/explain", accounts.ExplainReadingView.as_view()),
    path("read-rights/<int:right_id>", accounts.ReadRightView.as_view()),
    path("users", accounts.UsersView.as_view()),
    path("users/me", accounts.MeView.as_view()),
    path("users/<int:user_id>", accounts.UserView.as_view()),
    path("audit", audit.AuditView.as_view()),
    path("audit/verify", audit.VerifyAuditView.as_view()),
    re_path(r"^(?P<rest>.*)$", UnknownView.as_view()),
]
