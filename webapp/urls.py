"""Every address of the console. Each page needs a login unless its view says otherwise (`webapp.middleware.LoginRequired`)."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver

urlpatterns: list[URLPattern | URLResolver] = []
