"""Which named objects are garbage: nothing mentions a name, so each kind says when it is over.

| objects | garbage |
|---|---|
| `waves/<execution>/…` | once they are old: only a wave that goes on reads them |
| `frames/<execution>/…` | once the ledger has no history of the execution |
| `workspaces/<execution>/…`, `walks/<execution>/…`, `logs/<execution>/…` | the same |
| `scripts/<execution>/…` | the same |
| `slices/<digest>` | once the content that they cut is gone |
| `artifacts/<name>/versions/<n>` | once a later version stands |

Everything else stays: credentials, tables, whatever a later release names.
"""

from collections.abc import AsyncIterator
from datetime import datetime
from itertools import groupby

from noetl_contracts.log_chunks import LOGS
from noetl_contracts.passing import WAVES
from noetl_contracts.scripts import SCRIPTS
from noetl_storage.payload_ports import Owner, PayloadReferences, PayloadShelf, StoredObject

FRAMES, WALKS, WORKSPACES = "frames", "walks", "workspaces"
SLICES, ARTIFACTS = "slices", "artifacts"
_OF_EXECUTIONS = frozenset({FRAMES, LOGS, SCRIPTS, WALKS, WORKSPACES})
_VERSIONS = "/versions/"
# What has more digits than an identity is none.
_DIGITS_MAX = 18


async def list_garbage(
    owner: Owner, *, shelf: PayloadShelf, references: PayloadReferences, before: datetime
) -> list[StoredObject]:
    """Return the owner's named objects that are garbage, of those written before a moment."""
    garbage: list[StoredObject] = []
    versions: list[StoredObject] = []
    async for page in shelf.list_objects(owner):
        versions += [one for one in page if _kind(one) == ARTIFACTS]
        old = [one for one in page if one.modified_at < before]
        garbage += [one for one in old if _kind(one) == WAVES]
        garbage += await _of_unknown(owner, old, references)
        garbage += [one async for one in _of_gone(owner, old, shelf)]
    return garbage + [one for one in _overtaken(versions) if one.modified_at < before]


async def _of_unknown(
    owner: Owner, old: list[StoredObject], references: PayloadReferences
) -> list[StoredObject]:
    owned = [one for one in old if _kind(one) in _OF_EXECUTIONS and _is_identity(_second(one))]
    known = await references.list_known(owner, {_second(one) for one in owned}) if owned else ()
    return [one for one in owned if _second(one) not in known]


async def _of_gone(
    owner: Owner, old: list[StoredObject], shelf: PayloadShelf
) -> AsyncIterator[StoredObject]:
    for one in old:
        if _kind(one) == SLICES and not await shelf.has_content(owner, _second(one)):
            yield one


def _overtaken(versions: list[StoredObject]) -> list[StoredObject]:
    """Return all but the latest version of every artifact; one that says "deleted" is one, too."""
    ordered = sorted(versions, key=lambda one: one.name)
    found: list[StoredObject] = []
    for _, group in groupby(ordered, key=lambda one: one.name.rpartition(_VERSIONS)[0]):
        found += list(group)[:-1]
    return found


def _is_identity(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def may_mention(one: StoredObject) -> bool:
    """Tell whether an object may name content that it needs: what a task printed needs none."""
    return _kind(one) != LOGS


def _kind(one: StoredObject) -> str:
    return one.name.partition("/")[0]


def _second(one: StoredObject) -> str:
    return one.name.partition("/")[2].partition("/")[0]
