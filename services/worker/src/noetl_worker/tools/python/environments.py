"""Environments of `python` tasks: a folder of installed packages for each set of requirements."""

import asyncio
import ensurepip
import os
import re
import shutil
import sys
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import metadata
from itertools import count
from pathlib import Path

import structlog
from msgspec import Struct
from yarl import URL

from noetl_chassis.blocking_work import run_in_thread
from noetl_contracts import codec
from noetl_storage.process import removal
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.tools.python.requirements import Policy, Requirements

INDEX_SETTING = "NOETL_WORKER_PYTHON_INDEX"
LINKS_SETTING = "NOETL_WORKER_PYTHON_LINKS"
BYTES_SETTING = "NOETL_WORKER_PYTHON_ENVIRONMENT_BYTES_MAX"
NO_INDEX = "none"
# What the process of a task has loaded before its code runs: no second version can be.
LOADED = frozenset({"msgspec", "typing-extensions"})
_SAID_CHARACTERS_MAX = 1_500
_SAID_LINES_MAX = 12
_VERSIONS_SHOWN_MAX = 8
_FOUND_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
_REMOVAL_S = 60.0

log = structlog.get_logger(__name__)


# Runs a command with an environment in a folder; returns its code and what it said on stderr.
RunCommand = Callable[[tuple[str, ...], dict[str, str], Path], Awaitable[tuple[int, str]]]


class EnvironmentOptions(Struct, frozen=True, kw_only=True):
    """What may be installed, from where, and how much of it is kept."""

    policy: Policy = "refused"
    # Empty: the installer's own, which is PyPI; `none`: the links alone.
    index: str = ""
    links: str = ""
    # Folders in which uv is looked for, besides that of the worker's Python.
    search_path: str = ""
    count_max: int = 16
    bytes_max: int = 2 * 1024**3


