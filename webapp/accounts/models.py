"""People, their tokens, what they read, and the attempts to log in.

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


class ReadRight(models.Model):
    """Whether a role, or a person, reads what messages of some topics say (`webapp.accounts.read_rights` decides)."""

    topics = models.CharField(max_length=256, help_text="a topic's name, or the beginning of names and a *")
    role = models.CharField(max_length=10, blank=True, default="", help_text="empty: the user's own")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="read_rights", default=None
    )
    allows = models.BooleanField()

    class Meta:
        constraints = [  # noqa: RUF012
            models.UniqueConstraint(
                fields=["topics", "role"], condition=models.Q(user=None), name="read_right_of_a_role"
            ),
            models.UniqueConstraint(
                fields=["topics", "user"], condition=models.Q(role=""), name="read_right_of_a_person"
            ),
            models.CheckConstraint(
                condition=models.Q(role="", user__isnull=False) | (~models.Q(role="") & models.Q(user=None)),
                name="read_right_of_one",
            ),
        ]

    @property
    def readers(self) -> str:
        """Whose it is, for people."""
        return self.user.get_username() if self.user is not None else f"every {self.role}"

    @property
    def decision(self) -> str:
        return "allow" if self.allows else "deny"


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
