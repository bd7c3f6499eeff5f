"""The packages that a `python` task requires, and what this worker allows of them."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from noetl_playbook.model import coercion
from noetl_worker.domain.failures import ToolFailure, build_error

Policy = Literal["refused", "hashed", "any"]

POLICY_SETTING = "NOETL_WORKER_PYTHON_REQUIREMENTS"
NETWORK_SETTING = "NOETL_WORKER_PYTHON_NETWORK_BY_TASK"
FOLDERS_SETTING = "NOETL_WORKER_TASK_FOLDERS"
_COUNT_MAX = 100
_CHARACTERS_MAX = 4_000
_HASH = re.compile(r"\s--hash=(?:sha256|sha384|sha512):[0-9a-f]+(?=\s|$)")
# A name, extras, versions and a marker: no option, no address and no file of this machine.
_FORM = re.compile(
    r"""[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?   # the name
    \s*(?:\[[A-Za-z0-9._,\s-]*\])?                   # extras
    \s*(?:\(?\s*(?:===|==|~=|!=|<=|>=|<|>)[^@;/\\]*)?   # versions
    (?:;[^@/\\]*)?                                   # a marker""",
    re.VERBOSE,
)


class Requirements(Struct, frozen=True, kw_only=True):
    """Lines for the installer, sorted; with `has_hashes` each file must have one of them."""

    lines: tuple[str, ...] = ()
    has_hashes: bool = False


def parse_requirements(fields: dict[str, Any], policy: Policy) -> Requirements:
    """Read `requirements`, or `deps.packages`, which means the same; raises `ToolFailure`."""
    name, package_lines = _find_given(fields)
    lines = sorted({line for line in _split_lines(package_lines, name) if line})
    if not lines:
        return Requirements()
    if len(lines) > _COUNT_MAX:
        raise _build_invalid_failure(
            f"field '{name}' lists {len(lines)} packages, the limit is {_COUNT_MAX}"
        )
    for line in lines:
        _check_requirement_form(line, name)
    hashed_lines = [line for line in lines if _HASH.search(line)]
    _check_policy(name, policy, has_hashes=len(hashed_lines) == len(lines))
    if hashed_lines and len(hashed_lines) < len(lines):
        unhashed_line = next(line for line in lines if line not in hashed_lines)
        raise _build_invalid_failure(
            f"field '{name}': {unhashed_line!r:.120} has no hash, and others have one: give each "
            "'--hash=sha256:…', or none"
        )
    return Requirements(lines=tuple(lines), has_hashes=bool(hashed_lines))


def parse_network(fields: dict[str, Any], *, is_open: bool, is_by_task: bool) -> bool:
    """Tell whether a task has the network; `spec.network` asks. Raises `ToolFailure`."""
    network = fields.get("network")
    if network is None:
        return is_open
    boolean = coercion.coerce_boolean(network)
    if boolean is None:
        raise _build_invalid_failure(
            f"field 'spec.network': {network!r:.80} is neither true nor false"
        )
    if boolean and not (is_open or is_by_task):
        text = (
            "spec.network: true asks for the network, which this worker gives to no python "
            f"task: {NETWORK_SETTING}=true allows tasks to ask for it"
        )
        raise ToolFailure(build_error("config", text, source="python"))
    return boolean


def _find_given(fields: dict[str, Any]) -> tuple[str, Any]:
    requirements, deps = fields.get("requirements"), fields.get("deps")
    older = deps.get("packages") if isinstance(deps, dict) else None
    if requirements and older:
        raise _build_invalid_failure(
            "fields 'requirements' and 'deps.packages' mean the same: write the first alone"
        )
    return ("requirements", requirements) if requirements or not older else ("deps.packages", older)


def _split_lines(package_lines: Any, name: str) -> list[str]:
    """Return one line a package, without comments; a text has as many as it has lines."""
    texts = (
        []
        if package_lines is None
        else package_lines.splitlines()
        if isinstance(package_lines, str)
        else package_lines
    )
    if not isinstance(texts, list) or any(not isinstance(text, str) for text in texts):
        raise _build_invalid_failure(f"field '{name}' must list packages, as in [requests==2.32.3]")
    joined_text = "\n".join(texts).replace("\\\n", " ")
    return [" ".join(re.sub(r"(^|\s)#.*", "", line).split()) for line in joined_text.splitlines()]


def _check_requirement_form(line: str, name: str) -> None:
    bare = _HASH.sub("", line).strip()
    is_long = len(line) > _CHARACTERS_MAX
    if is_long or " -" in bare or not _FORM.fullmatch(bare):
        raise _build_invalid_failure(
            f"field '{name}': {line!r:.120} is no package of an index: write name==version, "
            "extras and hashes; options, addresses and files are an operator's to choose"
        )


def _check_policy(name: str, policy: Policy, *, has_hashes: bool) -> None:
    if policy == "any" or (policy == "hashed" and has_hashes):
        return
    if policy == "hashed":
        text = (
            f"field '{name}': this worker installs packages with hashes alone: give each "
            f"requirement, and what it needs itself, '--hash=sha256:…', or set "
            f"{POLICY_SETTING}=any"
        )
    else:
        text = (
            f"field '{name}': this worker installs nothing for a task: {POLICY_SETTING}=hashed "
            "allows packages with hashes, =any all; or install them where the worker runs"
        )
    raise ToolFailure(build_error("config", text, source="python"))


def _build_invalid_failure(text: str) -> ToolFailure:
    return ToolFailure(build_error("validation", text, source="python"))


_DEPS = frozenset({"packages", "sys_path", "venv_path"})


def parse_libs(libs: Any) -> tuple[dict[str, Any], list[str]]:
    """Return modules by alias, and required distributions; raises `ToolFailure`."""
    if libs is None:
        return {}, []
    if isinstance(libs, list):
        return {}, [str(name) for name in libs]
    if not isinstance(libs, dict):
        raise _build_modules_failure(
            "field 'libs' must be a mapping or a list of distribution names"
        )
    for alias, import_spec in libs.items():
        is_known = isinstance(import_spec, str) or (
            isinstance(import_spec, dict) and {"from", "import"} == import_spec.keys()
        )
        if not is_known:
            raise _build_modules_failure(
                f"field 'libs.{alias}' must be a module or {{from: …, import: …}}"
            )
    return libs, []


def parse_paths(deps: Any, folders: Iterable[str]) -> list[str]:
    """Return where modules are looked for first, all below `folders`; raises `ToolFailure`."""
    if deps is None:
        return []
    if not isinstance(deps, dict) or not deps.keys() <= _DEPS:
        raise _build_modules_failure(
            "field 'deps' must be a mapping of 'packages', 'sys_path' and 'venv_path'"
        )
    sys_path = deps.get("sys_path") or []
    paths = [str(path) for path in (sys_path if isinstance(sys_path, list) else [sys_path])]
    if deps.get("venv_path"):
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        paths.append(str(Path(str(deps["venv_path"])) / "lib" / version / "site-packages"))
    roots = [Path(folder).resolve() for folder in folders]
    for path in paths:
        real = Path(path).resolve()
        if not any(real.is_relative_to(root) for root in roots):
            text = (
                f"field 'deps': '{path}' is outside the folders that tasks of this worker may "
                f"read: {FOLDERS_SETTING} names them"
            )
            raise ToolFailure(build_error("config", text, source="python"))
        if not real.is_dir():
            text = f"field 'deps': there is no directory '{path}' on this worker"
            raise ToolFailure(build_error("missing_dependency", text, source="python"))
    return [str(Path(path).resolve()) for path in paths]


def _build_modules_failure(text: str) -> ToolFailure:
    return ToolFailure(build_error("validation", text, source="python"))
