"""A real Keycloak on this machine, from Maven Central, with a realm that its own API makes.

The distribution is pinned by its version and digest, and installed once into `build/keycloak`. Each
server runs in a copy of its own, whose database is a file that goes with it.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest
from tests.support.identity_provider import AUDIENCE, CLI, ROBOT, ROBOT_SECRET, WEB, WEB_SECRET
from tests.support.polling import PATIENCE_S
from tests.support.signing_in import Browser, find_free_port

VERSION = "26.7.3"
DIGEST = "27a6535553c3cdcd083872ba40629efafb3475e3b758e0c6f691395561dd0f1f"
JAVA_MIN = 17
INSTALLED = Path(__file__).parents[2] / "build/keycloak"
INSTALL_S, START_S = 900, 900
BUILD_OPTIONS = ("--db=dev-file",)
# It does not live long enough for the best machine code.
JAVA = {
    "JAVA_OPTS_APPEND": "-XX:TieredStopAtLevel=1",
    "JAVA_OPTS_KC_HEAP": "-Xms64m -Xmx512m",
    # Other tests' Java has another garbage collector, and two are refused.
    "JDK_JAVA_OPTIONS": "",
}
ADMIN, PASSWORD = "admin", "password of a test"
REALM = "data"
STRANGER = "stranger"
DEVICE = "oauth2.device.authorization.grant.enabled"
PEOPLE = {"ann": ["/operators", "/west/night"], "bob": []}


@dataclass
class Keycloak:
    """A realm of a running server."""

    url: str
    administrator: httpx.Client = field(repr=False)

    @property
    def issuer(self) -> str:
        """The realm, as its tokens name it."""
        return f"{self.url}/realms/{REALM}"

    def ask_token(self, **form: str) -> dict[str, Any]:
        """Ask the realm's token endpoint for something that it grants."""
        address = f"{self.issuer}/protocol/openid-connect/token"
        answer = httpx.post(address, data=form, timeout=PATIENCE_S)
        answer.raise_for_status()
        return dict(answer.json())

    def ask_client_token(self, client_id: str, secret: str) -> str:
        """Sign a program in by its own secret."""
        form = {"client_id": client_id, "client_secret": secret}
        return str(self.ask_token(grant_type="client_credentials", **form)["access_token"])

    def find_user_id(self, name: str) -> str:
        """Return a person's subject, which the server chose."""
        (user,) = self.call("GET", f"users?username={name}&exact=true").json()
        return str(user["id"])

    def replace_signing_key(self) -> None:
        """Rotate: a new RSA key signs, and the one before is published no more."""
        kind = "org.keycloak.keys.KeyProvider"
        old = [
            component
            for component in self.call("GET", f"components?type={kind}").json()
            if component["providerId"] == "rsa-generated"
        ]
        config = {"priority": ["200"], "algorithm": ["RS256"], "keySize": ["2048"]}
        new = {"name": f"rsa-{len(old)}-{time.time_ns()}", "providerId": "rsa-generated"}
        self.call("POST", "components", {**new, "providerType": kind, "config": config})
        for component in old:
            self.call("DELETE", f"components/{component['id']}")

    def call(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Ask the administration of the realm."""
        address = f"{self.url}/admin/realms/{REALM}/{path}".rstrip("/")
        return call_administration(self.administrator, method, address, body)


def call_administration(
    client: httpx.Client, method: str, address: str, body: Any = None
) -> httpx.Response:
    answer = client.request(method, address, json=body)
    assert answer.is_success, (method, address, answer.text)
    return answer


class KeycloakBrowser(Browser):
    """A browser whose person fills in the pages of Keycloak.

    As browsers do, it sends cookies that are `Secure` to this machine without https.
    """

    def __init__(self) -> None:
        super().__init__()
        self.client.timeout = httpx.Timeout(PATIENCE_S)
        self.client.event_hooks["response"].append(self._trust_this_machine)

    async def _trust_this_machine(self, _: httpx.Response) -> None:
        for cookie in self.client.cookies.jar:
            cookie.secure = False

    async def submit_form(
        self, page: httpx.Response, login: str, *, is_granted: bool
    ) -> httpx.Response:
        """Fill in a form: who signs in, or whether a program is allowed to go on."""
        form = re.search(r'<form[^>]*\baction="([^"]+)"', page.text)
        assert form is not None, page.text
        fields = read_fields(page.text)
        if "password" in fields:
            fields |= {"username": login, "password": PASSWORD}
            fields.pop("rememberMe", None)
        elif "accept" in fields:
            fields.pop("cancel" if is_granted else "accept")
        return await self.post(urljoin(str(page.url), unescape(form[1])), data=fields)

    async def enter_code(self, address: str, code: str, *, is_granted: bool = True) -> str:
        """Type a device's code, sign in, and agree; return what the last page says."""
        page = await self.get(f"{address}?user_code={code}")
        for _ in range(12):
            if page.is_redirect:
                page = await self.get(urljoin(str(page.url), page.headers["location"]))
            elif "<form" in page.text:
                page = await self.submit_form(page, "ann", is_granted=is_granted)
            else:
                break
        return page.text


def read_fields(page: str) -> dict[str, str]:
    """Return the inputs and buttons of a page with their values."""
    fields = {}
    for tag in re.findall(r"<(?:input|button)[^>]*>", page):
        named = dict(re.findall(r'\b(name|value)="([^"]*)"', tag))
        if "name" in named:
            fields[named["name"]] = unescape(named.get("value", ""))
    return fields


@contextmanager
def running_keycloak(web_url: str) -> Iterator[Keycloak]:
    """Start a server whose realm knows a planner at `web_url`; skips where it cannot be had."""
    installed = install_keycloak()
    with tempfile.TemporaryDirectory(prefix="noetl-keycloak-") as folder:
        home = Path(folder) / "home"
        # A server only reads what it was installed with.
        shutil.copytree(installed, home, copy_function=os.link)
        url = f"http://127.0.0.1:{find_free_port()}"
        log = Path(folder) / "log"
        with log.open("wb") as output, start_server(home, url, output) as process:
            try:
                wait_until_ready(process, url, log)
                with httpx.Client(timeout=PATIENCE_S) as administrator:
                    sign_administrator_in(administrator, url)
                    make_realm(administrator, url, web_url)
                    yield Keycloak(url=url, administrator=administrator)
            finally:
                process.terminate()


def start_server(home: Path, url: str, output: Any) -> "subprocess.Popen[bytes]":
    """Start what was built, on loopback, over a database in its folder."""
    options = (
        *("--optimized", "--http-enabled=true", "--http-host=127.0.0.1"),
        *(f"--http-port={url.rpartition(':')[2]}", "--hostname-strict=false"),
        # Else it looks for others of its kind, on every address of this machine.
        "--cache=local",
    )
    administrator = {"KC_BOOTSTRAP_ADMIN_USERNAME": ADMIN, "KC_BOOTSTRAP_ADMIN_PASSWORD": PASSWORD}
    return subprocess.Popen(  # noqa: S603 - the program that was just installed
        [shutil.which("bash") or "bash", str(home / "bin/kc.sh"), "start", *options],
        env=os.environ | JAVA | administrator,
        stdout=output,
        stderr=subprocess.STDOUT,
    )


def wait_until_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    """Wait until the server answers, or has ended."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        assert process.poll() is None, f"Keycloak ended: {log.read_text()[-2000:]}"
        try:
            if httpx.get(f"{url}/realms/master", timeout=5).is_success:
                return
        except httpx.HTTPError:
            time.sleep(0.5)
    raise AssertionError(f"Keycloak does not answer: {log.read_text()[-2000:]}")


def sign_administrator_in(client: httpx.Client, url: str) -> None:
    """Give a client the token of the server's administrator, for as long as a test takes."""
    token_url = f"{url}/realms/master/protocol/openid-connect/token"
    form = {"grant_type": "password", "username": ADMIN, "password": PASSWORD}

    def ask_token() -> str:
        form_of_tool = {"client_id": "admin-cli", **form}
        answer = httpx.post(token_url, data=form_of_tool, timeout=PATIENCE_S)
        answer.raise_for_status()
        return f"Bearer {answer.json()['access_token']}"

    # It is good for a minute, and the first use makes it good for longer.
    client.headers["Authorization"] = ask_token()
    realm = f"{url}/admin/realms/master"
    call_administration(client, "PUT", realm, {"accessTokenLifespan": 7200})
    client.headers["Authorization"] = ask_token()


def make_realm(client: httpx.Client, url: str, web_url: str) -> None:
    """Make the realm as the how-to says: groups, people, a scope, and our two clients."""
    realms = f"{url}/admin/realms"
    realm = {
        "realm": REALM,
        "enabled": True,
        # A refresh token is good once.
        "revokeRefreshToken": True,
        "refreshTokenMaxReuse": 0,
        "groups": [{"name": "operators"}, {"name": "west", "subGroups": [{"name": "night"}]}],
    }
    call_administration(client, "POST", realms, realm)
    # People who come with their realm would have none of the roles that it gives by default.
    for name, groups in PEOPLE.items():
        person = describe_person(name, groups)
        call_administration(client, "POST", f"{realms}/{REALM}/users", person)
    mapper = {
        "name": "groups",
        "protocol": "openid-connect",
        "protocolMapper": "oidc-group-membership-mapper",
        "config": {
            "claim.name": "groups",
            "full.path": "false",
            "id.token.claim": "true",
            "access.token.claim": "true",
            "userinfo.token.claim": "true",
        },
    }
    scope = {"name": "groups", "protocol": "openid-connect", "protocolMappers": [mapper]}
    call_administration(client, "POST", f"{realms}/{REALM}/client-scopes", scope)
    for description in describe_clients(web_url):
        call_administration(client, "POST", f"{realms}/{REALM}/clients", description)


def describe_person(name: str, groups: list[str]) -> dict[str, Any]:
    """Somebody with a password, and with what Keycloak would ask for at the first sign-in."""
    return {
        "username": name,
        "enabled": True,
        "email": f"{name}@example.org",
        "emailVerified": True,
        "firstName": "Name",
        "lastName": f"of {name}",
        "groups": groups,
        "credentials": [{"type": "password", "value": PASSWORD, "temporary": False}],
    }


def describe_clients(web_url: str) -> list[dict[str, Any]]:
    """Our browser client, our command line, and two programs: one of them is for our API."""
    audience = {
        "name": "noetl",
        "protocol": "openid-connect",
        "protocolMapper": "oidc-audience-mapper",
        "config": {"included.custom.audience": AUDIENCE, "access.token.claim": "true"},
    }
    scopes = {
        "defaultClientScopes": ["basic", "profile", "email", "roles"],
        "optionalClientScopes": ["groups", "offline_access"],
    }
    program = {
        "secret": ROBOT_SECRET,
        "serviceAccountsEnabled": True,
        "standardFlowEnabled": False,
    }
    return [
        {
            "clientId": WEB,
            "secret": WEB_SECRET,
            "redirectUris": [f"{web_url}/auth/callback"],
            "attributes": {
                "pkce.code.challenge.method": "S256",
                "post.logout.redirect.uris": f"{web_url}/",
            },
            **scopes,
        },
        {
            "clientId": CLI,
            "publicClient": True,
            "redirectUris": ["http://127.0.0.1/callback"],
            # A realm that asks for a challenge asks for one of devices too.
            "attributes": {DEVICE: "true", "pkce.code.challenge.method": "S256"},
            "protocolMappers": [audience],
            **scopes,
        },
        {"clientId": ROBOT, "protocolMappers": [audience], **program},
        {"clientId": STRANGER, **program},
    ]


def install_keycloak() -> Path:
    """Install the pinned server, once; skips with the reason where that is not possible."""
    folder = INSTALLED / VERSION
    _check_java()
    if folder.exists():
        return folder
    if shutil.which("mvn") is None:
        pytest.skip("Keycloak comes from Maven Central, and mvn is not here")
    INSTALLED.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=INSTALLED))
    try:
        with zipfile.ZipFile(_fetch_distribution(partial)) as archive:
            archive.extractall(partial)
        home = partial / f"keycloak-{VERSION}"
        built = _run(["bash", str(home / "bin/kc.sh"), "build", *BUILD_OPTIONS])
        assert built.returncode == 0, built.stdout + built.stderr
        home.rename(folder)
    except OSError:
        # Another process of this run was quicker.
        assert folder.exists(), "nobody else has installed it"
    finally:
        shutil.rmtree(partial)
    return folder


