"""Verdicts from end to end on the fake device, whose times are scripted: what is planted must be found, at its link."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENGRAM_BENCH_BIN", str(ROOT / "build" / "engram-bench"))
SCENARIO = ROOT / "scenarios" / "selftest-fake.json"


def run(*arguments: str, code: int = 0, state: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ENGRAM_BENCH_STATE": str(state or "/nonexistent/engram-bench-tests")}
    done = subprocess.run(
        [BINARY, *arguments], capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def inject(stage: str, percent: float = 10) -> list[str]:
    return [
        *("--set", f"experiment.inject.stage={stage}"),
        *("--set", f"experiment.inject.percent={percent}"),
        *("--set", "experiment.inject.arm=at_consume"),
    ]


def comparison(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text())["comparisons"][0]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine with a floor on record: five A/A experiments of eight pairs."""
    folder = tmp_path_factory.mktemp("floor")
    done = run("selftest", str(SCENARIO), "-o", str(folder / "series"), "--json", state=folder / "state")
    answer = json.loads(done.stdout)
    assert answer["aa_pairs_on_record"] == 40
    (series,) = answer["series"]
    runs = series.pop("runs")
    assert series == {"series": "A/A", "experiments": 5, "verdicts": {"same": 5}, "passed": True}
    assert [(run["experiment"], run["seed"], run["verdict"]) for run in runs] == [
        (f"aa-{number:03}", number + 1, "same") for number in range(5)
    ]
    assert answer["floors_log"]["lookup_us.p50"] == 0, "scripted times: an arm equals itself to the nanosecond"
    return folder / "state"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, state: Path) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "run"
    run("run", str(SCENARIO), "-o", str(folder), state=state)
    return folder


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory, state: Path) -> Path:
    folder = tmp_path_factory.mktemp("slower") / "run"
    run("run", str(SCENARIO), "-o", str(folder), *inject("lookup"), state=state)
    return folder


def test_equal_times_are_the_same(plain: Path, state: Path) -> None:
    found = comparison(plain)
    assert found["verdict"] == "same"
    assert found["reason"] == "within_delta"
    assert found["chain"]["links"][0]["status"] == "held"
    assert found["control"]["effect_ratio"] == 1
    assert "gate: passed" in run("compare", str(plain), "--gate", state=state).stderr


def test_an_injected_regression_makes_the_gate_fire(slower: Path, state: Path) -> None:
    found = comparison(slower)
    assert found["verdict"] == "worse"
    assert found["primary"]["effect_ratio"] == pytest.approx(1.1, rel=1e-9)
    assert found["chain"]["broke_at"] == "mechanism"
    assert "gate: regression" in run("compare", str(slower), "--gate", code=3, state=state).stderr
    run("compare", str(slower), state=state)  # without --gate a verdict is no error
    run("verify", str(slower))


@pytest.mark.parametrize(("stage", "metric"), [("front", "front_us"), ("gather", "gather_us")])
def test_a_planted_effect_is_found_at_its_link(tmp_path: Path, state: Path, stage: str, metric: str) -> None:
    folder = tmp_path / "run"
    run("run", str(SCENARIO), "-o", str(folder), *inject(stage), state=state)
    found = comparison(folder)
    assert (found["verdict"], found["reason"], found["chain"]["broke_at"]) == ("worse", "guard_worse", "guards")
    assert [one["metric"] for one in found["guards"] if one["verdict"] == "worse"] == [f"{metric}.p50"]
    assert found["primary"]["verdict"] == "same"
    run("compare", str(folder), "--gate", code=3, state=state)
    result = json.loads((folder / "result.json").read_text())
    assert result["arms"][1]["injected"] == {"stage": stage, "percent": 10.0}
    assert "injected" in [warning["code"] for warning in result["warnings"]]


