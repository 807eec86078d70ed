"""Sweeps: which cells, and that a killed one goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENGRAM_BENCH_BIN", str(ROOT / "build" / "engram-bench"))
SCENARIO = str(ROOT / "scenarios" / "selftest-fake.json")
FAST = ["--set", "experiment.pairs=1", "--axis", "workload.steps=1-4", "--axis", "prefetch.order=token,table"]


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def test_dry_run_lists_cells_with_memory_and_time(tmp_path: Path) -> None:
    answer = json.loads(run("sweep", SCENARIO, *FAST, "-o", str(tmp_path / "s"), "--dry-run", "--json").stdout)
    assert [cell["settings"] for cell in answer["cells"]][:3] == [
        "workload.steps=1 prefetch.order=token",
        "workload.steps=1 prefetch.order=table",
        "workload.steps=2 prefetch.order=token",
    ]
    assert len(answer["cells"]) == 8
    assert all(cell["memory_bytes"] > 0 for cell in answer["cells"])
    assert not (tmp_path / "s").exists()


def test_a_killed_sweep_neither_loses_nor_repeats_a_cell(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    arguments = ["sweep", SCENARIO, *FAST, "-o", str(folder)]
    with subprocess.Popen([BINARY, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        limit = time.monotonic() + 120
        while not (folder / "cell-0002" / "result.json").exists() and time.monotonic() < limit:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done_before = {
        path.parent.name: path.stat().st_mtime_ns
        for path in folder.glob("cell-*/result.json")
        if json.loads(path.read_text())["complete"]
    }
    assert 2 <= len(done_before) < 8
    assert "--resume" in run(*arguments, code=2).stderr
    run(*arguments, "--resume")
    for number in range(8):
        result = json.loads((folder / f"cell-{number:04}" / "result.json").read_text())
        assert result["complete"] is True
        run("verify", str(folder / f"cell-{number:04}"))
    for name, time_ns in done_before.items():
        assert (folder / name / "result.json").stat().st_mtime_ns == time_ns, "a finished cell is not run again"


def test_wrong_sweeps(tmp_path: Path) -> None:
    out = ["-o", str(tmp_path / "s")]
    assert "nearest" in run("sweep", SCENARIO, "--axis", "prefetch.gridcap=1,2", *out, code=2).stderr
    assert "empty or endless" in run("sweep", SCENARIO, "--axis", "workload.steps=4-1", *out, code=2).stderr
    zipped = ["--axis", "workload.steps=1,2", "--axis", "seed=1", "--zip"]
    assert "has 2 values" in run("sweep", SCENARIO, *zipped, *out, code=2).stderr
    assert not (tmp_path / "s").exists()
