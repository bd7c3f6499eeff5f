"""What a browser may carry to a planner, and under which names."""

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld

from noetl_planner.api.app import create_app
from noetl_planner.api.http.host_and_origin_checks import is_own_host

Api = AsyncTestClient[Litestar]
NAMES = ("noetl.example.org", "*.ops.example.org")
UNKNOWN = 404  # the playbook, so the request itself was let in


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("10.1.2.3", True),
        ("localhost:8080", True),
        ("planner:8080", True),
        ("noetl-planner.data.svc:8080", True),
        ("noetl-planner.data.svc.cluster.local.", True),
        ("laptop.local", True),
        ("", True),
        ("NOETL.example.org", True),
        ("noetl.example.org:443", True),
        ("a.ops.example.org", True),
        ("ops.example.org", False),
        ("evil.example:8080", False),
        ("noetl.example.org.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("[::1", False),
    ],
)
def test_a_planner_knows_its_names(host: str, *, is_own: bool) -> None:
    assert is_own_host(host, NAMES) is is_own


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, UNKNOWN),
        ({"Host": "planner:8080", "Origin": "https://evil.example"}, 403),
        ({"Host": "planner:8080", "Origin": "null"}, 403),
        ({"Host": "planner:8080", "Origin": "http://planner"}, 403),
        ({"Host": "planner:8080", "Origin": "http://planner:8080"}, UNKNOWN),
        ({"Host": "planner:8080", "Origin": "https://noetl.example.org"}, UNKNOWN),
        ({"Host": "planner:8080", "Origin": "https://a.ops.example.org"}, UNKNOWN),
        ({"Host": "planner:8080", "Origin": "https://ops.example.org"}, 403),
        ({"Host": "planner:8080", "Origin": "https://localhost:3000"}, 403),
        ({"Host": "evil.example:8080", "Sec-Fetch-Site": "same-origin"}, 421),
        ({"Host": "evil.example:8080", "Origin": "http://evil.example:8080"}, 421),
        ({"Host": "noetl.example.org"}, UNKNOWN),
        ({}, UNKNOWN),
    ],
)
@pytest.mark.parametrize("media_type", ["application/json", "text/plain"])
async def test_a_strangers_page_cannot_write(
    headers: dict[str, str], status: int, media_type: str
) -> None:
    services = ApiWorld().services(http_hosts=NAMES)
    async with AsyncTestClient(create_app(services)) as api:
        answer = await api.post(
            "/api/execute",
            content='{"path": "x"}',
            headers={"Content-Type": media_type, **headers},
        )
    assert answer.status_code == status, answer.text


async def test_a_page_under_a_name_of_its_own_reads_nothing() -> None:
    async with AsyncTestClient(create_app(ApiWorld().services())) as api:
        answer = await api.get("/api/catalog", headers={"Host": "evil.example:8080"})
        assert (answer.status_code, answer.json()["code"]) == (421, "unknown_host")
        assert "NOETL_PLANNER_HTTP_HOSTS" in answer.json()["hint"]
        assert (await api.get("/schema", headers={"Host": "evil.example"})).status_code == 421
        assert (await api.get("/api/catalog", headers={"Sec-Fetch-Site": "cross-site"})).is_success