def test_no_floor_with_a_gate(plain: Path, slower: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run("run", str(SCENARIO), "-o", str(folder), *inject("lookup"))
    found = comparison(folder)
    assert (found["verdict"], found["reason"]) == ("inconclusive", "floor_unknown")
    assert found["primary"]["figures_verdict"] == "worse"
    assert "floor_unknown" in run("compare", str(folder), "--gate", code=4).stdout


def test_a_floor_that_is_measured_later_counts_in_compare(tmp_path: Path, state: Path) -> None:
    folder = tmp_path / "run"
    run("run", str(SCENARIO), "-o", str(folder), *inject("lookup"))
    run("compare", str(folder), "--gate", code=3, state=state)


def test_too_few_pairs_for_a_gate(tmp_path: Path, state: Path) -> None:
    folder = tmp_path / "run"
    run("run", str(SCENARIO), "-o", str(folder), "--set", "experiment.pairs=3", state=state)
    assert "at least 6" in run("compare", str(folder), "--gate", code=2, state=state).stderr


def test_two_runs_differ_only_in_the_declared_factor(plain: Path, tmp_path: Path, state: Path) -> None:
    other = tmp_path / "other"
    slow = (
        'device.fake_durations_us={"lookup":330,"backbone":40,"gather":30,"wkv":20,"wkv_gather":20,"gate":10,"hash":10}'
    )
    run("run", str(SCENARIO), "-o", str(other), "--set", slow, state=state)
    error = run("compare", str(plain), str(other), code=2, state=state).stderr
    assert "device.fake_durations_us.lookup: 300.0 in" in error
    answer = json.loads(
        run(
            "compare", str(plain), str(other), "--factor", "device.fake_durations_us.lookup", "--json", state=state
        ).stdout
    )
    (found,) = answer["comparisons"]
    assert found["arms"] == ["baseline", "candidate"]
    assert found["primary"]["effect_ratio"] == pytest.approx(1.1, rel=1e-9)
    assert found["verdict"] == "worse"
    assert answer["gate_exit"] == 3


def test_a_planted_result_is_no_baseline(plain: Path, slower: Path, state: Path) -> None:
    error = run("compare", str(slower), str(plain), "--arm", "at_consume", code=2, state=state).stderr
    assert "no baseline" in error
    assert "no judged arm nobody" in run("compare", str(plain), str(plain), "--arm", "nobody", code=2).stderr


def test_noise_is_judged_by_its_floor(tmp_path: Path) -> None:
    """Re-rolls apart, 2 % noise: the floor is above delta, and 2 % planted is not claimed."""
    settings = ["--set", "device.fake_noise=0.02"]
    scenario = json.loads(SCENARIO.read_text())
    scenario["experiment"].update(factor="storage.pretouch", arms={"A": "none", "B": "leader"})
    path = tmp_path / "apart.json"
    path.write_text(json.dumps(scenario))
    state = tmp_path / "state"
    done = run("selftest", str(path), *settings, "-o", str(tmp_path / "series"), "--json", state=state)
    floor = json.loads(done.stdout)["floors_log"]["lookup_us.p50"]
    # |mean| + t(0.975, 39) s / sqrt(8) with s about 0.02 sqrt(2)
    assert 0.012 < floor < 0.035
    run("run", str(path), *settings, "-o", str(tmp_path / "run"), state=state)
    found = comparison(tmp_path / "run")
    assert found["primary"]["floor_log"] == floor
    assert found["verdict"] in ("same", "inconclusive")


def test_selftest_goes_on_where_it_was(tmp_path: Path) -> None:
    state = tmp_path / "state"
    series = tmp_path / "series"
    run("selftest", str(SCENARIO), "-o", str(series), "--experiments", "1", state=state)
    first = (series / "aa-000" / "MANIFEST.sha256").stat().st_mtime_ns
    run("selftest", str(SCENARIO), "-o", str(series), "--experiments", "2", code=2, state=state)
    (series / "aa-001").mkdir()  # killed before its first file
    answer = json.loads(
        run(
            "selftest", str(SCENARIO), "-o", str(series), "--experiments", "2", "--resume", "--json", state=state
        ).stdout
    )
    assert answer["aa_pairs_on_record"] == 16, "the finished one is neither repeated nor counted twice"
    assert (series / "aa-000" / "MANIFEST.sha256").stat().st_mtime_ns == first


def test_selftest_runs_one_experiment_alone(tmp_path: Path) -> None:
    series = tmp_path / "series"
    arguments = ["selftest", str(SCENARIO), "-o", str(series), "--experiments", "2", "--injected", "1", "--resume"]
    assert run(*arguments, "--only", "lookup-000", state=tmp_path / "state").stdout == ""
    assert [path.name for path in series.iterdir()] == ["lookup-000"]
    error = run(*arguments, "--only", "lookup-001", code=2, state=tmp_path / "state").stderr
    assert "the series has aa-000 to aa-001" in error


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (["experiment.factor=prefetch.nothing"], "nothing"),
        (['experiment.arms={"A":"early"}'], "one arm"),
        (['experiment.arms={"A":"early","B":"early"}'], "are equal"),
        (['experiment.arms={"A":"early","B":{"prefetch.submit":"early","prefetch.order":"table"}}'], "prefetch.submit"),
        (["experiment.factor=storage.backing", 'experiment.arms={"A":"memfd","B":"hbm"}'], "hbm"),
        (["experiment.primary=lookup_us.l7.p50"], "backbone layer 7 has no table"),
        (["experiment.primary=expert_us.p50"], "parallel.ep is 1"),
        (["experiment.primary=lokup_us.p50"], "nearest is lookup_us"),
        (["experiment.inject.stage=lookup", "experiment.inject.arm=at_consume"], "percent must be above 0"),
        (["experiment.inject.stage=lookup", "experiment.inject.percent=5", "experiment.inject.arm=early"], "baseline"),
        (["experiment.inject.stage=lookup", "experiment.inject.percent=5", "experiment.inject.arm=C"], "no arm"),
        (["experiment.inject.stage=step"], "lookup, front, gather"),
        (["experiment.aa=together"], "leave experiment.factor"),
    ],
)
def test_bad_experiments_are_refused(tmp_path: Path, change: list[str], text: str) -> None:
    settings = [part for one in change for part in ("--set", one)]
    assert text in run("run", str(SCENARIO), "-o", str(tmp_path / "run"), *settings, code=2).stderr
    assert not (tmp_path / "run").exists()
