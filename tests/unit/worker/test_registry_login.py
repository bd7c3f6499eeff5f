"""How a container task signs in at a registry, on Docker and on Kubernetes."""

import json
from base64 import b64decode, urlsafe_b64decode

import pytest
from msgspec import structs
from tests.support.calls import call_of

from noetl_worker.domain.failures import ToolFailure
from noetl_worker.keychain.credential_vault import Credential
from noetl_worker.tools.container import plan
from noetl_worker.tools.container.images import build_login, find_registry
from noetl_worker.tools.container.kubernetes import job as kubernetes_job
from noetl_worker.tools.container.plan import ContainerLimits
from noetl_worker.tools.container.runtime import ContainerSpec

IMAGE = "registry.example:5000/team/tool:1"
HUB = "https://index.docker.io/v1/"
MADE_JOB = {"metadata": {"uid": "u"}}


def credential_of(**fields: object) -> Credential:
    return Credential(name="registry", kind="basic", version=1, fields=fields)


def spec_of(credential: Credential | None) -> ContainerSpec:
    limits = ContainerLimits(images=("*",))
    fields = {"image": IMAGE}
    spec = plan.build_spec(
        call_of("container", fields), fields, limits, owner="host:/folder", now_s=1.0
    )
    if credential is None:
        return spec
    return structs.replace(spec, registry=build_login(spec.image, credential))


@pytest.mark.parametrize(
    ("image", "server"),
    [
        (IMAGE, "registry.example:5000"),
        ("ghcr.io/owner/tool", "ghcr.io"),
        ("localhost/tool", "localhost"),
        ("python:3.11", HUB),
        ("library/python:3.11", HUB),
    ],
)
def test_the_registry_is_that_of_the_images_name(image: str, server: str) -> None:
    assert find_registry(image) == server


def test_docker_is_told_user_password_and_registry() -> None:
    login = build_login(IMAGE, credential_of(username="robot", password="t/?k"))  # noqa: S106 - of no server
    assert json.loads(urlsafe_b64decode(login.encode_header())) == {
        "username": "robot",
        "password": "t/?k",
        "serveraddress": "registry.example:5000",
    }


@pytest.mark.parametrize("fields", [{"token": "t"}, {"username": "robot"}, {"password": "t"}])
def test_a_credential_without_user_or_password_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ToolFailure) as refused:
        build_login(IMAGE, credential_of(**fields))
    assert refused.value.error.kind == "config"
    assert "type basic" in refused.value.error.message


def test_a_job_fetches_its_image_with_a_secret_that_goes_with_it() -> None:
    spec = spec_of(credential_of(user="robot", password="t"))  # noqa: S106 - of no server
    pod = kubernetes_job.build_job(spec, [])["spec"]["template"]["spec"]
    secret = kubernetes_job.build_pull_secret(spec, MADE_JOB)
    assert secret is not None
    assert pod["imagePullSecrets"] == [{"name": secret["metadata"]["name"]}]
    assert secret["metadata"]["name"] != spec.name
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert secret["type"] == "kubernetes.io/dockerconfigjson"
    config = json.loads(b64decode(secret["data"][".dockerconfigjson"]))
    told = config["auths"]["registry.example:5000"]
    assert (told["username"], b64decode(told["auth"])) == ("robot", b"robot:t")


def test_a_job_without_a_credential_has_no_such_secret() -> None:
    spec = spec_of(None)
    pod = kubernetes_job.build_job(spec, [])["spec"]["template"]["spec"]
    assert "imagePullSecrets" not in pod
    assert kubernetes_job.build_pull_secret(spec, MADE_JOB) is None
