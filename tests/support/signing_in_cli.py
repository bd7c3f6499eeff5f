"""The command line as a process of its own, which prints where to sign in."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.support.signing_in import Browser, Site

DONE_S = 60


@dataclass
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def an_environment(folder: Path, **changes: str) -> dict[str, str]:
    """The environment of a user whose sign-ins are in a folder, and who has no keyring."""
    fields = {name: value for name, value in os.environ.items() if not name.startswith("NOETL_")}
    return {
        **fields,
        "NOETL_CONFIG": str(folder / "config"),
        "NOETL_HOME": str(folder / "home"),
        "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
        "COLUMNS": "400",
        **changes,
    }


def records_file(folder: Path) -> Path:
    """The file of a user's sign-ins."""
    return folder / "config/sign-ins.json"


def read_record(folder: Path, site: Site) -> dict[str, Any]:
    """What is kept of the sign-in at a site."""
    record: dict[str, Any] = json.loads(records_file(folder).read_text())[site.url]["record"]
    return record


def change_record(folder: Path, site: Site, **changes: Any) -> None:
    """Change what is kept of the sign-in at a site."""
    kept = json.loads(records_file(folder).read_text())
    kept[site.url]["record"] |= changes
    records_file(folder).write_text(json.dumps(kept))


@asynccontextmanager
async def begun(
    folder: Path, *words: str, **changes: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command that runs until the block ends, or it does."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "noetl_cli",
        *words,
        env=an_environment(folder, **changes),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def end_of(process: asyncio.subprocess.Process) -> Ended:
    out, err = await asyncio.wait_for(process.communicate(), DONE_S)
    assert process.returncode is not None
    return Ended(code=process.returncode, out=out.decode(), err=err.decode())


async def call(folder: Path, *words: str, **changes: str) -> Ended:
    """Run a command to its end."""
    async with begun(folder, *words, **changes) as process:
        return await end_of(process)


async def read_note(process: asyncio.subprocess.Process, word: str) -> str:
    """Read what a command tells its person to open or to enter."""
    assert process.stderr is not None
    said = []
    while line := (await asyncio.wait_for(process.stderr.readline(), DONE_S)).decode():
        said.append(line)
        if match := re.match(rf"{word}\s+(\S+)", line):
            return match[1]
    raise AssertionError(f"it did not say {word}: {''.join(said)}")


async def sign_in_with_browser(
    folder: Path,
    site: Site,
    *,
    login: str = "ann",
    browser: Browser | None = None,
    **changes: str,
) -> Ended:
    """`noetl login --browser`, with the person's browser, which is closed at the end."""
    browser = browser or Browser()
    async with begun(folder, "login", "--browser", "--server", site.url, **changes) as process:
        address = await read_note(process, "Open")
        end = httpx.URL(address).params["redirect_uri"]
        back = await browser.walk_until(address, end, login=login)
        page = await browser.get(back)
        assert page.status_code == 200, page.text
        await browser.close()
        return await end_of(process)
