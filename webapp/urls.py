"""Every address of the console. Each page needs a login unless its view says otherwise (`webapp.middleware.LoginRequired`)."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [
    path("api/v1/", include("webapp.api.urls")),
]

handler400 = "webapp.errors.bad_request"
handler403 = "webapp.errors.permission_denied"
handler404 = "webapp.errors.not_found"
handler500 = "webapp.errors.server_error"
