"""The files that a source names: found by pattern, with the values of their folders."""

import re
from collections.abc import Sequence

from msgspec import Struct, structs

from noetl_playbook.model import datasets
from noetl_worker.datasets import commit_log
from noetl_worker.datasets.address import OpenStore
from noetl_worker.datasets.commit_log import CommitLog, DataFile
from noetl_worker.datasets.problems import DatasetProblem

FILES_MAX = 100_000


class SourceFiles(Struct, frozen=True, kw_only=True):
    """Files of one format; `files` have keys of the store as their paths.

    `schema` is what the commit of the dataset says of the columns, in base64, if there is one; it
    `has_grown` when some files lack some of them.
    `folder_names` are the columns that stand in the names of folders.
    """

    format: str
    files: list[DataFile]
    folder_names: list[str]
    schema: str | None = None
    has_grown: bool = False

    @property
    def size_bytes(self) -> int:
        """Add up the bytes of all files."""
        return sum(file.size_bytes for file in self.files)


def find_source_files(store: OpenStore, format_: str | None) -> SourceFiles:
    """Find the files of the store's address; raises `DatasetProblem`."""
    address = store.address
    if address.static_path == address.path:
        size = store.find_size(address.path)
        if size is not None and (not store.is_local or not _is_folder(address.path)):
            folders = commit_log.read_folder_values(address.path.removeprefix(address.base))
            data_file = DataFile(path=address.path, size_bytes=size, values=folders)
            return _build_found(store, [data_file], format_, schema=None)
    root = address.root_path
    state = CommitLog(store, root).read_state()
    pattern = _compile_pattern(address.path)
    data_files = [
        DataFile(
            path=f"{root}/{visible_file.path}" if root else visible_file.path,
            size_bytes=visible_file.size_bytes,
            row_count=visible_file.row_count,
            values=visible_file.values,
        )
        for visible_file in commit_log.list_visible_files(store, root, state)
        if pattern.match(f"{root}/{visible_file.path}" if root else visible_file.path)
    ]
    if len(data_files) > FILES_MAX:
        count = len(data_files)
        text = f"{address.shown_path} has {count} files, {FILES_MAX} is the limit: name fewer"
        raise DatasetProblem("limit", text)
    if not data_files and state is None:
        raise DatasetProblem("not_found", f"there are no files at {address.shown_path}")
    if state is None:
        return _build_found(store, data_files, format_, schema=None)
    found_files = _build_found(store, data_files, format_, schema=state.schema)
    return structs.replace(found_files, has_grown=bool(state.added_columns))


def _is_folder(path: str) -> bool:
    return path.endswith("/")


def _build_found(
    store: OpenStore, files: list[DataFile], format_: str | None, *, schema: str | None
) -> SourceFiles:
    return SourceFiles(
        format=format_ or _find_common_format(store, files),
        files=files,
        folder_names=_find_folder_names(store, files),
        schema=schema,
    )


def _find_common_format(store: OpenStore, files: Sequence[DataFile]) -> str:
    formats = {datasets.find_format(file.path) for file in files}
    if not files:
        return "parquet"
    if len(formats) == 1 and None not in formats:
        return str(formats.pop())
    formats_text = ", ".join(sorted(str(item or "no known suffix") for item in formats))
    text = f"the files of {store.address.shown_path} are {formats_text}: name the 'format'"
    raise DatasetProblem("validation", text)


def _find_folder_names(store: OpenStore, files: Sequence[DataFile]) -> list[str]:
    if not files:
        return []
    names = list(files[0].values)
    for file in files:
        if list(file.values) != names:
            text = (
                f"{store.address.show_key(files[0].path)} and "
                f"{store.address.show_key(file.path)} are in folders of different columns "
                f"({', '.join(names) or 'none'}; {', '.join(file.values) or 'none'}): read them as "
                "two datasets"
            )
            raise DatasetProblem("schema", text)
    return names


def _compile_pattern(path: str) -> re.Pattern[str]:
    """Translate a path with a pattern: it names files, and all files below a folder."""
    text = ""
    unread_pattern = path.rstrip("/")
    while unread_pattern:
        if unread_pattern.startswith("**/"):
            text, unread_pattern = text + "(?:.*/)?", unread_pattern[3:]
        elif unread_pattern.startswith("**"):
            text, unread_pattern = text + ".*", unread_pattern[2:]
        elif unread_pattern[0] == "*":
            text, unread_pattern = text + "[^/]*", unread_pattern[1:]
        elif unread_pattern[0] == "?":
            text, unread_pattern = text + "[^/]", unread_pattern[1:]
        elif unread_pattern[0] == "[" and "]" in unread_pattern[1:]:
            inner, _, unread_pattern = unread_pattern[1:].partition("]")
            sign = "^" if inner.startswith(("!", "^")) else ""
            text += f"[{sign}{re.escape(inner.lstrip('!^')).replace(chr(92) + '-', '-')}]"
        else:
            text, unread_pattern = text + re.escape(unread_pattern[0]), unread_pattern[1:]
    return re.compile(f"{text}(?:/.*)?$", re.DOTALL)
