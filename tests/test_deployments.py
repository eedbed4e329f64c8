"""What is deployed, by compose and on Kubernetes, is locked down, bounded and probed, and names settings that exist."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from stabilitybackend.base.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[1]
KUBERNETES = REPOSITORY / "deploy" / "kubernetes"
ROLES = {"door", "worker", "pages", "alerting"}
#: What our processes understand in their environment; a store's own variables are its library's.
SETTINGS = {f"STABILITY_{setting.name.upper()}" for setting in fields(Settings)}
BUCKET = {"AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}

Thing = dict[str, Any]


def rendered(folder: str) -> list[Thing]:
    """Return what ``kubectl kustomize`` makes of a folder."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")
    command = ["kubectl", "kustomize", str(KUBERNETES / folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(params=["base", "single", "example"])
def things(request: pytest.FixtureRequest) -> list[Thing]:
    return rendered(request.param)


@pytest.fixture(scope="module")
def base() -> list[Thing]:
    return rendered("base")


def of_kind(things: list[Thing], kind: str) -> dict[str, Thing]:
    return {thing["metadata"]["name"]: thing for thing in things if thing["kind"] == kind}


def pods(things: list[Thing]) -> dict[str, Thing]:
    """Return the specification of each workload's pods."""
    return {
        name: thing["spec"]["template"]["spec"]
        for kind in ("Deployment", "StatefulSet")
        for name, thing in of_kind(things, kind).items()
    }


def containers(things: list[Thing]) -> Iterator[tuple[str, Thing]]:
    for name, pod in pods(things).items():
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            yield f"{name}/{container['name']}", container


def first_key() -> Thing:
    pod: Thing = yaml.safe_load((KUBERNETES / "first-key.yaml").read_text())
    return {"kind": "Deployment", "metadata": pod["metadata"], "spec": {"template": {"spec": pod["spec"]}}}


def test_no_pod_is_root_or_holds_a_token_or_what_kubernetes_says_of_other_services(things: list[Thing]) -> None:
    for pod in pods([*things, first_key()]).values():
        security = pod["securityContext"]
        assert (security["runAsNonRoot"], security["runAsUser"]) == (True, 10001)
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
        assert pod["terminationGracePeriodSeconds"] == 30


def test_no_container_may_write_its_image_or_gain_rights_and_each_is_bounded(things: list[Thing]) -> None:
    found = dict(containers([*things, first_key()]))
    assert found
    for container in found.values():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"].keys() == container["resources"]["requests"].keys() == {"cpu", "memory"}


def test_every_process_is_restarted_by_livez_and_sent_to_by_readyz(things: list[Thing]) -> None:
    for pod in pods(things).values():
        for container in pod["containers"]:
            paths = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
            assert {name: (probe["path"], probe["port"]) for name, probe in paths.items()} == {
                "startup": ("/livez", "http"),
                "liveness": ("/livez", "http"),
                "readiness": ("/readyz", "http"),
            }


def test_every_setting_is_one_that_the_server_knows(things: list[Thing]) -> None:
    named = {variable["name"] for _, container in containers(things) for variable in container.get("env", [])}
    given = {name for settings in of_kind(things, "ConfigMap").values() for name in settings["data"]}

    assert (named | given) - SETTINGS - BUCKET - {"POD_IP"} == set()


def test_the_others_reach_a_process_at_its_pods_address(base: list[Thing]) -> None:
    for _, container in containers(base):
        names = [variable["name"] for variable in container["env"]]
        values = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert names.index("POD_IP") < names.index("STABILITY_ADVERTISE_URL")  # else it is not filled in
        assert values["STABILITY_ADVERTISE_URL"] == "http://$(POD_IP):8080"


def test_no_secret_is_written_down_and_each_is_asked_for_by_name(things: list[Thing]) -> None:
    assert of_kind(things, "Secret") == {}
    wanted = {"STABILITY_REDIS_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    for _, container in containers([*things, first_key()]):
        for variable in container.get("env", []):
            assert (variable["name"] in wanted) == ("secretKeyRef" in variable.get("valueFrom", {}))


def test_there_is_a_deployment_for_each_role_and_for_nothing_else(base: list[Thing]) -> None:
    found = {}
    for name, pod in pods(base).items():
        (container,) = pod["containers"]
        found[name] = next(v["value"] for v in container["env"] if v["name"] == "STABILITY_ROLE")
    assert found == {role: role for role in ROLES}


def test_a_drained_node_takes_one_process_of_a_role_at_a_time(base: list[Thing]) -> None:
    budgets = of_kind(base, "PodDisruptionBudget")
    assert budgets.keys() == ROLES
    for name, budget in budgets.items():
        deployment = of_kind(base, "Deployment")[name]
        assert budget["spec"] == {"maxUnavailable": 1, "selector": deployment["spec"]["selector"]}
        assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_what_is_scaled_has_no_number_of_its_own_that_an_apply_would_put_back(base: list[Thing]) -> None:
    scaled = {one["spec"]["scaleTargetRef"]["name"] for one in of_kind(base, "HorizontalPodAutoscaler").values()}
    numbered = {name for name, one in of_kind(base, "Deployment").items() if "replicas" in one["spec"]}
    assert scaled == {"door", "worker"}
    assert numbered == ROLES - scaled


def test_the_lags_by_which_it_is_scaled_are_metrics_of_ours() -> None:
    example = of_kind(rendered("example"), "HorizontalPodAutoscaler")
    rules = yaml.safe_load((KUBERNETES / "components" / "lag" / "adapter-rules.yaml").read_text())
    metrics = (REPOSITORY / "backend" / "stabilitybackend" / "server" / "metrics.py").read_text()

    assert [rule for rule in rules if f'"{rule["seriesQuery"].split("_bucket")[0]}"' not in metrics] == []
    scaled = {
        name: [each["pods"]["metric"]["name"] for each in one["spec"]["metrics"] if each["type"] == "Pods"]
        for name, one in example.items()
    }
    door, worker = (rule["name"]["as"] for rule in rules)
    assert scaled == {"door": [door], "worker": [worker]}


def test_only_pages_and_prometheus_reach_a_worker_and_the_rest_is_closed(base: list[Thing]) -> None:
    policies = of_kind(base, "NetworkPolicy")
    assert policies["nothing-else"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    reached = [name for name, one in policies.items() if _selects(one, "worker") and one["spec"].get("ingress")]
    assert sorted(reached) == ["metrics", "pages-to-worker"]
    (rule,) = policies["pages-to-worker"]["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "pages"}}}]
    outside = {role: [p for n, p in policies.items() if n.startswith("to-") and _leaves(p, role)] for role in ROLES}
    assert {role: len(found) for role, found in outside.items()} == {"door": 0, "worker": 1, "pages": 1, "alerting": 1}


def _selects(policy: Thing, role: str) -> bool:
    selector = policy["spec"]["podSelector"]
    labels = {"app.kubernetes.io/name": role, "app.kubernetes.io/part-of": "stabilityboard"}
    wanted = selector.get("matchLabels", {})
    among = all(labels[one["key"]] in one["values"] for one in selector.get("matchExpressions", []))
    return among and wanted.items() <= labels.items()


def _leaves(policy: Thing, role: str) -> bool:
    return bool(policy["spec"].get("egress")) and _selects(policy, role)


def test_agents_come_to_the_doors_and_everybody_else_to_the_pages() -> None:
    (ingress,) = of_kind(rendered("example"), "Ingress").values()
    (rule,) = ingress["spec"]["rules"]
    where = {path["path"]: path["backend"]["service"]["name"] for path in rule["http"]["paths"]}
    front = (REPOSITORY / "deploy" / "compose" / "front.conf").read_text()

    assert where == {"/api/v1/agent": "door", "/": "pages"}
    assert "location = /api/v1/agent {\n        set $door door;" in front
    assert "location / {\n        set $pages pages;" in front


# --- compose -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def services() -> dict[str, Thing]:
    found: dict[str, Thing] = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"]
    return found


def test_compose_bounds_what_each_service_keeps_and_takes(services: dict[str, Thing]) -> None:
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name
        assert service["pids_limit"], name
    for name in services.keys() - {"job"}:
        assert (services[name]["read_only"], "mem_limit" in services[name]) == (True, True), name


def test_compose_pins_each_image_to_a_version(services: dict[str, Thing]) -> None:
    floating = [name for name, one in services.items() if name != "job" and not _is_pinned(one["image"])]
    assert floating == []


def _is_pinned(image: str) -> bool:
    tag = image.rpartition(":")[2]
    return tag.count(".") >= 2 or tag.startswith("RELEASE.")


def test_the_profile_scale_has_two_of_each_role_on_a_cluster_of_three_and_three(services: dict[str, Thing]) -> None:
    scale = {name: one for name, one in services.items() if "scale" in one.get("profiles", [])}
    replicas = {name: scale[name]["deploy"]["replicas"] for name in ROLES}

    assert replicas == {"door": 2, "worker": 2, "pages": 2, "alerting": 1}
    assert {name: scale[name]["environment"]["STABILITY_ROLE"] for name in ROLES} == {name: name for name in ROLES}
    nodes = [name for name in scale if name[:-1] == "valkey-" and name[-1].isdigit()]
    addresses = [scale[name]["networks"]["store"]["ipv4_address"] for name in nodes]
    assert len(set(addresses)) == 6
    create = scale["valkey-cluster"]["command"][-1]
    assert all(f"{address}:6379" in create for address in addresses)
    assert "--cluster-replicas 1" in create
    assert all("--maxmemory-policy noeviction" in scale[name]["command"][-1] for name in nodes)


def test_compose_names_only_settings_that_the_server_knows(services: dict[str, Thing]) -> None:
    ours = [one for one in services.values() if one["image"].startswith("stabilityboard:")]
    named = {variable for one in ours for variable in one["environment"]}

    assert named - SETTINGS - BUCKET == set()


def test_the_example_of_dot_env_names_each_variable_of_compose_that_has_to_be_given(
    services: dict[str, Thing],
) -> None:
    text = (REPOSITORY / "docker-compose.yml").read_text()
    example = (REPOSITORY / ".env.example").read_text().splitlines()
    named = {line.partition("=")[0] for line in example if line and not line.startswith("#")}
    asked = {part.partition("}")[0].partition(":")[0] for part in text.split("${")[1:]}

    assert asked - {"JOB_IMAGE"} == named


def test_a_container_is_ended_only_when_the_process_no_longer_answers() -> None:
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    health = dockerfile.partition("HEALTHCHECK")[2].partition("STOPSIGNAL")[0]

    assert "/livez" in health
    assert [name for name in ("version", "revision", "source", "licenses") if f"image.{name}=" not in dockerfile] == []
