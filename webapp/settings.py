"""Settings of the console. What differs between two installations comes from the environment: see
`webapp.appliance.environment` for the names that the whole appliance shares; some more concern these pages alone:

LOGBOOM_ENVIRONMENT      name shown on every page, so that nobody mistakes production for a laptop
LOGBOOM_AUDIT_KEY_FILE   another place for the key of the audit trail
LOGBOOM_READ_ONLY        1: every change is refused
LOGBOOM_MAX_REQUESTS     how many requests are answered at once (256); more are told to come again
LOGBOOM_TRUSTED_PROXIES  addresses and networks, separated by commas, whose X-Forwarded-For says who asked
LOGBOOM_HTTPS            1: cookies only over TLS, HSTS on (a proxy in front terminates TLS)
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path

import dj_database_url

from webapp import redis_urls
from webapp.appliance import redis_server, secret_files
from webapp.appliance.environment import DEFAULT_REDIS_URL, Environment
from webapp.crowd import most_requests
from webapp.intake import MAX_BODY_BYTES

BASE_DIR = Path(__file__).resolve().parent.parent


def _flag(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in {"1", "true", "yes", "on"}


ENVIRONMENT = Environment.read(os.environ)
DATA_DIR = ENVIRONMENT.data.root.resolve()
REPORTS_DIR = ENVIRONMENT.data.reports
CONTROLLERS = list(ENVIRONMENT.controllers)
REPORTS_AT_ONCE = ENVIRONMENT.reports_at_once
REDIS_URL = ENVIRONMENT.redis_url or redis_server.embedded_url(ENVIRONMENT.data) or DEFAULT_REDIS_URL
QUEUE_URL = redis_urls.for_celery(REDIS_URL)
ENVIRONMENT_NAME = os.environ.get("LOGBOOM_ENVIRONMENT", "local")[:40]
READ_ONLY = _flag("LOGBOOM_READ_ONLY")
MAX_REQUESTS = most_requests(os.environ)
BEHIND_PROXY = _flag("LOGBOOM_HTTPS")
HTTPS = BEHIND_PROXY or ENVIRONMENT.secure_host is not None
PAGES_OVER_TLS = HTTPS and not BEHIND_PROXY  # a proxy redirects itself
TRUSTED_PROXIES = [
    ipaddress.ip_network(each.strip(), strict=False)
    for each in os.environ.get("LOGBOOM_TRUSTED_PROXIES", "").split(",")
    if each.strip()
]

SECRET_KEY = ENVIRONMENT.secret_key or secret_files.read_or_create(ENVIRONMENT.data.secret_key_file)
AUDIT_KEY = secret_files.read_or_create(
    Path(os.environ.get("LOGBOOM_AUDIT_KEY_FILE") or ENVIRONMENT.data.audit_key_file)
)
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]", *ENVIRONMENT.allowed_hosts]

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "channels",
    "django_htmx",
    "webapp.accounts.apps.AccountsConfig",
    "webapp.audit",
    "webapp.operations",
    "webapp.clusters",
    "webapp.topics",
    "webapp.groups",
    "webapp.history",
    "webapp.reports",
    "webapp.appliance",
]

MIDDLEWARE = [
    "webapp.middleware.RequestId",
    "django.middleware.security.SecurityMiddleware",
    "webapp.middleware.SecurityHeaders",
    "webapp.middleware.StaticFiles",
    "webapp.middleware.PagesOverTls",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "webapp.accounts.idle.IdleSessions",
    "webapp.audit.refusals.Refusals",
    "webapp.middleware.LoginRequired",
    "django_htmx.middleware.HtmxMiddleware",
    "webapp.middleware.UserTimeZone",
    "webapp.middleware.ProblemPages",
]

ROOT_URLCONF = "webapp.urls"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "webapp" / "templates"],
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "webapp.context.console",
            ],
            "builtins": ["webapp.display"],
        },
    }
]

if ENVIRONMENT.database_url:
    DATABASES = {"default": dj_database_url.parse(ENVIRONMENT.database_url, conn_max_age=60, conn_health_checks=True)}
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": ENVIRONMENT.data.console_database,
            # a file in tests too: websockets and workers use connections of their own
            "TEST": {"NAME": DATA_DIR / "console-test.sqlite3"},
            "OPTIONS": {
                # A transaction that will write takes the write lock at its start: waiting then is possible, upgrading a
                # read lock later is refused at once by SQLite, whatever the busy timeout.
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            },
        }
    }
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "webapp.channel_layer.ScriptlessChannelLayer",
        "CONFIG": {
            # the layer waits up to 5 s for a message: a reading socket must not give up at the same moment
            "hosts": [{"address": REDIS_URL, "socket_timeout": 20, "socket_connect_timeout": 3}],
            "prefix": "logboom:channels",
            "capacity": 200,
            "expiry": 30,
        },
    }
}

# Seams to the outside; tests put twins in their place.
SNAPSHOT_SOURCE = "webapp.snapshot.RedisSource"
ACCESS_CLIENT = "webapp.gateway.connect_access"
CLUSTER_CLIENT = "webapp.gateway.connect"
TASK_QUEUE = "webapp.queue.CeleryQueue"

AUTH_USER_MODEL = "accounts.User"
LOGIN_URL = "/login"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

# Such names bind a cookie to this very host: another one of the domain cannot plant it.
COOKIE_PREFIX = "__Host-" if HTTPS else ""
SESSION_COOKIE_NAME = f"{COOKIE_PREFIX}logboom_session"
SESSION_COOKIE_AGE = 12 * 3600
SESSION_COOKIE_SECURE = HTTPS
CSRF_COOKIE_NAME = f"{COOKIE_PREFIX}logboom_csrf"
CSRF_COOKIE_HTTPONLY = True
CSRF_COOKIE_SAMESITE = "Strict"
CSRF_COOKIE_SECURE = HTTPS
# Behind a proxy, which may ask for another host than the browser did. Else another port of this host would be trusted.
CSRF_TRUSTED_ORIGINS = [f"https://{host}" for host in ALLOWED_HOSTS if BEHIND_PROXY and not host.startswith("[")]
CSRF_FAILURE_VIEW = "webapp.errors.csrf_failure"
if BEHIND_PROXY:  # it terminates TLS and redirects; the appliance itself is reached over loopback
    SECURE_HSTS_SECONDS = 31_536_000
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

DATA_UPLOAD_MAX_MEMORY_SIZE = MAX_BODY_BYTES
FILE_UPLOAD_MAX_MEMORY_SIZE = MAX_BODY_BYTES  # no body goes to a file
DATA_UPLOAD_MAX_NUMBER_FIELDS = 200

LANGUAGE_CODE = "en"
USE_I18N = False
TIME_ZONE = "UTC"

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "webapp" / "static"]
WHITENOISE_USE_FINDERS = True  # no collectstatic step: the files are few and their addresses carry a content hash
WHITENOISE_ALLOW_ALL_ORIGINS = False
WHITENOISE_MAX_AGE = 3600

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "webapp.accounts.authentication.BearerTokenAuthentication",  # first: it makes a refusal a 401
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["webapp.accounts.authentication.HasPermission"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "webapp.api.problems.handle_exception",
    "DATETIME_FORMAT": "%Y-%m-%dT%H:%M:%S.%fZ",
    "URL_FORMAT_OVERRIDE": None,  # everything is JSON; `?format=` shall not become a 404
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Logboom REST API",
    "DESCRIPTION": "What the console does, for scripts. Errors are application/problem+json with a stable `code`.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "COMPONENT_SPLIT_REQUEST": True,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "ENUM_NAME_OVERRIDES": {
        "OperationState": ["planned", "queued", "running", "succeeded", "failed", "cancelled"],
        "RunState": ["queued", "starting", "running", "succeeded", "failed", "cancelled", "skipped"],
        "UserRole": ["none", "viewer", "operator", "admin"],
        "WriteUserRole": ["viewer", "operator", "admin"],
        "ReadRightRole": ["viewer", "operator"],
        "ReadRightDecision": ["allow", "deny"],
        "HistoryKind": [
            *("election", "leader", "no-master", "refused", "replica-down", "out-of-sync"),
            *("leaderless", "controller-down", "process-down"),
        ],
        "ControllerRole": ["leader", "follower", "candidate", "unreachable"],
        "ReplicaRole": ["master", "replica", "fenced", "unreachable"],
        "TypeEnum": ["NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"],
        "StatusEnum": ["healthy", "degraded", "down"],
        "ClientUserType": ["Normal", "Super"],
        "ClientUserStatus": ["enable", "disable"],
        "ClientAction": ["All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List"],
        "ResourceType": ["Topic", "Group", "Cluster"],
        "DecisionEnum": ["Allow", "Deny"],
        "TransactionDecision": ["commit", "rollback"],
    },
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": os.environ.get("LOGBOOM_LOG_LEVEL", "INFO")},
    "loggers": {
        "django.request": {"level": "ERROR"},
        "django.security.DisallowedHost": {"level": "CRITICAL"},  # anybody can cause it; the answer says it
        "daphne.http_protocol": {"level": "WARNING"},
    },
}
