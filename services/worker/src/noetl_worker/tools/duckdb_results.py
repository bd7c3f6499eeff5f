"""What a DuckDB task gives: its rows, and what each statement did."""

from typing import Any


def show_command(kind: str, *, count: int, **shown: Any) -> dict[str, Any]:
    """Show what one statement of a kind did; `shown` are its rows, columns and types."""
    return {
        "rows": [],
        "row_count": count,
        "columns": [],
        **shown,
        "status": "ok",
        "message": f"{kind} {count}",
    }


def show_commands(commands: list[dict[str, Any]]) -> dict[str, Any]:
    """Show what several statements did: the rows are those of the last one that gave any."""
    front = next((one for one in reversed(commands) if one["columns"]), commands[-1])
    raw: dict[str, Any] = {
        "rows": front["rows"],
        "row_count": front["row_count"],
        "columns": front["columns"],
        **({"types": front["types"]} if "types" in front else {}),
        "statement_count": len(commands),
        "status": commands[-1]["status"],
        "message": commands[-1]["message"],
    }
    if len(commands) > 1:
        raw["commands"] = commands
    return raw


def show_query(rows: Any, *, columns: list[str], types: list[str], count: int) -> dict[str, Any]:
    """Show what a single query gave."""
    return {
        "rows": rows,
        "row_count": count,
        "columns": columns,
        "types": types,
        "statement_count": 1,
        "status": "ok",
        "message": f"SELECT {count}",
    }
