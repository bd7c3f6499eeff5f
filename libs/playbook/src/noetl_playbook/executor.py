"""How a playbook wants to be run: entry, end, defaults and limits."""

from typing import Literal

import msgspec

from noetl_playbook.canonical import Canonical, Number

PriorityName = Literal["high", "normal", "low"]
UndefinedMode = Literal["strict", "lenient"]


class Requires(Canonical, frozen=True, kw_only=True):
    """Tool kinds that must be enabled on the target, and informational features."""

    tools: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


class ExecDefaults(Canonical, frozen=True, kw_only=True):
    """What tasks have that say nothing themselves."""

    timeout_s: float | None = None


class ExecFailure(Canonical, frozen=True, kw_only=True):
    """What an unhandled failure does to other branches."""

    mode: Literal["fail_fast", "drain"] = "fail_fast"


class ExecResults(Canonical, frozen=True, kw_only=True):
    """How results are kept by default."""

    reference_first: bool = True
    inline_max_bytes: int | None = None


class ExecPolicy(Canonical, frozen=True, kw_only=True):
    """Execution-wide defaults and limits."""

    defaults: ExecDefaults = ExecDefaults()
    failure: ExecFailure = ExecFailure()
    results: ExecResults = ExecResults()
    limits: dict[str, int] = msgspec.field(default_factory=dict)


class ExecSpec(Canonical, frozen=True, kw_only=True):
    """Where an execution begins and ends, and within which bounds."""

    entry_step: str | None = None
    final_step: str | None = None
    no_next_is_error: bool = False
    timeout: Number | None = None
    loop_mode: str | None = None
    # What a test of a missing value does. Parsing always sets it; a model that was stored without
    # it is lenient, as playbooks were then.
    undefined: UndefinedMode | None = None
    pool: str | None = None
    priority: PriorityName | None = None
    policy: ExecPolicy = ExecPolicy()

    @property
    def is_lenient(self) -> bool:
        """Tell whether a test of a missing value is false."""
        return self.undefined != "strict"


class Executor(Canonical, frozen=True, kw_only=True):
    """How the playbook wants to be run."""

    profile: Literal["local", "distributed", "auto"] = "auto"
    version: str | None = None
    requires: Requires = Requires()
    spec: ExecSpec = ExecSpec()
