"""Settings that every database of DuckDB has: what statements must not reach, they do not."""

from typing import Any

Settings = dict[str, str | bool | int | float | list[str]]

SETTINGS: Settings = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "python_enable_replacements": "false",
}
_LOCKS = ("TimeZone='UTC'", "enable_external_access=false", "lock_configuration=true")


def lock_settings(connection: Any) -> None:
    """Close a database: it opens no file, and no statement changes a setting from now on."""
    # Global, so that further cursors have them too.
    for setting in _LOCKS:
        connection.execute(f"SET GLOBAL {setting}")
