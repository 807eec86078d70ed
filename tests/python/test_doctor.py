"""`doctor`: what it says of this machine against what the system says, and of scenarios against their exit codes."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENGRAM_BENCH_BIN", str(ROOT / "build" / "engram-bench"))

TINY: dict[str, Any] = {
    "name": "tiny",
    "question": "Does it run here?",
    "model": {
        "preset": "tiny",
        "backbone": {"layers": 16, "weight_bytes_per_layer": 4096, "flops_per_token_per_layer": 8192},
    },
    "parallel": {"tp": 1, "dp": 2, "table_mode": "shared"},
    "device": {"backend": "cpu"},
    "storage": {"backing": "shm", "policy": "bind:0"},
    "workload": {"kind": "steps", "batches": [{"decode": 4}], "steps": 2},
}


def scenario(folder: Path, name: str, **changes: Any) -> Path:
    """A file of the tiny scenario with `section__key=value` changes."""
    text = json.loads(json.dumps(TINY))
    for path, value in changes.items():
        section, key = path.split("__")
        text[section][key] = value
    file = folder / f"{name}.json"
    file.write_text(json.dumps(text))
    return file


def run(*arguments: str, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [BINARY, "doctor", *arguments], capture_output=True, text=True, timeout=60, check=False, **options
    )
    assert done.returncode == code, done.stderr
    return done


def doctor(*arguments: str, **options: Any) -> Any:
    return json.loads(run("--json", *arguments, **options).stdout)


def check_of(report: Any, name: str) -> Any:
    return next(check for check in report["machine"] if check["check"] == name)


def test_every_missing_thing_has_a_remedy_and_a_use() -> None:
    for check in doctor()["machine"]:
        assert check["needed_for"]
        assert check["found"]
        assert check["ok"] == (check["remedy"] is None)
        assert check["ok"] or check["remedy"]


def test_scenarios_get_the_exit_code_that_run_would_give(tmp_path: Path) -> None:
    scenario(tmp_path, "a-runs")
    scenario(tmp_path, "b-node", storage__policy="bind:7")
    scenario(tmp_path, "c-shards", parallel__tp=16)
    scenario(tmp_path, "d-memory", model__preset="deepseek-v4.1-flash", model__table_scale=4.0)
    (tmp_path / "e-broken.json").write_text('{"name": ')
    (tmp_path / "notes.txt").write_text("not a scenario")
    found = {Path(entry["file"]).stem: entry for entry in doctor(str(tmp_path))["scenarios"]}
    assert {name: entry["exit"] for name, entry in found.items()} == {
        "a-runs": 0,
        "b-node": 77,
        "c-shards": 2,
        "d-memory": 1,
        "e-broken": 2,
    }
    assert found["a-runs"]["runs_here"]
    assert found["a-runs"]["obstacles"] == []
    assert "bind:7: this machine has NUMA nodes" in found["b-node"]["obstacles"][0]["text"]
    assert "bytes" in found["d-memory"]["obstacles"][0]["text"]
    table = run(str(tmp_path)).stdout
    assert "runs     " in table
    assert "exit 77" in table


def test_memlock_follows_the_limit() -> None:
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]))

    check = check_of(doctor(preexec_fn=lower), "memlock")
    assert not check["ok"]
    assert check["found"] == "64.0 KiB (soft)"


def test_tools_follow_the_path() -> None:
    check = check_of(doctor(env={"PATH": "/nonexistent"}), "tools")
    assert not check["ok"]
    assert "numactl" in check["found"]


def test_cpus_follow_the_affinity() -> None:
    first = min(os.sched_getaffinity(0))
    check = check_of(doctor(preexec_fn=lambda: os.sched_setaffinity(0, {first})), "cpus")
    assert check["found"] == "1 CPUs allowed"
    assert not check["ok"]


def test_a_file_that_is_not_there_is_usage() -> None:
    done = run("/nonexistent.json", code=2)
    assert "/nonexistent.json" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["numa_policy", "page_nodes", "numa_maps"])
def test_calls_that_work_here_are_allowed(name: str) -> None:
    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("this kernel has no NUMA support")
    assert check_of(doctor(), name)["ok"]


def test_counters_are_there_or_the_reason_is() -> None:
    check = check_of(doctor(), "counters")
    units = [path.name for path in Path("/sys/bus/event_source/devices").glob("*")]
    if not any(name.startswith(("uncore_imc", "amd_umc", "amd_df")) for name in units):
        assert not check["ok"]
        assert "no PMU" in check["found"] or "no recipe" in check["found"]
