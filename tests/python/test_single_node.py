"""Placement experiments on a machine that cannot tell their arms apart: refused with what is missing, or rehearsed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENGRAM_BENCH_BIN", str(ROOT / "build" / "engram-bench"))
NODES = list(Path("/sys/devices/system/node").glob("node[0-9]*"))
A = [f"{name}{kind}" for name in ("a1", "a2", "a3") for kind in ("", "-lookup")]
A_SMALL = [f"{name}-small" for name in A]
REHEARSED = ("a1-small", "a2-small", "a1-lookup-small", "a3-lookup-small")

pytestmark = pytest.mark.skipif(len(NODES) > 1, reason="this machine has several NUMA nodes")


def run(*arguments: str, code: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ENGRAM_BENCH_STATE": "/nonexistent/engram-bench-tests"}
    done = subprocess.run(
        [BINARY, *arguments], capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.mark.parametrize("name", [*A, *A_SMALL])
def test_a_scenarios_are_skipped_and_say_what_is_missing(tmp_path: Path, name: str) -> None:
    out = tmp_path / "run"
    error = run("run", str(ROOT / "scenarios" / f"{name}.json"), "-o", str(out), code=77).stderr
    assert "skipped:" in error
    assert ("one NUMA node" if name.startswith("a3") else "node 1") in error
    assert not out.exists()


@pytest.mark.parametrize("name", REHEARSED)
def test_a_rehearsal_gives_no_verdict_but_void(tmp_path: Path, name: str) -> None:
    out = tmp_path / "run"
    quick = ["device.backend=fake", "model.table_scale=0.00002", "workload.steps=2", "workload.warmup=2"]
    quick += ["experiment.blocks=1", *(["model.backbone.scale=0.00001"] if "lookup" not in name else [])]
    settings = [part for setting in quick for part in ("--set", setting)]
    run("run", str(ROOT / "scenarios" / f"{name}.json"), *settings, "--allow-single-node", "-o", str(out), code=0)
    result = json.loads((out / "result.json").read_text())
    assert len(result["comparisons"]) == (2 if name.startswith("a3") else 1)
    for comparison in result["comparisons"]:
        assert (comparison["verdict"], comparison["reason"]) == ("void", "single_node")
        findings = [comparison["primary"], *comparison["guards"]]
        assert {one["verdict"] for one in findings} <= {"void", None}
    assert {one["standing"] for one in result["hypotheses"] if one["id"] == "H1"} == {"not_testable"}
    assert "single_node" in [warning["code"] for warning in result["warnings"]]
    run("compare", str(out), "--gate", code=4)
    run("verify", str(out), code=0)
