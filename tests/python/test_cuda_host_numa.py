"""storage.backing cuda-host-numa from outside: on the fake backend memfds stand in for the driver's memory, so that the
way of descriptors and sizes, the placement and the records are the run's own. And what --trace gives without a GPU."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from bench import BINARY, ROOT, Bench


def run(folder: Path, *settings: str, options: tuple[str, ...] = (), code: int = 0) -> tuple[Any, str]:
    """(result.json or None, stderr)"""
    command = [BINARY, "run", str(ROOT / "scenarios" / "tiny.json"), "-o", str(folder / "out"), *options]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    result = folder / "out" / "result.json"
    return (json.loads(result.read_text()) if result.exists() else None), done.stderr


FAKE = ("device.backend=fake", "storage.backing=cuda-host-numa", "storage.policy=bind:0")


@pytest.mark.parametrize("mode", ["shared", "private", "dp_sharded"])
def test_readers_share_the_drivers_pieces(tmp_path: Path, mode: str) -> None:
    result, _ = run(tmp_path, *FAKE, f"parallel.table_mode={mode}")
    assert result["checks"]["passed"] is True
    backings = result["effective"][0]["backings"]
    assert len(backings) == {"shared": 2, "private": 4, "dp_sharded": 4}[mode]
    for backing in backings:
        identity = backing["identity"]
        assert identity["kind"] == "cuda-host-numa"
        assert identity["allocated_bytes"] == sum(piece["bytes"] for piece in identity["pieces"])
        assert identity["allocated_bytes"] % (2 << 20) == 0
        assert {piece["node"] for piece in identity["pieces"]} == {0}
    identities = {backing["identity"]["inode"] for backing in backings}
    assert len(identities) == len(backings), "two backings are taken for one"
    steady = json.loads((tmp_path / "out/placement/reroll-0/steady-rank-0.json").read_text())
    assert set(steady["mapping"]["node_pages"]) == {"0"}
    assert steady["mapping"]["bytes"] % (2 << 20) == 0


def test_rows_equal_those_of_memfd(tmp_path: Path) -> None:
    rows = []
    for name, settings in (("numa", FAKE), ("memfd", ("device.backend=fake",))):
        (tmp_path / name).mkdir()
        result, _ = run(tmp_path / name, *settings)
        rows.append([slot["rows_sha256"] for slot in result["checks"]["slots"]])
    assert rows[0] == rows[1]


def test_the_cpu_has_no_driver(tmp_path: Path) -> None:
    _, error = run(tmp_path, "storage.backing=cuda-host-numa", "storage.policy=bind:0", code=2)
    assert "cuda-host-numa" in error
    assert "device.backend" in error


def test_a_policy_without_nodes_is_refused(tmp_path: Path) -> None:
    _, error = run(tmp_path, *FAKE[:2], "storage.policy=none", code=2)
    assert "cuda-host-numa" in error
    assert "bind" in error


def test_a_trace_without_a_gpu_says_what_it_lacks(tmp_path: Path) -> None:
    result, error = run(tmp_path, options=("--trace",))
    assert "--trace: device.backend cpu has no kernels of its own" in error
    assert result["evidence"]["conditions"]["traced"] is True
    assert "traced" in {warning["code"] for warning in result["warnings"]}
    trace = json.loads((tmp_path / "out/trace/reroll-0-block-0-rank-0.json").read_text())
    assert trace["rank"] == 0
    assert [slot["kind"] for slot in trace["slots"]] == ["timed"]
    assert trace["slots"][0]["spans"] == []
    assert "cpu" in trace["slots"][0]["reason"]


def test_a_plain_run_is_not_traced(tmp_path: Path) -> None:
    result, _ = run(tmp_path)
    assert result["evidence"]["conditions"]["traced"] is False
    assert list((tmp_path / "out/trace").iterdir()) == []


def test_a_driver_that_gives_no_more_is_named_with_rank_stage_and_piece(tmp_path: Path) -> None:
    """Each piece needs a descriptor, and so does passing it on."""
    bench = Bench(tmp_path, {"storage.backing": "cuda-host-numa", "storage.policy": "bind:0", "device.backend": "fake"})
    result = bench.run({"model.table_scale": 0.001}, before=("prlimit", "--nofile=64:64"), code=1)
    for rank in (0, 1):
        pattern = (
            rf"rank {rank} \(dp 0, tp {rank}\): create: cuda-host-numa: .* piece \d+ of \d+ .*: Too many open files"
        )
        assert re.search(pattern, bench.error), bench.error
    assert result["complete"] is False
    assert bench.run({})["complete"] is True
