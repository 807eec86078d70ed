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
A_SMALL = ("a1-small", "a2-small")

pytestmark = pytest.mark.skipif(len(NODES) > 1, reason="this machine has several NUMA nodes")


def run(*arguments: str, code: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ENGRAM_BENCH_STATE": "/nonexistent/engram-bench-tests"}
    done = subprocess.run(
        [BINARY, *arguments], capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.mark.parametrize("name", ["a1", "a2", *A_SMALL])
def test_a_scenarios_are_skipped_and_say_what_is_missing(tmp_path: Path, name: str) -> None:
    out = tmp_path / "run"
    error = run("run", str(ROOT / "scenarios" / f"{name}.json"), "-o", str(out), code=77).stderr
    assert "skipped:" in error
    assert "node 1" in error
    assert not out.exists()


@pytest.mark.parametrize("name", A_SMALL)
def test_a_rehearsal_gives_no_verdict_but_void(tmp_path: Path, name: str) -> None:
    out = tmp_path / "run"
    quick = ("device.backend=fake", "workload.steps=2", "workload.warmup=2", "experiment.blocks=1")
    settings = [part for setting in quick for part in ("--set", setting)]
    run("run", str(ROOT / "scenarios" / f"{name}.json"), *settings, "--allow-single-node", "-o", str(out), code=0)
    result = json.loads((out / "result.json").read_text())
    assert [one["verdict"] for one in result["comparisons"]] == ["void"]
    assert result["comparisons"][0]["reason"] == "single_node"
    findings = [result["comparisons"][0]["primary"], *result["comparisons"][0]["guards"]]
    assert {one["verdict"] for one in findings} <= {"void", None}
    assert {one["standing"] for one in result["hypotheses"] if one["id"] == "H1"} == {"not_testable"}
    assert "single_node" in [warning["code"] for warning in result["warnings"]]
    run("compare", str(out), "--gate", code=4)
    run("verify", str(out), code=0)
