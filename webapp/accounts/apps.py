"""The users of the console."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "webapp.accounts"

    def ready(self) -> None:
        import_module("webapp.accounts.sessions")  # which hears of logins
