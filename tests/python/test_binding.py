"""storage.bind_ranks on this machine: a binding that is taken away while the run goes on."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench import BINARY, SMALL

CPUS = sorted(os.sched_getaffinity(0))

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs: one of them is taken away")


def ranks_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in children.read_text().split()] if children.exists() else []


@contextmanager
def moved(process: subprocess.Popen[str], out: Path) -> Iterator[None]:
    """Ranks of the run are put on one CPU again and again, once their tables are loaded."""
    over = threading.Event()
    loaded = out / "placement/reroll-0/after_load-rank-3.json"

    def move() -> None:
        while not over.wait(0.01):
            if not loaded.exists():
                continue
            for rank in ranks_of(process.pid):
                try:
                    os.sched_setaffinity(rank, {CPUS[0]})
                except ProcessLookupError:
                    continue

    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def run(folder: Path, binding: str, *options: str) -> tuple[int, str]:
    scenario = json.loads(json.dumps(SMALL))
    scenario["storage"]["bind_ranks"] = binding
    scenario["workload"]["steps"] = 200
    scenario["experiment"]["blocks"] = 4
    (folder / "scenario.json").write_text(json.dumps(scenario))
    command = [BINARY, "run", str(folder / "scenario.json"), "-o", str(folder / "out"), "--no-progress", *options]
    with (
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process,
        moved(process, folder / "out"),
    ):
        _, error = process.communicate(timeout=150)
    return process.returncode, error


def test_a_binding_that_is_lost_later_fails_the_run(tmp_path: Path) -> None:
    code, error = run(tmp_path, "0")
    assert code == 1
    assert "binding_degraded" in error
    assert "rank 0: storage.bind_ranks was lost: snapshot steady: CPUs" in error
    assert "--allow-degraded" in error


def test_a_binding_that_is_lost_later_can_be_recorded_instead(tmp_path: Path) -> None:
    code, error = run(tmp_path, "0", "--allow-degraded")
    assert code == 0, error
    result = json.loads((tmp_path / "out/result.json").read_text())
    lost = [one for one in result["warnings"] if one["code"] == "binding_degraded"]
    assert {one["figures"]["part"] for one in lost} == {"CPUs"}
    assert {one["figures"]["rank"] for one in lost} == {0, 1, 2, 3}
    assert all("snapshot steady" in one["text"] for one in lost)
    assert subprocess.run([BINARY, "verify", str(tmp_path / "out")], check=False).returncode == 0


def test_nothing_is_judged_where_nothing_was_asked(tmp_path: Path) -> None:
    code, error = run(tmp_path, "none")
    assert code == 0, error
    assert "binding_degraded" not in (tmp_path / "out/result.json").read_text()