def _check_java() -> None:
    java = shutil.which("java")
    if java is None:
        pytest.skip("Keycloak needs Java, which is not here")
    said = subprocess.run(  # noqa: S603 - the Java of this machine
        [java, "-version"], capture_output=True, text=True, check=True
    ).stderr
    match = re.search(r'version "(\d+)', said)
    if match is None or int(match[1]) < JAVA_MIN:
        pytest.skip(f"Keycloak {VERSION} needs Java {JAVA_MIN}, and here is {said[:60]!r}")


def _fetch_distribution(folder: Path) -> Path:
    artifact = f"org.keycloak:keycloak-quarkus-dist:{VERSION}:zip"
    options = [f"-Dartifact={artifact}", f"-DoutputDirectory={folder}", "-Dtransitive=false"]
    fetched = _run(["mvn", "-q", "-B", "dependency:copy", *options])
    if fetched.returncode != 0:
        said = (fetched.stdout + fetched.stderr)[-300:]
        pytest.skip(f"Maven cannot fetch {artifact}: {said}")
    file = folder / f"keycloak-quarkus-dist-{VERSION}.zip"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert digest == DIGEST, f"Keycloak {VERSION} is another than the one that was pinned: {digest}"
    return file


def _run(words: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603 - Maven, and what it brought
        words, capture_output=True, text=True, timeout=INSTALL_S, check=False, env=os.environ | JAVA
    )
