from __future__ import annotations

from django.apps import AppConfig


class GroupsConfig(AppConfig):
    name = "webapp.groups"
