"""What the command line is given: playbook files, inputs, credential fields."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from noetl_cli.errors import CliError, ExitCode
from noetl_contracts import codec
from noetl_storage.process.lazy_import import LazyModule

if TYPE_CHECKING:
    from noetl_playbook.source import yaml_document
else:
    # What reads no file needs no YAML.
    yaml_document = LazyModule("noetl_playbook.source.yaml_document")

PLAYBOOK_SUFFIXES = frozenset({".yaml", ".yml"})
STANDARD_INPUT = Path("-")
FILES_NAMED_MAX = 5


def looks_like_file(name: str) -> bool:
    """Tell a playbook's file from the path of a registered one."""
    path = Path(name)
    try:
        return path.suffix in PLAYBOOK_SUFFIXES or path.is_file()
    except OSError:
        # No file system takes such a name.
        return False


def is_folder(name: str) -> bool:
    """Tell whether a folder of this name is here."""
    try:
        return Path(name).is_dir()
    except OSError:
        return False


def is_unmistakable_folder(name: str) -> bool:
    """Tell whether a name means a folder here and cannot be the path of a registered playbook."""
    has_folder_form = name.startswith(("/", "./", "../")) or name.endswith("/")
    return is_folder(name) and (name in {".", ".."} or has_folder_form)


def build_folder_refused_error(name: str) -> CliError:
    """Say that a folder cannot be run, and name the playbooks in it."""
    files = [str(file) for file in sorted(Path(name).glob("*")) if _is_playbook_file(file)]
    names = ", or ".join(files[:FILES_NAMED_MAX]) + (", …" if len(files) > FILES_NAMED_MAX else "")
    way_out = f"noetl run {names}" if files else "There is no .yaml file in it: name another."
    return _build_unusable_input_error(
        f"{name!r} is a folder, and a run takes the file of one playbook.", way_out
    )


def _is_playbook_file(file: Path) -> bool:
    return file.suffix in PLAYBOOK_SUFFIXES and file.is_file()


def check_playbook_path(path: str) -> None:
    """Refuse a registered path that names nothing; raises `CliError`."""
    if not path.strip("/ "):
        raise _build_unusable_input_error(
            "The path of a playbook is empty.", "Name a file, or see noetl catalog ls."
        )


def list_playbook_files(places: list[Path]) -> list[Path]:
    """List the files that are named, and those in the folders that are."""
    paths: list[Path] = []
    for place in places:
        inside = [item for item in sorted(place.glob("*")) if item.suffix in PLAYBOOK_SUFFIXES]
        if place.is_dir() and not inside:
            raise _build_unusable_input_error(
                f"There is no playbook in {place}.", "Name a file, or another folder."
            )
        paths += inside if place.is_dir() else [place]
    return paths


def read_file_bytes(path: Path, *, bytes_max: int) -> bytes:
    """Read the beginning of a file, or of standard input for `-`."""
    try:
        if path == STANDARD_INPUT:
            return sys.stdin.buffer.read(bytes_max)
        with path.open("rb") as opened:
            return opened.read(bytes_max)
    except FileNotFoundError as error:
        raise _build_unusable_input_error(
            f"There is no file {path}.", "Check the name and the folder."
        ) from error
    except IsADirectoryError as error:
        raise _build_unusable_input_error(
            f"{path} is a folder.", "Name the playbook inside it."
        ) from error
    except OSError as error:
        raise _build_unusable_input_error(
            f"{path} cannot be read: {error.strerror}.", ""
        ) from error


