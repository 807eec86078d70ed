"""`run`: its options, its exit codes, and what is left when the output cannot be written or a check fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENGRAM_BENCH_BIN", str(ROOT / "build" / "engram-bench"))

TINY: dict[str, Any] = {
    "name": "tiny-run",
    "question": "What does run do?",
    "model": {
        "preset": "tiny",
        "backbone": {"layers": 2, "weight_bytes_per_layer": 8192, "flops_per_token_per_layer": 16384},
    },
    "parallel": {"tp": 1, "dp": 2, "table_mode": "shared"},
    "device": {"backend": "cpu"},
    "storage": {"backing": "shm", "policy": "bind:0"},
    "workload": {"kind": "steps", "batches": [{"decode": 4}], "steps": 3},
    "experiment": {"pairs": 1, "blocks": 1},
}

TWO_ARMS = [
    "--set",
    "experiment.factor=prefetch.submit",
    "--set",
    'experiment.arms={"A": "early", "B": "at_consume"}',
]


class Runner:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "out"
        self.scenario = folder / "scenario.json"
        self.scenario.write_text(json.dumps(TINY))

    def command(self, *arguments: str) -> list[str]:
        return [BINARY, "run", str(self.scenario), "-o", str(self.output), *arguments]

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def result(self) -> Any:
        return json.loads((self.output / "result.json").read_text())


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_prints_the_findings_on_stdout_and_nothing_on_stderr(run: Runner) -> None:
    done = run()
    assert done.stderr == ""
    for words in ("lookup_us", "exposed_us", "recoverable_us", "step_us", "Pages by NUMA node", "after_register",
                  "steady", "PSS", "Checks passed", f"Result: {run.output}"):  # fmt: skip
        assert words in done.stdout


def test_an_existing_folder_is_kept_unless_forced(run: Runner) -> None:
    run()
    before = (run.output / "MANIFEST.sha256").read_text()
    error = run(code=2).stderr
    assert "exists" in error
    assert "--force" in error
    assert (run.output / "MANIFEST.sha256").read_text() == before
    run("--force", "--seed", "7")
    assert run.result()["conditions"]["seed"] == 7
    subprocess.run([BINARY, "verify", str(run.output)], check=True, capture_output=True)


def test_force_does_not_overwrite_what_is_no_run(run: Runner) -> None:
    run.output.mkdir()
    (run.output / "thesis.tex").write_text("years of work")
    assert "not the folder of a run" in run("--force", code=2).stderr
    assert (run.output / "thesis.tex").read_text() == "years of work"


def test_the_default_folder_is_named_after_the_scenario_and_the_time(run: Runner) -> None:
    command = [BINARY, "run", str(run.scenario), "-q"]
    subprocess.run(command, cwd=run.folder, capture_output=True, timeout=120, check=True)
    folders = list((run.folder / "results").iterdir())
    assert len(folders) == 1
    assert folders[0].name.startswith("tiny-run-20")
    assert folders[0].name.endswith("Z")


def test_settings_reach_the_plan(run: Runner) -> None:
    run("--set", "workload.steps=2", "--set", "prefetch.submit=at_consume", "--set", "experiment.blocks=3")
    result = run.result()
    assert result["effective"][0]["configured"]["submit"] == "at_consume"
    timed = [slot for slot in result["slots"] if slot["kind"] == "timed"]
    assert [slot["steps"] for slot in timed] == [2, 2, 2]
    assert run.result()["conditions"]["scenario_sha256"] == json.loads((run.output / "plan.json").read_text())["sha256"]


def test_the_same_seed_gives_the_same_order_and_rows(run: Runner) -> None:

    def once(seed: str) -> Any:
        run(*TWO_ARMS, "--set", "experiment.blocks=6", "--force", "--seed", seed)
        result = run.result()
        order = [slot["arm"] for slot in result["slots"] if slot["kind"] == "timed"]
        return order, result["checks"]["slots"][0]["rows_sha256"]

    first = once("3")
    assert once("3") == first
    other = [once(seed) for seed in ("4", "5", "6")]
    assert any(order != first[0] for order, _ in other)
    assert all(rows != first[1] for _, rows in other)


def test_both_arms_of_a_prefetch_factor_gather_the_same_rows(run: Runner) -> None:
    run(*TWO_ARMS)
    before = [slot for slot in run.result()["checks"]["slots"] if slot["when"] == "before_timing"]
    assert [slot["arm"] for slot in before] == ["A", "B"]
    assert before[0]["rows_sha256"] == before[1]["rows_sha256"]


@pytest.mark.parametrize("option", ["--resume", "--report", "--launcher=mpi"])
def test_what_is_not_built_is_refused_by_name(run: Runner, option: str) -> None:
    error = run(option, code=2).stderr
    assert option.split("=")[0] in error
    assert "not in this version" in error
    assert not run.output.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "storage.policy"], "KEY=VALUE"),
        (["--set", "storage.polcy=bind:0"], "storage.policy"),
        (["--set", "experiment.primary=lokup_us.p50"], "lookup_us"),
        (["--seed", "-1"], "seed"),
        (["--rank-timeout", "0"], "--rank-timeout"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_usage_errors_name_what_is_wrong(run: Runner, arguments: list[str], words: str) -> None:
    done = run(*arguments, code=2)
    assert words in done.stderr
    assert done.stdout == ""
    assert not run.output.exists()


def test_a_token_map_that_is_not_there_is_found_before_any_rank_starts(run: Runner) -> None:
    error = run("--set", "workload.tokens.map=absent.u32", code=2).stderr
    assert "absent.u32" in error
    assert "rank" not in error
    assert not run.output.exists()


def test_a_state_folder_that_may_not_be_entered_is_no_reason_not_to_run(run: Runner, tmp_path: Path) -> None:
    blocked = tmp_path / "state"
    blocked.write_text("a file, where the folder of the floors should be")
    done = subprocess.run(run.command(), capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "ENGRAM_BENCH_STATE": str(blocked / ("x" * 300))})  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_run_that_ended_early_does_not_blame_the_scenario(run: Runner) -> None:
    started = subprocess.Popen(run.command("--set", "workload.steps=1000000"), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    end = time.monotonic() + 30
    while not (run.output / "result.json").exists() and time.monotonic() < end:
        time.sleep(0.02)
    started.send_signal(signal.SIGINT)
    text, _ = started.communicate(timeout=60)
    assert started.returncode == 130
    assert "the run ended before a timed step of this arm was done" in text
    assert "stub" not in text


def test_a_node_that_is_not_here_is_skipped_before_anything_is_made(run: Runner) -> None:
    error = run("--set", "storage.policy=bind:7", code=77).stderr
    assert "bind:7" in error
    assert not run.output.exists()


def test_a_time_out_is_a_number(run: Runner) -> None:
    assert "--rank-timeout" in run("--rank-timeout", "nan", code=2).stderr


def test_dry_run_prints_the_order_and_starts_nothing(run: Runner) -> None:
    plan = json.loads(run(*TWO_ARMS, "--set", "experiment.blocks=2", "--dry-run", "--json").stdout)
    assert sorted(plan["rerolls"][0]["blocks"]) == ["A B B A", "B A A B"]
    assert plan["would_stop_run"] == []
    stopped = json.loads(run("--set", "storage.policy=bind:7", "--dry-run", "--json").stdout)
    assert stopped["would_stop_run"][0]["exit"] == 77
    assert not run.output.exists()


@pytest.mark.parametrize("kind", ["skip_lookup", "late_lookup"])
def test_a_lookup_that_did_not_run_or_came_too_late_is_found(run: Runner, kind: str) -> None:
    done = run("--set", f"fault.kind={kind}", "--set", "fault.stage=in_step", code=5)
    assert "rank 0" in done.stderr
    result = run.result()
    assert result["complete"] is False
    assert result["checks"]["passed"] is False
    assert result["cells"] == []
    assert result["failures"][0]["exit"] == 5
    assert result["failures"][0]["text"] in done.stderr  # the error reaches the JSON
    assert json.loads((run.output / "failures" / "failure-0.json").read_text())["exit"] == 5
    assert "lookup_us" not in done.stdout
    assert not (run.output / "samples").exists()


def test_an_interrupt_leaves_a_partial_result(run: Runner) -> None:
    command = run.command("--set", "workload.steps=20000", "--set", "experiment.blocks=50")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    result = run.output / "result.json"
    end = time.monotonic() + 30
    while not result.exists() and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert run.result()["complete"] is False
    assert run.result()["failures"][0]["exit"] == 130
    subprocess.run([BINARY, "verify", str(run.output)], check=True, capture_output=True)


def test_a_place_that_cannot_be_written_is_a_failure_before_the_run(run: Runner) -> None:
    run.output = Path("/proc/engram-bench-results")
    error = run(code=1).stderr
    assert "/proc/engram-bench-results" in error


def in_small_mount(command: list[str], mount: Path, options: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a mount namespace in which `mount` is a tmpfs; skips where that is not permitted."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    script = f'mount -t tmpfs -o {options} none "{mount}" && echo mounted >&2 && exec "$@"'
    done = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", *command],
                          capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
    if "mounted" not in done.stderr:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    return done


def test_a_read_only_place_is_a_failure(run: Runner, tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    run.output = mount / "out"
    done = in_small_mount(run.command(), mount, "ro")
    assert done.returncode == 1, done.stderr
    assert "Read-only file system" in done.stderr


def test_a_full_disk_is_a_failure_and_no_result_claims_to_be_complete(run: Runner, tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    run.output = mount / "out"
    show = 'cat "$0/result.json"; exit $code'
    command = run.command("--set", "workload.steps=3000", "--set", "experiment.blocks=4", "-q")
    wrapped = ["sh", "-c", f'"$@" >&2; code=$?; {show}', str(run.output), *command]
    done = in_small_mount(wrapped, mount, "size=1m")
    assert done.returncode == 1, done.stderr
    assert "No space left on device" in done.stderr
    assert json.loads(done.stdout)["complete"] is False


def test_the_cost_of_events_is_a_number(run: Runner) -> None:
    figures = json.loads(run("--instrument", "both", "--json").stdout)
    assert figures["events_per_step"] > figures["events_per_step_off"] > 0
    assert 0 < figures["event_stream_ns"] < 100_000
    ratio = figures["on_over_off"]
    assert ratio["low"] <= ratio["ratio"] <= ratio["high"]
    added = figures["events_per_step"] - figures["events_per_step_off"]
    share = added * figures["event_stream_ns"] / 1000 / figures["step_on_us"]
    assert figures["events_share_of_step"] == pytest.approx(share)
    assert not run.output.exists()


def test_without_events_there_are_no_figures_but_all_checks(run: Runner) -> None:
    run("--instrument", "off")
    result = run.result()
    assert result["complete"] is True
    assert result["checks"]["passed"] is True
    step = [one for one in result["cells"] if one["metric"] == "step_us"]
    assert step[0]["median"] is None
    assert step[0]["reason"] == "events were off in this run"
