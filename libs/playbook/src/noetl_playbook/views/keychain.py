"""What templates see of secrets: names that a worker fills in, and a refusal everywhere else."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, NoReturn

from jinja2.exceptions import SecurityError

from noetl_playbook.model.language_names import SEAL
from noetl_playbook.templates.lookup import MISSING, Lookup, SafeCall
from noetl_playbook.views.payload_handle import NeededForRender

NAME = "keychain"
TOKEN = "token"  # noqa: S105 (the name of a function)

Kind = Literal["keychain", "token"]


class KeyNeeded(NeededForRender):
    """A render touched a keychain entry, or the token of a credential, that is not at hand."""

    def __init__(self, kind: Kind, name: str) -> None:
        super().__init__(f"the {kind} of '{name}' is not resolved")
        self.kind = kind
        self.name = name


class KeychainView(Lookup):
    """`keychain.<entry>.<field>`; `find_member` gives an entry's fields, or raises `KeyNeeded`."""

    __slots__ = ("_find", "_names")

    def __init__(self, names: Collection[str], find: Callable[[str], Mapping[str, Any]]) -> None:
        self._names = names
        self._find = find

    def find_member(self, key: Any) -> Any:
        """Find the fields of an entry."""
        return self._find(key) if key in self._names else MISSING

    def to_plain(self) -> Any:
        """Refuse to hand out every secret at once."""
        raise SecurityError("the keychain is no value: name a field, as keychain.<entry>.<field>")

    def known_names(self) -> Iterable[str]:
        """List the entries."""
        return self._names


class WithheldKeychain(Lookup):
    """The keychain where no secret may be: every use is refused."""

    __slots__ = ()

    def find_member(self, key: Any) -> Any:
        """Refuse."""
        raise SecurityError(
            f"keychain.{key} exists in workers alone: use it in a task's fields, "
            "or write it to ctx in a task's set, where it is kept sealed"
        )

    def to_plain(self) -> Any:
        """Refuse."""
        return self.find_member("*")

    def __bool__(self) -> bool:
        return bool(self.to_plain())

    def __eq__(self, other: object) -> bool:
        return bool(self.to_plain())

    __hash__ = None  # type: ignore[assignment]  # it has no value to hash


def _refuse_token(_credential: Any = None) -> NoReturn:
    raise SecurityError("token() exists in workers alone: call it in a task's fields")


def _refuse_seal(_value: Any = None) -> NoReturn:
    raise SecurityError("encrypt_secret exists in workers alone: use it in a task's fields or set")


def build_withheld_names() -> dict[str, Any]:
    """Give the names that stand for secrets where there are none."""
    return {NAME: WithheldKeychain(), TOKEN: SafeCall(_refuse_token), SEAL: SafeCall(_refuse_seal)}
