"""People, their tokens, and the attempts to log in.

A token's secret is shown once, when it is made; what is kept is its SHA-256 (the secret is 256 random bits, so a slow hash
would protect nothing) and a prefix to find it by. Roles are Django groups; `webapp.accounts.permissions` says what each may do.
"""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.db import models


class User(AbstractUser):
    """Somebody who may log in."""

    time_zone = models.CharField(max_length=64, blank=True, default="", help_text="IANA name; empty: UTC")


class ApiToken(models.Model):
    """A machine's key to the REST API; it acts for `owner` and can never do more than its owner may."""

    name = models.CharField(max_length=80)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens")
    prefix = models.CharField(max_length=12, unique=True)
    secret_sha256 = models.CharField(max_length=64)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    of_machine = models.BooleanField(
        default=False, help_text="the command line's: it is no person's, and outlives passwords"
    )

    class Meta:
        ordering = ("-created_at", "-id")


class LoginAttempt(models.Model):
    """One try to log in; the limit counts the failed ones of the last minutes."""

    username = models.CharField(max_length=150)
    ip = models.CharField(max_length=45)
    at = models.DateTimeField(db_index=True)
    succeeded = models.BooleanField(default=False)

    class Meta:
        indexes = [  # noqa: RUF012
            models.Index(fields=["username", "ip", "at"]),
            models.Index(fields=["ip", "at"]),
        ]
