"""The Helm chart and the KubeRay examples: lint, the schemas of Kubernetes, command lines, security and limits."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from choral.jobs.redis_keys import RedisKeys
from choral.jobs.settings import WorkerSettings
from choral.server.settings import ServerSettings
from command_lines import DEPLOY, known_variables, parsed

CHART = DEPLOY / "helm" / "choral"
KUBERAY = sorted((DEPLOY / "kuberay").glob("*.yaml"))
KUBERNETES = ("1.25", "1.34")  # the oldest that the chart supports, and a recent one
OWN_KINDS = {"ScaledObject"}  # of KEDA: Kubernetes has no schema for it
VARIANTS: dict[str, list[str]] = {
    "cpu": [],
    "gpu": [f"--values={CHART}/values-gpu.yaml", "--set=gpus=2"],
    "everything": [
        "--set=server.autoscaling.enabled=true,worker.keda.enabled=true,ingress.enabled=true",
        "--set=ingress.tlsSecretName=tls,ingress.className=nginx,runtimeClassName=nvidia",
        "--set=podAnnotations.a=b,imagePullSecrets[0].name=x",
        "--set=redis.storageClassName=ssd,modelCache.storageClassName=nfs",
        "--set=server.extraArgs={--any-model},worker.extraArgs={--max-attempts=2}",
    ],
    "least": [
        "--set=worker.enabled=false,redis.enabled=false,networkPolicy.enabled=false,modelCache.existingClaim=models"
    ],
    "external": ["--set=redis.enabled=false,redis.url=redis://cache:6379,worker.keda.enabled=true"],
}


def helm(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(params=VARIANTS)
def manifests(request: pytest.FixtureRequest, helm_program: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """What the chart makes of the values, by kind and name."""
    done = helm(helm_program, "template", "speech", str(CHART), *VARIANTS[request.param])
    assert done.returncode == 0, done.stderr
    found = [each for each in yaml.safe_load_all(done.stdout) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def pods_of(manifests: dict[tuple[str, str], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in manifests.values()
        if each["kind"] in ("Deployment", "StatefulSet")
    }


def test_lint(helm_program: Path) -> None:
    for values in ([], [f"--values={CHART}/values-gpu.yaml"]):
        done = helm(helm_program, "lint", "--strict", str(CHART), *values)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("profile=tpu", "profile"),
        ("serverr.replicas=2", "serverr"),
        ("worker.keda.jobsPerWorker=0", "jobsPerWorker"),
        ("redis.url=redis://:password@host:6379", "url"),
        ("redis.enabled=false,worker.keda.enabled=true", "KEDA needs the address of Redis"),
    ],
)
def test_wrong_values_are_refused(value: str, text: str, helm_program: Path) -> None:
    done = helm(helm_program, "template", "speech", str(CHART), f"--set={value}")
    assert done.returncode != 0
    assert text in done.stderr


def test_kubernetes_accepts_it(manifests: dict[tuple[str, str], dict[str, Any]]) -> None:
    for manifest in manifests.values():
        if manifest["kind"] not in OWN_KINDS:
            for version in KUBERNETES:
                kubernetes_validate.validate(manifest, version, strict=True)


def test_commands_parse_and_have_time_to_stop(manifests: dict[tuple[str, str], dict[str, Any]]) -> None:
    for name, pod in pods_of(manifests).items():
        if name.endswith("-redis"):
            continue
        (container,) = pod["containers"]
        arguments = parsed(container["args"])
        needed_s = 2 * arguments.drain_s if name.endswith("-server") else arguments.drain_s
        assert needed_s + 10 <= pod["terminationGracePeriodSeconds"] < needed_s + 60
        assert arguments.device in ("cpu", "cuda")
        assert arguments.drain_s == (ServerSettings() if name.endswith("-server") else WorkerSettings()).drain_s
        variables = {each["name"] for each in container["env"] or []}
        assert variables <= known_variables()
        if "--redis=env" in container["args"] and ("Secret", "speech") not in manifests:
            assert variables == {"CHORAL_REDIS"}


def test_pods_have_few_rights_and_bounded_disks(manifests: dict[tuple[str, str], dict[str, Any]]) -> None:
    for pod in pods_of(manifests).values():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
            assert container["livenessProbe"]
        assert all("sizeLimit" in each["emptyDir"] for each in pod.get("volumes", []) if "emptyDir" in each)


def test_selectors_services_and_budgets_match_pods(manifests: dict[tuple[str, str], dict[str, Any]]) -> None:
    labels = [
        each["spec"]["template"]["metadata"]["labels"]
        for each in manifests.values()
        if each["kind"] in ("Deployment", "StatefulSet")
    ]
    for (kind, name), manifest in manifests.items():
        spec = manifest.get("spec", {})
        if kind == "Service":
            wanted = spec["selector"]
        elif kind in ("Deployment", "StatefulSet", "PodDisruptionBudget"):
            wanted = spec["selector"]["matchLabels"]
        else:
            continue
        assert sum(wanted.items() <= each.items() for each in labels) == 1, name


def test_autoscaling_follows_the_queue_that_workers_read(manifests: dict[tuple[str, str], dict[str, Any]]) -> None:
    for manifest in (each for each in manifests.values() if each["kind"] == "ScaledObject"):
        target = manifest["spec"]["scaleTargetRef"]["name"]
        assert "replicas" not in manifests["Deployment", target]["spec"]
        triggers = [each["metadata"] for each in manifest["spec"]["triggers"]]
        keys = RedisKeys()
        assert [each["stream"] for each in triggers] == [keys.queue("interactive"), keys.queue("batch")]
        assert {each["address"] for each in triggers} <= {"speech-redis:6379", "cache:6379"}
    server = manifests["Deployment", "speech-server"]
    assert ("replicas" in server["spec"]) == (("HorizontalPodAutoscaler", "speech-server") not in manifests)


def test_gpus(helm_program: Path) -> None:
    done = helm(helm_program, "template", "speech", str(CHART), *VARIANTS["gpu"])
    deployments = [each for each in yaml.safe_load_all(done.stdout) if each and each["kind"] == "Deployment"]
    assert len(deployments) == 2
    for deployment in deployments:
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["image"] == "choral:cuda"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
        assert parsed(container["args"]).devices == "0,1"


@pytest.mark.parametrize("path", KUBERAY, ids=lambda path: path.name)
def test_kuberay_examples(path: Path) -> None:
    """Kubernetes has no schema for Ray's kinds, but one for the pods in them."""
    manifest = yaml.safe_load(path.read_text())
    assert manifest["apiVersion"] == "ray.io/v1"
    cluster = manifest["spec"].get("rayClusterSpec") or manifest["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": group["template"]["spec"]}
        for version in KUBERNETES:
            kubernetes_validate.validate(pod, version, strict=True)
        names = {each["name"] for container in pod["spec"]["containers"] for each in container.get("env", [])}
        assert names <= known_variables()
    if "entrypoint" in manifest["spec"]:
        program, *arguments = manifest["spec"]["entrypoint"].split()
        assert program == "choral"
        assert parsed(arguments).address == "auto"
    assert re.fullmatch(r"2\.\d+\.\d+", cluster["rayVersion"])
