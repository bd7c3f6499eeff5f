"""Which variables of the worker its Spark sees: none that opens what a job does not name."""

from collections.abc import Mapping

_OURS = "NOETL_"
_WORKERS = "NOETL_WORKER_"
# Keys of the worker's own machine, which it does not need when it was given others.
_CLOUD = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# A variable that only the Python processes of waves have: Spark lets no other job use them.
LANE = "NOETL_SPARK_LANE"


def find_hidden_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Spark's Java process, and what it starts, are not given."""
    hidden = {name: value for name, value in environ.items() if name.startswith(_OURS)}
    has_keys = bool(environ.get(f"{_WORKERS}PAYLOAD_ACCESS_KEY"))
    is_managed = "kms+" in environ.get(f"{_WORKERS}PAYLOAD_SEAL_KEY", "")
    if has_keys and not is_managed:
        hidden |= {name: environ[name] for name in _CLOUD if name in environ}
    return hidden


def build_shown_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Spark's Java process, and what it starts, are given."""
    hidden = find_hidden_variables(environ)
    return {name: value for name, value in environ.items() if name not in hidden}