def read_file_text(path: Path) -> str:
    """Read a file, or standard input for `-`, of up to the size of the largest document."""
    data = read_file_bytes(path, bytes_max=yaml_document.DOCUMENT_BYTES_MAX + 1)
    if len(data) > yaml_document.DOCUMENT_BYTES_MAX:
        raise _build_unusable_input_error(
            f"{path} is larger than {yaml_document.DOCUMENT_BYTES_MAX} bytes.",
            "Keep bulk data in a table or a file that the playbook reads.",
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _build_unusable_input_error(
            f"{path} is not UTF-8: byte {error.start} does not decode.", "Save it as UTF-8."
        ) from error


def read_inputs(*, payload: Path | None, sets: list[str], sets_json: list[str]) -> dict[str, Any]:
    """Merge a file of inputs with single values; the values win.

    Raises `CliError` where two values are of one input, or one is a part of another.
    """
    inputs = {} if payload is None else read_mapping(payload)
    option_by_name: dict[str, str] = {}
    for text in sets:
        name, value = _split_assignment(text, option="--set")
        _note_assignment(option_by_name, name, option="--set")
        _set_dotted(inputs, name, _parse_scalar(value))
    for text in sets_json:
        name, value = _split_assignment(text, option="--set-json")
        _note_assignment(option_by_name, name, option="--set-json")
        _set_dotted(inputs, name, read_json(value, option=f"--set-json {name}"))
    return inputs


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a JSON or YAML file that holds one mapping."""
    text = read_file_text(path)
    try:
        value = yaml_document.read_document(text).value
    except yaml_document.UnreadableError as error:
        place = error.text_problem.place
        raise _build_unusable_input_error(
            f"{path}:{place.line}:{place.column}: {error.text_problem.message}",
            error.text_problem.hint or "",
        ) from error
    if not isinstance(value, dict):
        raise _build_unusable_input_error(
            f"{path} does not hold a mapping.", "Write `name: value` lines."
        )
    return value


def read_fields(*, data: list[str], file: Path | None) -> dict[str, Any]:
    """Read a credential's fields; values stay the text that they are."""
    fields = {} if file is None else read_mapping(file)
    option_by_name: dict[str, str] = {}
    for text in data:
        name, value = _split_assignment(text, option="--data")
        _note_assignment(option_by_name, name, option="--data")
        fields[name] = value
    if not fields:
        raise _build_unusable_input_error(
            "A credential needs fields.", "Give --data name=value, or --file FILE (- for stdin)."
        )
    return fields


def read_credentials(file: Path | None) -> dict[str, dict[str, Any]]:
    """Read a file of credentials: names, each with its type and fields."""
    mapping = {} if file is None else read_mapping(file)
    for name, fields in mapping.items():
        if not isinstance(fields, dict):
            raise _build_unusable_input_error(
                f"{file}: credential {name!r} is not a mapping.", "Write its fields below its name."
            )
    return mapping


def read_json(text: str, *, option: str) -> Any:
    """Read an option's JSON."""
    try:
        return codec.decode_json(text)
    except msgspec.DecodeError as error:
        raise _build_unusable_input_error(
            f"{option}: the value is not JSON: {error}.", "Quote it for the shell."
        ) from error


def _split_assignment(text: str, *, option: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise _build_unusable_input_error(
            f"{option} takes name=value, not {name[:40]!r}.", f"{option} name=value"
        )
    return name.strip(), value


def _note_assignment(option_by_name: dict[str, str], name: str, *, option: str) -> None:
    """Add a name to those that have a value; refuse one whose value would replace another's."""
    for other_name, other_option in option_by_name.items():
        if name == other_name:
            raise _build_unusable_input_error(
                f"{name!r} is given twice: by {other_option} and by {option}.",
                "Keep one of both."
                if option == "--data"
                else f"Keep one of both; a list is one value: --set-json {name}='[1, 2]'",
            )
        if other_name.startswith(f"{name}.") and option != "--data":
            raise _build_unusable_input_error(
                f"{option} {name} would replace {other_option} {other_name}, a part of it.",
                f"Put the part into the value of {name}, or set other parts of it.",
            )
    option_by_name[name] = option


def _parse_scalar(text: str) -> Any:
    """Read numbers, booleans and null as such; everything else is text."""
    try:
        value = codec.decode_json(text)
    except msgspec.DecodeError:
        return text
    return text if isinstance(value, dict | list) else value


def _set_dotted(inputs: dict[str, Any], name: str, value: Any) -> None:
    """Write under a dotted name."""
    *parents, last = name.split(".")
    here = inputs
    for parent in parents:
        below = here.setdefault(parent, {})
        if not isinstance(below, dict):
            raise _build_unusable_input_error(
                f"--set {name}: {parent!r} is not a mapping.", "Set one of the two."
            )
        here = below
    here[last] = value


def _build_unusable_input_error(message: str, way_out: str) -> CliError:
    return CliError(message, way_out=way_out, exit_code=ExitCode.USAGE)