class PackageEnvironments:
    """Makes environments once, keeps the latest, and removes old ones that nobody uses.

    Each belongs to one organization: its code could change what it runs on.
    """

    def __init__(
        self, *, options: EnvironmentOptions, root: Path, mask: SecretMask, run_command: RunCommand
    ) -> None:
        self._run_command = run_command
        self._options = options
        self._root = root
        self._mask = mask
        # An index behind a login has its password in the address, and installers repeat it.
        mask.learn_secrets([URL(place).password or "" for place in (options.index, options.links)])
        # A lock for each set that anybody has asked for: few, for authors write them.
        self._lock_by_key: dict[str, asyncio.Lock] = {}
        self._folder_by_key: OrderedDict[str, Path] = OrderedDict()
        self._users: Counter[Path] = Counter()
        # One that is made again has another folder than the one that is being removed.
        self._numbers = count()

    @property
    def install_policy(self) -> Policy:
        """Return what tasks may require."""
        return self._options.policy

    @asynccontextmanager
    async def hold_environment(
        self, requirements: Requirements, owner: tuple[str, str], tell: Callable[[str], None]
    ) -> AsyncIterator[Path | None]:
        """Hold the folder of a set of packages, made when it is new; None for the empty set.

        `tell` is told before packages are installed, which may last. Raises `ToolFailure`.
        """
        if not requirements.lines:
            yield None
            return
        key = codec.digest_hex("\n".join((*owner, sys.version, *requirements.lines)).encode())
        lock = self._lock_by_key.setdefault(key, asyncio.Lock())
        async with lock:
            folder = self._folder_by_key.get(key)
            if folder is None:
                count = len(requirements.lines)
                tell(f"installing {count} package{'' if count == 1 else 's'} ...")
                folder = await self._make_environment(key, requirements)
                self._folder_by_key[key] = folder
            self._folder_by_key.move_to_end(key)
            self.acquire_folder(folder)
        try:
            await self._drop_old()
            yield folder
        finally:
            self.release_folder(folder)

    def acquire_folder(self, folder: Path | None) -> None:
        """Keep an environment while a process runs on it."""
        if folder is not None:
            self._users[folder] += 1

    def release_folder(self, folder: Path | None) -> None:
        """Let an environment be removed when it is old."""
        if folder is not None:
            self._users[folder] -= 1

    async def _drop_old(self) -> None:
        """Remove the least recently used that nobody uses."""
        unused = [
            key
            for key, folder in self._folder_by_key.items()
            if not self._users[folder] and not self._lock_by_key[key].locked()
        ]
        for key in unused[: max(0, len(self._folder_by_key) - self._options.count_max)]:
            folder = self._folder_by_key.pop(key)
            del self._users[folder]
            await run_in_thread(removal.remove_folder, folder.parent, within_s=_REMOVAL_S)

    async def _make_environment(self, key: str, requirements: Requirements) -> Path:
        """Install packages into a new folder; nothing stays of one that fails."""
        place = self._root / f"{key[:32]}-{next(self._numbers)}"
        folder, home = place / "packages", place / "home"
        try:
            await run_in_thread(_prepare_folder, place, requirements)
            await self._install_packages(place, requirements)
            await run_in_thread(self._check_folder, folder)
            await run_in_thread(removal.remove_folder, home, within_s=_REMOVAL_S)
        except BaseException:
            await asyncio.shield(run_in_thread(removal.remove_folder, place, within_s=_REMOVAL_S))
            raise
        log.info("python environment made", packages=len(requirements.lines))
        return folder

    async def _install_packages(self, place: Path, requirements: Requirements) -> None:
        command = (
            *_get_installer(self._options.search_path),
            *("--target", str(place / "packages"), "--only-binary", ":all:"),
            *(("--require-hashes",) if requirements.has_hashes else ()),
            *self._build_source_options(),
            *("-r", str(place / "requirements.txt")),
        )
        environ = {
            "PATH": os.defpath,
            "HOME": str(place / "home"),
            "TMPDIR": str(place / "home"),
            "LANG": "C.UTF-8",
        }
        code, output = await self._run_command(command, environ, place / "home")
        if code != 0:
            raise self._build_install_failure(requirements, output)

    def _build_source_options(self) -> tuple[str, ...]:
        """Say where packages come from."""
        index, links = self._options.index, self._options.links
        source_options: tuple[str, ...] = ()
        if index == NO_INDEX:
            source_options = ("--no-index",)
        elif index:
            source_options = ("--index-url", index)
        return (*source_options, *(("--find-links", links) if links else ()))

    def _build_install_failure(self, requirements: Requirements, output: str) -> ToolFailure:
        installer_text = _FOUND_VERSIONS.sub(_keep_newest_versions, self._mask.mask_text(output))
        lines = [line.strip() for line in installer_text.splitlines() if line.strip()]
        reason = " / ".join(lines[-_SAID_LINES_MAX:])
        reason = (
            reason if len(reason) <= _SAID_CHARACTERS_MAX else f"…{reason[-_SAID_CHARACTERS_MAX:]}"
        )
        names = ", ".join(line.partition(" --hash")[0] for line in requirements.lines)
        text = (
            f"field 'requirements': {names:.300} cannot be installed: {reason}. Wheels alone are "
            f"installed; {INDEX_SETTING} and {LINKS_SETTING} of the worker say from where"
        )
        return ToolFailure(build_error("missing_dependency", text, source="python"))

    def _check_folder(self, folder: Path) -> None:
        """Refuse what is too large or cannot be used; raises `ToolFailure`."""
        size = sum(path.lstat().st_size for path in folder.rglob("*"))
        if size > self._options.bytes_max:
            text = (
                f"field 'requirements': the packages have {size} bytes, the limit is "
                f"{self._options.bytes_max} ({BYTES_SETTING}): require fewer"
            )
            raise ToolFailure(build_error("limit", text, code="ENVIRONMENT_BYTES", source="python"))
        for distribution in metadata.distributions(path=[str(folder)]):
            name = distribution.name.lower().replace("_", "-")
            if name in LOADED and distribution.version != metadata.version(name):
                text = (
                    f"field 'requirements': it brings {name} {distribution.version}, and the "
                    f"process that runs the code has {metadata.version(name)} loaded: require "
                    f"{name}=={metadata.version(name)}, or packages that work with it"
                )
                raise ToolFailure(build_error("config", text, source="python"))


def _prepare_folder(place: Path, requirements: Requirements) -> None:
    for name in ("packages", "home"):
        (place / name).mkdir(parents=True, mode=0o700)
    (place / "requirements.txt").write_text("\n".join(requirements.lines) + "\n")


def _get_installer(search_path: str) -> tuple[str, ...]:
    """Return the command that installs: uv where it is there, else pip; raises `ToolFailure`."""
    beside = str(Path(sys.executable).parent)
    uv = shutil.which("uv", path=os.pathsep.join((beside, search_path)))
    if uv is not None:
        placing = ("--link-mode", "copy", "--python", sys.executable)
        return (
            uv,
            "pip",
            "install",
            "--quiet",
            "--no-config",
            "--no-cache",
            "--compile-bytecode",
            *placing,
        )
    bundled = sorted((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    pip = (str(bundled[-1] / "pip"),) if bundled else ("-m", "pip")
    if not bundled and shutil.which("pip", path=beside) is None:
        text = "field 'requirements': this worker has neither uv nor pip: install uv where it runs"
        raise ToolFailure(build_error("config", text, source="python"))
    options = ("--isolated", "--disable-pip-version-check", "--no-input", "--no-cache-dir")
    return (sys.executable, "-I", *pip, "install", "--quiet", *options)


def _keep_newest_versions(match: re.Match[str]) -> str:
    """Shorten what an installer lists of a package with many versions, the oldest first."""
    versions = match[1].split(", ")
    newest = ", ".join(versions[-_VERSIONS_SHOWN_MAX:])
    return f"(there are {'' if len(versions) <= _VERSIONS_SHOWN_MAX else '…, '}{newest})"
