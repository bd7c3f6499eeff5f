"""Every panel shows something of a PFT run that a real Prometheus scraped from all services."""

import json
import math
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from msgspec import Struct
from scripts import dashboards
from tests.support import metrics, pft
from tests.support.servers import wait_until
from tests.support.services import free_port
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(600)

SCRAPED_EACH_S = 2
TRIES_MAX = 6
RULES = Path(__file__).parents[2] / "deploy/observability/alerts.yaml"
# Panels of what a run without a fault does not have, and what would have to happen.
ONLY_WHEN_WRONG = {
    "Facts refused": "a worker reports under a lease that it has lost",
}


class Prometheus(Struct, frozen=True):
    """A running server, and since when it scrapes."""

    url: str
    began_s: float

    def ask(self, path: str, **params: Any) -> Any:
        """Return the data of an answer."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=params, timeout=30)
        return answer.raise_for_status().json()["data"]

    def count_scrapes(self) -> dict[str, int]:
        """Return how often each service was scraped."""
        samples = self.ask("query", query="sum by (job) (sum_over_time(up[10m]))")["result"]
        return {sample["metric"]["job"]: int(float(sample["value"][1])) for sample in samples}

    def has_numbers(self, expression: str) -> bool:
        """Tell whether a panel shows any number between the beginning and now."""
        found = self.ask(
            "query_range",
            query=expression.replace("$__rate_interval", f"{5 * SCRAPED_EACH_S}s"),
            start=self.began_s,
            end=time.time(),
            step=SCRAPED_EACH_S,
        )
        return any(
            math.isfinite(float(value))
            for series in found["result"]
            for _, value in series["values"]
        )

    def list_silent(self) -> dict[str, str]:
        """Return the titles of panels that show nothing, with an expression of each."""
        return {
            panel["title"]: target["expr"]
            for text in dashboards.build_dashboards().values()
            for panel in json.loads(text)["panels"]
            for target in panel["targets"]
            if not self.has_numbers(target["expr"])
        }


def write_config(stack: Stack, folder: Path) -> Path:
    """Write what to scrape: every process, its service as the job."""
    jobs = [
        {
            "job_name": service,
            "static_configs": [
                {
                    "targets": [
                        metrics.get_metrics_url(stack, process).split("/")[2]
                        for process in stack.names(service)
                    ]
                }
            ],
        }
        for service in metrics.SERVICES
    ]
    interval = f"{SCRAPED_EACH_S}s"
    config = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval},
        "rule_files": [str(RULES)],
        "scrape_configs": jobs,
    }
    path = folder / "prometheus.yaml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    return path


@pytest.fixture(scope="module")
def stack(prometheus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    del prometheus  # without one there is no need of a stack
    folder = tmp_path_factory.mktemp("watched") / "stack"
    with running_stack(folder, "--workers", "2") as running:
        pft.prepare(running)
        yield running


@pytest.fixture(scope="module")
def scraped_run(
    prometheus: Path, stack: Stack, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """Scrape a stack before, while and after it runs PFT."""
    folder = tmp_path_factory.mktemp("prometheus")
    address = f"127.0.0.1:{free_port()}"
    command = [
        *(str(prometheus), f"--config.file={write_config(stack, folder)}"),
        *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"),
    ]
    with (folder / "prometheus.log").open("wb") as log, pft.fixture(folder) as served:
        process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 (a known program)
        try:
            server = Prometheus(url=f"http://{address}", began_s=time.time())
            wait_until(lambda: is_ready(server), timeout_s=60, what="Prometheus answers")
            for patients in (5, 200):
                for variant in pft.VARIANTS:
                    run_pft(stack, served, variant=variant, patients=patients)
                wait_for_scrapes(server, more=4)
            # A rate needs its counter before, and some are there from a worker's first use on.
            for _ in range(TRIES_MAX):
                metrics.run_rows_between_steps(stack)
                wait_for_scrapes(server, more=2)
                if set(server.list_silent()) <= set(ONLY_WHEN_WRONG):
                    break
            yield server
        finally:
            process.terminate()
            process.wait(timeout=60)


def run_pft(stack: Stack, served: pft.Fixture, *, variant: str, patients: int) -> None:
    run = pft.start(stack, served, variant=variant, facilities=1, patients=patients)
    run.wait(240)


def is_ready(server: Prometheus) -> bool:
    try:
        return httpx.get(f"{server.url}/-/ready", timeout=5).is_success
    except httpx.HTTPError:
        return False


def wait_for_scrapes(server: Prometheus, *, more: int) -> None:
    before = server.count_scrapes()
    wait_until(
        lambda: all(
            server.count_scrapes().get(service, 0) >= before.get(service, 0) + more
            for service in metrics.SERVICES
        ),
        timeout_s=120,
        what="every service is scraped",
    )


def test_every_dashboard_is_one_of_grafanas_schema(dashboard_reader: Path, tmp_path: Path) -> None:
    """Grafana itself is not started by any lane; its published schema is strict."""
    stored = sorted(str(path) for path in dashboards.FOLDER.glob("*.json"))
    assert check_schema(dashboard_reader, *stored) == ""
    spoiled = tmp_path / "spoiled.json"
    spoiled.write_text(Path(stored[0]).read_text("utf-8").replace('"gridPos"', '"gridPlace"'))
    assert "gridPlace" in check_schema(dashboard_reader, str(spoiled))


def check_schema(reader: Path, *files: str) -> str:
    """Return what Grafana's schema refuses, empty where that is nothing."""
    done = subprocess.run(  # noqa: S603 (a known program)
        [str(reader), *files], check=False, capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr


def test_every_panel_shows_a_number_of_the_run(scraped_run: Prometheus) -> None:
    silent = scraped_run.list_silent()
    assert set(silent) <= set(ONLY_WHEN_WRONG), silent


def test_no_alert_fires_while_nothing_is_wrong(scraped_run: Prometheus) -> None:
    groups = scraped_run.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 10
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    alerts = scraped_run.ask("alerts")["alerts"]
    assert [alert["labels"] for alert in alerts if alert["state"] == "firing"] == []
