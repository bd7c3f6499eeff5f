"""A real identity provider on this machine: `oidc-provider` of npm, with people of a test.

Its packages are pinned with their digests by `tests/security/sign_in/provider/package-lock.json`,
and are installed once into `build/sign-in-provider`.
"""

import hashlib
import json
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests/security/sign_in/provider"
INSTALLED = ROOT / "build/sign-in-provider"
FILES = ("package.json", "package-lock.json", ".npmrc", "server.mjs")
INSTALL_S = 240
WEB, WEB_SECRET = "noetl-web", "a secret of a test"
CLI = "noetl-cli"
ROBOT, ROBOT_SECRET = "robot", "another secret of a test"
AUDIENCE = "https://noetl.example.org/api"
GROUPS = {"ann": ["operators", "west"], "bob": []}


def a_key(key_id: str, kind: str = "RS256") -> Key:
    """A new pair of keys."""
    names: Any = {"use": "sig", "alg": kind, "kid": key_id}
    match kind:
        case "RS256" | "PS256":
            return RSAKey.generate_key(2048, names)
        case "ES256":
            return ECKey.generate_key("P-256", names)
        case _:
            return OKPKey.generate_key("Ed25519", names)


def sign_claims(header: dict[str, Any], claims: dict[str, Any], key: Key) -> str:
    """Sign claims as a provider does; a value of None leaves its name out of the header."""
    registry = JWSRegistry(algorithms=[header["alg"]], strict_check_header=False)
    header = {name: value for name, value in header.items() if value is not None}
    with warnings.catch_warnings():
        # The library prefers another name of Ed25519 than providers have.
        warnings.simplefilter("ignore", SecurityWarning)
        return jwt.encode(header, claims, key, registry=registry)


@dataclass
class IdentityProvider:
    """The provider's address, and the keys that it signs with."""

    issuer: str
    keys: list[Key]
    process: "subprocess.Popen[str]"

    @property
    def key(self) -> Key:
        """The first key, which signs ID tokens."""
        return self.keys[0]

    def stop(self) -> None:
        """Be away from now on."""
        self.process.kill()
        self.process.wait()

    def replace_keys(self, *keys: Key) -> None:
        """Rotate: from now on these keys alone are published and sign."""
        self.keys = list(keys)
        body = json.dumps([key.as_dict(private=True) for key in keys])
        httpx.post(f"{self.issuer}/test/keys", content=body).raise_for_status()

    def count_refreshes(self) -> int:
        """Count the refresh tokens that were used."""
        return int(httpx.get(f"{self.issuer}/test/refreshes").text)

    def claims(self, **changes: Any) -> dict[str, Any]:
        """What an ID token of this provider says; None leaves a claim out."""
        now = int(time.time())
        values = {
            "iss": self.issuer,
            "sub": "ann",
            "aud": CLI,
            "exp": now + 300,
            "iat": now,
            "name": "Ann",
            "groups": ["operators"],
            **changes,
        }
        return {name: value for name, value in values.items() if value is not None}

    def forge(
        self,
        header: dict[str, Any] | None = None,
        *,
        key: Key | None = None,
        **changes: Any,
    ) -> str:
        """Sign claims with the provider's own key, or with another."""
        head = {"alg": "RS256", "kid": self.key.kid, **(header or {})}
        return sign_claims(head, self.claims(**changes), key or self.key)

    def ask_client_token(self, resource: str = AUDIENCE) -> str:
        """Sign a program in by its own secret."""
        answer = httpx.post(
            f"{self.issuer}/token",
            data={"grant_type": "client_credentials", "resource": resource},
            auth=(ROBOT, ROBOT_SECRET.replace(" ", "+")),
        )
        answer.raise_for_status()
        token: str = answer.json()["access_token"]
        return token


@contextmanager
def identity_provider(web_url: str, **changes: Any) -> Iterator[IdentityProvider]:
    """Start a provider that knows a planner at `web_url`; skips where it cannot be had."""
    folder = install_provider()
    keys = [a_key("k1")]
    given = {
        "clients": a_provider_clients(web_url),
        "keys": [key.as_dict(private=True) for key in keys],
        "groups": GROUPS,
        **changes,
    }
    process = subprocess.Popen(  # noqa: S603 - the program that was just installed
        [shutil.which("node") or "node", "server.mjs", json.dumps(given)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield IdentityProvider(issuer=wait_until_ready(process), keys=keys, process=process)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def wait_until_ready(process: "subprocess.Popen[str]") -> str:
    """Return the issuer that the program says it is."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("ready "):
            return line.split()[1]
    raise AssertionError(f"the provider ended: {''.join(said)}")


def a_provider_clients(web_url: str) -> list[dict[str, Any]]:
    """Our browser client, our command line, and a program of somebody's."""
    device = "urn:ietf:params:oauth:grant-type:device_code"
    return [
        {
            "client_id": WEB,
            "client_secret": WEB_SECRET,
            "redirect_uris": [f"{web_url}/auth/callback"],
            "post_logout_redirect_uris": [f"{web_url}/"],
        },
        {
            "client_id": CLI,
            "application_type": "native",
            "token_endpoint_auth_method": "none",
            "grant_types": ["authorization_code", "refresh_token", device],
            "redirect_uris": ["http://127.0.0.1/callback"],
        },
        {
            "client_id": ROBOT,
            "client_secret": ROBOT_SECRET,
            "grant_types": ["client_credentials"],
            "redirect_uris": [],
            "response_types": [],
        },
    ]


def install_provider() -> Path:
    """Install the pinned provider, once; skips with the reason where that is not possible."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("the identity provider of these tests needs Node.js, which is not here")
    pinned = b"".join((SOURCE / name).read_bytes() for name in FILES)
    folder = INSTALLED / hashlib.sha256(pinned).hexdigest()[:16]
    if folder.exists():
        return folder
    INSTALLED.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=INSTALLED))
    for name in FILES:
        shutil.copy(SOURCE / name, partial / name)
    done = subprocess.run(  # noqa: S603 - npm installs what the lock file names
        [shutil.which("npm") or "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=partial,
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    if done.returncode != 0:
        shutil.rmtree(partial)
        pytest.skip(f"npm cannot install the identity provider: {done.stderr[-300:]}")
    try:
        partial.rename(folder)
    except OSError:
        # Another process of this run was quicker.
        shutil.rmtree(partial)
    return folder
