from __future__ import annotations

import re
from pathlib import Path

from remoting.client import identity
from webapp.appliance import environment
from webapp.appliance.environment import Environment


def test_absent_and_empty_variables_give_the_defaults() -> None:
    read = Environment.read({"REDIS_URL": "", "LOGBOOM_ALLOWED_HOSTS": ""})
    assert read.controllers == ("127.0.0.1:9876", "127.0.0.1:9877", "127.0.0.1:9878")
    assert read.redis_url is None
    assert read.allowed_hosts == ()
    assert read.database_url is None
    assert read.data.root.name == "data"


def test_what_is_set_is_read() -> None:
    read = Environment.read(
        {
            "LOGBOOM_DATA_DIR": "/srv/boom",
            "LOGBOOM_CONTROLLERS": "10.0.0.1:1, 10.0.0.2:2",
        }
    )
    assert read.data.console_database == Path("/srv/boom/console.sqlite3")
    assert read.controllers == ("10.0.0.1:1", "10.0.0.2:2")


def test_the_table_names_every_variable() -> None:
    text = environment.__doc__ or ""
    listed = set(re.findall(r"^\| ([A-Z_]+) \|", text, re.MULTILINE))
    defined = {
        value
        for name, value in vars(environment).items()
        if name.isupper() and not name.startswith("DEFAULT") and isinstance(value, str)
    }
    assert listed == defined


def test_the_names_are_those_that_dialling_reads() -> None:
    for name in ("CLUSTER_SECRET", "TLS_CA", "TLS_CERTIFICATE", "TLS_KEY", "TLS_CHECK_HOST"):
        assert getattr(environment, name) == getattr(identity, name)
