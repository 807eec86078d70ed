"""Sweeps: which cells, and that a killed one goes on where it was."""

from __future__ import annotations

import json
import os
import random
import shutil
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


def complete(folder: Path) -> dict[str, int]:
    """Finished cells and when they were finished."""
    found = {}
    for path in folder.glob("cell-*/result.json"):
        try:
            if json.loads(path.read_text())["complete"] is True:
                found[path.parent.name] = path.stat().st_mtime_ns
        except ValueError:
            continue
    return found


def test_killed_again_and_again(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    arguments = [BINARY, "sweep", SCENARIO, *FAST, "-o", str(folder), "--resume", "--set", "experiment.blocks=1"]
    generator = random.Random(3)
    finished: dict[str, int] = {}
    for _ in range(60):
        with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            try:
                process.wait(timeout=generator.uniform(0.05, 2.0))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
            error = process.communicate()[1]
            assert process.returncode in (0, -signal.SIGKILL), error
        now = complete(folder)
        assert finished.items() <= now.items(), "a finished cell is neither lost nor run again"
        finished = now
        if process.returncode == 0:
            break
    else:
        run(*arguments[1:])
        finished = complete(folder)
    assert len(finished) == 8
    run("verify", *(str(folder / name) for name in finished))


def test_what_a_kill_may_leave_of_a_cell(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    axis = ["--set", "experiment.pairs=1", "--axis", "workload.steps=1-4"]
    arguments = ["sweep", SCENARIO, *axis, "-o", str(folder)]
    run(*arguments)
    # Killed between the manifest and the result that it is of.
    result = folder / "cell-0000" / "result.json"
    result.write_text(json.dumps({**json.loads(result.read_text()), "complete": False}))
    # ... before its first file.
    shutil.rmtree(folder / "cell-0001")
    (folder / "cell-0001" / "samples").mkdir(parents=True)
    # ... while it wrote a block.
    (folder / "cell-0002" / "MANIFEST.sha256").unlink()
    (folder / "cell-0002" / "samples" / "reroll-0-block-0.jsonl.tmp").write_text("{")
    kept = (folder / "cell-0003" / "result.json").stat().st_mtime_ns
    assert run(*arguments, "--resume").stdout.count("(was done)") == 1
    run("verify", *(str(folder / f"cell-{number:04}") for number in range(4)))
    assert (folder / "cell-0003" / "result.json").stat().st_mtime_ns == kept


def test_a_finished_cell_that_is_damaged_is_named_and_not_run_again(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    arguments = ["sweep", SCENARIO, "--set", "experiment.pairs=1", "--axis", "workload.steps=1-2", "-o", str(folder)]
    run(*arguments)
    sample = next((folder / "cell-0001" / "samples").iterdir())
    sample.write_text("{}\n")
    error = run(*arguments, "--resume", code=5).stderr
    assert "cell-0001" in error
    assert sample.read_text() == "{}\n"
    other = [word if word != "workload.steps=1-2" else "workload.steps=2-3" for word in arguments]
    assert "another plan" in run(*other, "--resume", code=2).stderr


def test_two_sweeps_of_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    arguments = ["sweep", SCENARIO, *FAST, "-o", str(folder), "--resume"]
    with subprocess.Popen([BINARY, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        limit = time.monotonic() + 60
        while not (folder / "cell-0000").exists() and time.monotonic() < limit:
            time.sleep(0.01)
        assert "another sweep works there" in run(*arguments, code=2).stderr
        process.kill()


def test_zip_takes_the_axes_side_by_side(tmp_path: Path) -> None:
    axes = ["--axis", "workload.steps=2,3", "--axis", "seed=7-8", "--zip", "--set", "experiment.pairs=1"]
    out = run("sweep", SCENARIO, *axes, "-o", str(tmp_path / "s")).stdout
    assert "workload.steps=2 seed=7" in out
    assert "2/2" in out
    for number, (steps, seed) in enumerate(((2, 7), (3, 8))):
        plan = json.loads((tmp_path / "s" / f"cell-{number:04}" / "plan.json").read_text())["plan"]
        assert (plan["workload"]["steps"], plan["seed"]) == (steps, seed)


def test_dry_run_estimates_the_whole(tmp_path: Path) -> None:
    quick = str(ROOT / "scenarios" / "quick.json")
    words = ["sweep", quick, "--axis", "workload.steps=4,8", "--set", "device.backend=cpu", "-o", str(tmp_path / "s")]
    answer = json.loads(run(*words, "--dry-run", "--json").stdout)
    cells = answer["cells"]
    assert answer["low_s"] == sum(cell["low_s"] for cell in cells)
    assert 0 < answer["low_s"] < answer["high_s"] == sum(cell["high_s"] for cell in cells)
    assert cells[0]["low_s"] < cells[1]["low_s"]
    assert answer["most_memory_bytes"] == max(cell["memory_bytes"] for cell in cells) > 0
    text = run(*words, "--dry-run").stdout
    assert "2 cells, one after the other: at most" in text
    fake = run("sweep", SCENARIO, *FAST, "-o", str(tmp_path / "s"), "--dry-run").stdout
    assert "time not known: the fake backend runs in virtual time" in fake
