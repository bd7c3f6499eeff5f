"""How a container task signs in at the registry of its image: by a credential of type basic."""

from base64 import b64encode, urlsafe_b64encode

from msgspec import Struct

from noetl_contracts import codec
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.keychain.credential_vault import Credential
from noetl_worker.tools.container.names import SOURCE

# Docker's own registry, as its clients name it.
_DOCKER_HUB = "https://index.docker.io/v1/"


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
