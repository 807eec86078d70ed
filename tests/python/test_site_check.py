"""`scripts/site_check`: what it stores, and that what is missing or fails is named and stops nothing."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENGRAM_BENCH_BIN", str(ROOT / "build" / "engram-bench"))
SCRIPT = ROOT / "scripts" / "site_check"


def check(out: Path, *arguments: str, path: str | None = None, code: int = 0) -> dict[str, dict[str, str]]:
    """The lines of the index by file."""
    environment = dict(os.environ) if path is None else {**os.environ, "PATH": path}
    bash = shutil.which("bash")
    assert bash is not None
    command = [bash, str(SCRIPT), "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == code, done.stderr
    with (out / "index.tsv").open() as file:
        lines = {line["file"]: line for line in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}
    for line in lines.values():
        assert line["state"] != "ok" or line["exit"] == "0"
        assert line["state"] == "ok" or line["command"] in done.stderr  # named for people, too
    return lines


def test_raw_outputs_of_machine_and_process(tmp_path: Path) -> None:
    out = tmp_path / "site"
    lines = check(out, "--pid", str(os.getpid()), "--bench", BINARY)
    assert (out / "meminfo.txt").read_text().startswith("MemTotal:")
    assert lines["uname.txt"]["state"] == "ok"
    numa_maps = (out / f"pid-{os.getpid()}-numa_maps.txt").read_text()
    assert "kernelpagesize_kB=" in numa_maps
    assert "Pss:" in (out / f"pid-{os.getpid()}-smaps_rollup.txt").read_text()
    assert json.loads((out / "bench-topo.json").read_text())["nodes"]
    assert lines[f"pid-{os.getpid()}-status.txt"]["state"] == "ok"
    wanted = {"nvidia-smi-topo.txt": "nvidia-smi topo -m", "lscpu.txt": "lscpu", "findmnt.txt": "findmnt -A"}
    assert {file: lines[file]["command"] for file in wanted} == wanted


def test_commands_that_are_missing_or_fail_are_named(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "cat", "date", "timeout", "mkdir", "rm", "awk", "wc", "dirname", "grep"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    failing = tools / "numactl"
    failing.write_text("#!/bin/sh\necho half a line\necho broken >&2\nexit 3\n")
    failing.chmod(0o755)
    out = tmp_path / "site"
    lines = check(out, "--bench", str(tmp_path / "none"), path=str(tools))
    assert (lines["lscpu.txt"]["state"], lines["lscpu.txt"]["exit"]) == ("missing", "127")
    assert (out / "lscpu.txt.err").read_text() == "lscpu: not installed\n"
    assert (lines["numactl-hardware.txt"]["state"], lines["numactl-hardware.txt"]["exit"]) == ("failed", "3")
    assert (out / "numactl-hardware.txt").read_text() == "half a line\n"
    assert (out / "numactl-hardware.txt.err").read_text() == "broken\n"
    assert lines["bench-topo.json"]["state"] == "missing"
    assert lines["meminfo.txt"]["state"] == "ok"


@pytest.mark.parametrize(
    "arguments", [(), ("--out",), ("--out", "new", "--pid", "x"), ("--out", "new", "--pid", "0"), ("--nonsense",)]
)
def test_bad_usage(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("site_check: ")
    assert not (tmp_path / "new").exists()


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    done = subprocess.run([SCRIPT, "--out", tmp_path], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "exists" in done.stderr
    assert list(tmp_path.iterdir()) == []
