"""What `verify` proves: samples from events, figures from samples; partial runs; a thousand cells in time."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench import BINARY, ROOT, engram_bench, rehash

SCENARIO = str(ROOT / "scenarios" / "selftest-fake.json")
ENVIRONMENT = {**os.environ, "ENGRAM_BENCH_STATE": "/nonexistent/engram-bench-tests"}
# One rank without tables: nothing but result files is written.
ONE_RANK = [
    *("--set", "parallel.tp=1", "--set", "parallel.dp=1", "--set", "parallel.table_mode=private"),
    *("--set", "storage.backing=anon", "--set", "experiment.guards=[]"),
]


def run(*arguments: str, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    done: subprocess.CompletedProcess[str] = engram_bench(*arguments, code=code, env=ENVIRONMENT, **options)
    return done


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    run("run", SCENARIO, "--set", "experiment.pairs=2", "-o", str(folder))
    return folder


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


def test_every_sample_is_derived_from_the_events(original: Path) -> None:
    lines = sum(len(path.read_text().splitlines()) for path in (original / "samples").iterdir())
    assert json.loads(run("verify", str(original), "--json").stdout)["samples_derived"] == lines
    assert f"{lines} samples follow from the events" in run("verify", str(original)).stdout


def edit_line(folder: Path, number: int, change: Callable[[dict[str, Any]], Any]) -> str:
    file = folder / "samples" / "reroll-0-block-1.jsonl"
    lines = file.read_text().splitlines()
    sample = json.loads(lines[number])
    change(sample)
    lines[number] = json.dumps(sample)
    file.write_text("\n".join(lines) + "\n")
    rehash(folder)
    return f"{file.name}:{number + 1}"


# Line 2 is rank 0's: no cell is made of its front time, so that only the events know it.
@pytest.mark.parametrize(
    ("number", "change", "text"),
    [
        (2, lambda s: s["values"].update({"front_us": s["values"]["front_us"] + 1}), "the events give"),
        (2, lambda s: s["values"].pop("front_us"), "no front_us"),
        (2, lambda s: s["values"].update({"other_us": 1.0}), "other_us is no metric of this run"),
        (2, lambda s: s.update(step=s["step"] + 1), "the events give"),
        (2, lambda s: s.update(step=s["step"] + 1000), "is none of slot"),
        (2, lambda s: s.update(slot=9999), "none of the slots"),
        (2, lambda s: s.update(rank=77), "the run has no rank 77"),
        (0, lambda s: s.update(replica=77), "the run has no replica 77"),
        (2, lambda s: s.update(arm="at_consume" if s["arm"] == "early" else "early"), "result.json says"),
    ],
)
def test_a_sample_that_the_events_do_not_give_is_named(
    copy: Path, number: int, change: Callable[[dict[str, Any]], Any], text: str
) -> None:
    place = edit_line(copy, number, change)
    error = run("verify", str(copy), code=5).stderr
    assert place in error
    assert text in error


def test_a_sample_that_was_taken_out_is_missed(copy: Path) -> None:
    file = copy / "samples" / "reroll-1-block-0.jsonl"
    lines = file.read_text().splitlines()
    rank = next(i for i, line in enumerate(lines) if json.loads(line)["rank"] == 1)
    file.write_text("\n".join(lines[:rank] + lines[rank + 1 :]) + "\n")
    rehash(copy)
    assert "samples, its events give" in run("verify", str(copy), code=5).stderr


def test_an_event_that_was_moved_is_found(copy: Path) -> None:
    path = copy / "events" / "rank-1.npy"
    array = np.load(path)
    kinds = {one["name"]: one["kind"] for one in json.loads((copy / "result.json").read_text())["event_kinds"]}
    place = np.flatnonzero((array["kind"] == kinds["lookup_done"]) & (array["clock"] == 1))[7]
    data = bytearray(path.read_bytes())
    offset = len(data) - array.nbytes + place * array.dtype.itemsize + array.dtype.fields["time_ns"][1]
    data[offset : offset + 8] = int(array["time_ns"][place] + 1000).to_bytes(8, "little")
    path.write_bytes(data)
    rehash(copy)
    assert "lookup_us" in run("verify", str(copy), code=5).stderr


def test_without_events_of_the_steps_there_is_nothing_to_derive(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run("run", SCENARIO, "--set", "experiment.pairs=1", "--instrument", "off", "-o", str(folder))
    assert json.loads(run("verify", str(folder), "--json").stdout)["samples_derived"] == 0


def test_samples_without_their_events_are_refused(copy: Path) -> None:
    manifest = (copy / "MANIFEST.sha256").read_text().splitlines(keepends=True)
    (copy / "events" / "rank-3.npy").unlink()
    (copy / "MANIFEST.sha256").write_text("".join(line for line in manifest if "rank-3.npy" not in line))
    assert "rank 3 has samples and no events" in run("verify", str(copy), code=5).stderr


def test_samples_without_any_event_are_refused(copy: Path) -> None:
    manifest = (copy / "MANIFEST.sha256").read_text().splitlines(keepends=True)
    shutil.rmtree(copy / "events")
    (copy / "MANIFEST.sha256").write_text("".join(line for line in manifest if "events/" not in line))
    assert "has samples and no events" in run("verify", str(copy), code=5).stderr


def check_partial(folder: Path, text: str) -> Any:
    """A run that ended in the middle of a block: what is there verifies, and says that it is not all."""
    assert "the run is not complete" in run("verify", str(folder)).stdout
    result = json.loads((folder / "result.json").read_text())
    assert result["complete"] is False
    assert text in result["failures"][0]["text"]
    assert [path.name for path in (folder / "failures").iterdir()] == ["failure-0.json"]
    blocks = {path.name for path in (folder / "samples").iterdir()}
    (step,) = (one for one in result["cells"] if (one["arm"], one["metric"]) == ("early", "step_us"))
    assert {f"reroll-{one['reroll']}-block-{one['block']}.jsonl" for one in step["blocks"]} == blocks
    return result


LONG_BLOCKS = [*ONE_RANK, "--set", "workload.steps=200", "--set", "experiment.pairs=2"]


def test_a_file_that_may_not_grow_ends_the_run_in_a_block(tmp_path: Path) -> None:
    """A block leaves 0.8 MB of events and less than 1 MB of samples: the events of the second do not fit."""
    folder = tmp_path / "run"
    limit = 1_300_000
    done = run(
        *("run", SCENARIO, *LONG_BLOCKS, "-o", str(folder)),
        code=1,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert "File too large" in done.stderr
    result = check_partial(folder, "File too large")
    assert len(list((folder / "samples").iterdir())) == 1
    assert "writing block 1" in result["failures"][0]["during"]
    assert len(np.load(folder / "events" / "rank-0.npy")) > 0, "the array ends where the last whole block ended"


def test_a_disk_that_is_full_in_a_block_leaves_a_run_that_verifies(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    folder = tmp_path / "copy"
    script = (
        f'mount -t tmpfs -o size=3500k none "{mount}" || exit 99; "$@" -o "{mount}/run"; code=$?; '
        f'cp -r "{mount}/run" "{folder}"; exit $code'
    )
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    words = ["unshare", "-rm", "sh", "-c", script, "sh", BINARY, "run", SCENARIO, *LONG_BLOCKS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, env=ENVIRONMENT)
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.returncode == 1, done.stderr
    assert "No space left on device" in done.stderr
    check_partial(folder, "No space left on device")


@pytest.fixture(scope="module")
def thousand_cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / "run"
    arms = json.dumps({f"cap-{cap}": cap for cap in range(1, 31)})
    factor = ["--set", "experiment.factor=prefetch.grid_cap", "--set", f"experiment.arms={arms}"]
    run("run", SCENARIO, *factor, "-o", str(folder), "--quiet")
    return folder


def test_a_thousand_cells_are_verified_in_time(thousand_cells: Path) -> None:
    result = json.loads((thousand_cells / "result.json").read_text())
    assert len(result["cells"]) >= 1000
    begun = time.monotonic()
    answer = json.loads(run("verify", str(thousand_cells), "--json").stdout)
    seconds = time.monotonic() - begun
    assert answer["verdicts"] == 29
    assert answer["samples_derived"] == 8 * 2 * 30 * 3 * 6  # pairs, blocks, arms, steps, replicas and ranks
    assert seconds < 10
