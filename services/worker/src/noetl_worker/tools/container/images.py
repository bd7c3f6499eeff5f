"""Which images tasks may run, by patterns that an operator allows, and as whom they are fetched."""

import re
from base64 import b64encode, urlsafe_b64encode
from fnmatch import fnmatchcase

from msgspec import Struct

from noetl_contracts import codec
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.keychain.credential_vault import Credential
from noetl_worker.tools.container.names import SOURCE

IMAGES_SETTING = "NOETL_WORKER_CONTAINER_IMAGES"
_ANY = "*"
# Docker's own registry, as its clients name it.
_DOCKER_HUB = "https://index.docker.io/v1/"
# A name as registries take it: parts, an optional tag, an optional digest.
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/-]{0,400}(@sha256:[0-9a-f]{64})?")


def check_image(image: str, patterns: tuple[str, ...]) -> str:
    """Return an image's name with its tag; raises `ToolFailure` unless a pattern allows it."""
    if not _IMAGE.fullmatch(image):
        text = f"field 'image': {image!r:.200} is not the name of an image"
        raise ToolFailure(build_error("validation", text, source=SOURCE))
    name = add_tag(image)
    if any(_is_match(name, pattern) and can_trust_digest(name, pattern) for pattern in patterns):
        return name
    allowed = ", ".join(patterns) or "none"
    text = (
        f"image {name!r:.200} is not allowed on this worker: {IMAGES_SETTING} allows {allowed}; "
        f"add it there, as in {IMAGES_SETTING}=python:*,registry.example/team/*"
    )
    raise ToolFailure(build_error("config", text, source=SOURCE))


def add_tag(image: str) -> str:
    """Write the tag that a name without one means."""
    if "@" in image or ":" in image.rpartition("/")[2]:
        return image
    return f"{image}:latest"


def can_trust_digest(name: str, pattern: str) -> bool:
    """Tell whether a pattern leaves the tag open, or names a digest: a digest wins over a tag."""
    tag = pattern.rpartition("/")[2].partition(":")[2]
    return "@" not in name or "@" in pattern or tag in ("", _ANY)


def _is_match(name: str, pattern: str) -> bool:
    if pattern == _ANY:
        return True
    if not pattern.endswith(_ANY):
        pattern = add_tag(pattern)
    # `python*` is no registry python.example.
    if ("/" in name) != ("/" in pattern):
        return False
    first, _, path = name.partition("/")
    pattern_first, _, pattern_path = pattern.partition("/")
    return fnmatchcase(first, pattern_first) and fnmatchcase(path, pattern_path)


class RegistryLogin(Struct, frozen=True, kw_only=True):
    """A user of a registry, and the password or token."""

    server: str
    username: str
    password: str

    def encode_header(self) -> str:
        """Write `X-Registry-Auth` of Docker's API."""
        told = {
            "username": self.username,
            "password": self.password,
            "serveraddress": self.server,
        }
        return urlsafe_b64encode(codec.encode_json(told)).decode()

    def encode_config(self) -> bytes:
        """Write a client's configuration, as a Secret of Kubernetes holds it."""
        pair = b64encode(f"{self.username}:{self.password}".encode()).decode()
        user = {"username": self.username, "password": self.password, "auth": pair}
        return codec.encode_json({"auths": {self.server: user}})


def build_login(image: str, credential: Credential) -> RegistryLogin:
    """Build the sign-in for an image; raises `ToolFailure` for a credential of another type."""
    username = credential.find_text_field("username", "user")
    password = credential.find_text_field("password")
    if not username or not password:
        text = (
            "field 'auth' of a container task names a credential of type basic: a user of the "
            "image's registry, with the password or a token"
        )
        raise ToolFailure(build_error("config", text, source=SOURCE))
    return RegistryLogin(server=find_registry(image), username=username, password=password)


def find_registry(image: str) -> str:
    """Return the registry that an image's name begins with, else Docker's own."""
    first, slash, _ = image.partition("/")
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    return first if is_host else _DOCKER_HUB
