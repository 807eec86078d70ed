"""Verdicts from end to end on the fake device, whose times are scripted: what is planted must be found, at its link."""

from __future__ import annotations

import json
import math
import os
import shutil
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
        (["device.backend=auto", "storage.backing=hbm"], "cannot be an arm of prefetch.submit"),
        (["storage.backing=stub"], "cannot be an arm of prefetch.submit"),
        (['experiment.arms={"A":{"prefetch.submit":"early","prefetch.order":"table"},"B":"early"}'], "prefetch.submit"),
        (["experiment.outcome=step_us.p50"], "a metric of a step"),
        (["experiment.outcome=lookup_us"], "a metric of a step"),
        (["experiment.outcome=ttft_ms.p95"], "has no clients"),
        (["experiment.outcome=latency"], "ttft_ms, itl_ms or goodput_requests_per_s"),
        (["experiment.primary=gather_us.p50", "parallel.tp=1"], "one member"),
        (["experiment.primary=rows_us.p50"], "dp_sharded"),
        (["experiment.stop=p_value"], "fixed, precision"),
        (["experiment.coresident=true"], "share one allocation already"),
        (
            ["experiment.coresident=true", "experiment.factor=device.cpu_workers", 'experiment.arms={"A":1,"B":2}'],
            "a factor of storage",
        ),
        (['experiment.cites=["nowhere/at-all"]'], "no such folder"),
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


def test_a_declared_delta_below_the_floor_gives_way_to_it(tmp_path: Path) -> None:
    """Pairs with 2 % noise between the arms: the floor is above a delta of 0.1 %, is used, and the result says so."""
    scenario = json.loads(SCENARIO.read_text())
    scenario["experiment"].update(factor="storage.pretouch", arms={"A": "none", "B": "leader"}, delta=0.001)
    path = tmp_path / "apart.json"
    path.write_text(json.dumps(scenario))
    state = tmp_path / "state"
    settings = ["--set", "device.fake_noise=0.02"]
    run("selftest", str(path), *settings, "-o", str(tmp_path / "series"), state=state)
    done = run("run", str(path), *settings, "-o", str(tmp_path / "run"), state=state)
    primary = comparison(tmp_path / "run")["primary"]
    assert primary["delta_raised_to_floor"] is True
    assert primary["delta_used"] == pytest.approx(math.expm1(primary["floor_log"]))
    assert primary["delta_used"] > 0.001
    assert "the A/A floor; the declared one lies below it" in done.stdout
    run("verify", str(tmp_path / "run"))


def b1(tmp_path: Path, **durations: float) -> Path:
    """B1 on the fake device, whose early arm hides the lookup altogether."""
    scenario = json.loads(SCENARIO.read_text())
    scenario["device"]["fake_durations_us"].update(durations)
    scenario["experiment"].update(arms={"at_consume": "at_consume", "early": "early"}, primary="exposed_us.p50")
    path = tmp_path / "b1.json"
    path.write_text(json.dumps(scenario))
    return path


def test_b1_gives_a_verdict_where_the_wait_vanishes(tmp_path: Path) -> None:
    path = b1(tmp_path, lookup=30)
    state = tmp_path / "state"
    run("selftest", str(path), "-o", str(tmp_path / "series"), state=state)
    run("run", str(path), "-o", str(tmp_path / "run"), state=state)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    medians = {
        cell["arm"]: cell["median"] for cell in result["cells"] if cell["metric"] == "exposed_us"
    }
    steps = {cell["arm"]: cell["median"] for cell in result["cells"] if cell["metric"] == "step_us"}
    assert medians["early"] == 0 < medians["at_consume"]
    found = comparison(tmp_path / "run")
    assert (found["verdict"], found["reason"]) == ("better", "improved")
    assert found["primary"]["judged"] == "of_step"
    assert found["primary"]["effect_ratio"] == pytest.approx(1 - medians["at_consume"] / steps["at_consume"], rel=1e-3)
    assert found["chain"]["links"][1]["status"] == "held"
    run("compare", str(tmp_path / "run"), "--gate", state=state)
    run("verify", str(tmp_path / "run"))


def test_the_observed_pass_enters_no_figure(plain: Path) -> None:
    result = json.loads((plain / "result.json").read_text())
    kinds = [slot["kind"] for slot in result["slots"]]
    assert kinds.count("observed") == 2 * 8
    for reroll in range(8):
        own = [slot["kind"] for slot in result["slots"] if slot["reroll"] == reroll]
        assert own[-2:] == ["observed", "observed"], "after all that is timed"
    observed = {slot["slot"] for slot in result["slots"] if slot["kind"] == "observed"}
    for path in (plain / "samples").glob("*.jsonl"):
        assert observed.isdisjoint(json.loads(line)["slot"] for line in path.read_text().splitlines())
    texts = [path.read_text() for path in (plain / "observed").glob("*.jsonl")]
    assert {json.loads(line)["slot"] for text in texts for line in text.splitlines()} == observed
    for cost in result["observed_pass"]["cost"]:
        assert cost["rerolls"] == 8
        assert cost["observed_over_timed_step"]["value"] == 1, "scripted times: a collector costs nothing"


def test_a_run_ends_where_its_precision_is_reached(tmp_path: Path, state: Path) -> None:
    settings = ["--set", "experiment.pairs=30", "--set", "experiment.stop=precision"]
    folder = tmp_path / "run"
    run("run", str(SCENARIO), "-o", str(folder), *settings, state=state)
    result = json.loads((folder / "result.json").read_text())
    assert result["evidence"]["stop"]["pairs_made"] == 6
    assert result["comparisons"][0]["primary"]["pairs"] == 6
    run("compare", str(folder), "--gate", state=state)
    run("verify", str(folder))


@pytest.mark.parametrize("backend", ["fake", "cpu"])
def test_coresident_arms_alternate_on_tables_of_their_own(tmp_path: Path, backend: str) -> None:
    scenario = json.loads(SCENARIO.read_text())
    scenario["experiment"].update(
        factor="storage.pretouch", arms={"A": "none", "B": "leader"}, coresident=True, pairs=2, primary="lookup_us.p50"
    )
    if backend == "cpu":
        scenario["device"] = {"backend": "cpu", "cpu_workers": 1}
    path = tmp_path / "coresident.json"
    path.write_text(json.dumps(scenario))
    folder = tmp_path / "run"
    run("run", str(path), "-o", str(folder))
    result = json.loads((folder / "result.json").read_text())
    assert [pair["rerolls"] for pair in result["evidence"]["pairs"]] == [{"A": 0, "B": 0}, {"A": 1, "B": 1}]
    assert result["comparisons"][0]["primary"]["pairs"] == 2
    assert result["checks"]["passed"] is True
    for reroll in (0, 1):
        for block in range(scenario["experiment"]["blocks"]):
            order = "".join(
                slot["arm"]
                for slot in result["slots"]
                if (slot["reroll"], slot["block"], slot["kind"]) == (reroll, block, "timed")
            )
            assert order in ("ABBA", "BAAB")
    assert len(result["ledger"]) == 4
    inodes = {
        (snapshot["reroll"], snapshot["arm"]): json.dumps([backing["identity"] for backing in snapshot["backings"]])
        for snapshot in result["placement"]["snapshots"]
        if snapshot["label"] == "after_load"
    }
    assert len(inodes) == 4
    run("verify", str(folder))


def test_coresident_arms_that_do_not_fit_are_refused_with_figures(tmp_path: Path) -> None:
    """Each arm alone fits into what is free; both together do not."""
    scenario = json.loads((ROOT / "scenarios" / "selftest.json").read_text())
    scenario["device"]["backend"] = "fake"
    scenario["experiment"].update(factor="storage.pretouch", arms={"A": "none", "B": "leader"})
    path = tmp_path / "coresident.json"
    path.write_text(json.dumps(scenario))

    def planned(*settings: str) -> Any:
        options = [part for setting in settings for part in ("--set", setting)]
        return json.loads(run("plan", str(path), *options, "--json").stdout)

    # The largest scale, in steps of a tenth, at which one arm alone fits.
    scale = 1.0
    while planned(f"model.table_scale={scale}")["obstacles"]:
        scale *= 0.9
        assert scale > 1e-6, "not even the smallest table fits"
    if scale == 1.0:
        pytest.skip("this machine holds even two whole tables")
    done = run(
        *("run", str(path), "--set", f"model.table_scale={scale}", "--set", "experiment.coresident=true"),
        *("-o", str(tmp_path / "run")),
        code=1,
    )
    assert "holds the tables of all arms at once" in done.stderr
    assert "arm A " in done.stderr
    assert "arm B " in done.stderr
    assert not (tmp_path / "run").exists()


def test_a3_rests_on_cited_a1_and_b1(tmp_path: Path, plain: Path, state: Path) -> None:
    """A cited run is verified, and counts where it is of this machine and says something."""
    cites = json.dumps([str(plain)])
    folder = tmp_path / "run"
    run("run", str(SCENARIO), "-o", str(folder), "--set", f"experiment.cites={cites}", state=state)
    (cite,) = json.loads((folder / "result.json").read_text())["evidence"]["cites"]
    assert cite["experiment"] == "B1"
    assert cite["same_machine"] is True
    assert [one["verdict"] for one in cite["verdicts"]] == ["same"]
    run("verify", str(folder))
    archived = tmp_path / "archived"
    run("archive", "add", str(plain), "--name", "ground", state=state)
    run("run", str(SCENARIO), "-o", str(archived), "--set", 'experiment.cites=["archive:ground"]', state=state)
    (from_archive,) = json.loads((archived / "result.json").read_text())["evidence"]["cites"]
    assert from_archive["result_sha256"] == cite["result_sha256"]
    damaged = tmp_path / "damaged"
    shutil.copytree(plain, damaged)
    (damaged / "log.txt").write_text("nothing\n")
    cites = json.dumps([str(damaged)])
    out = tmp_path / "other"
    error = run("run", str(SCENARIO), "-o", str(out), "--set", f"experiment.cites={cites}", code=5).stderr
    assert "log.txt" in error
    assert not out.exists()


def test_traffic_is_counted_in_the_observed_pass_or_the_reason_is_there(plain: Path) -> None:
    result = json.loads((plain / "result.json").read_text())
    for slot in result["observed_pass"]["slots"]:
        (counters,) = [one["seen"] for one in slot["collectors"] if one["name"] == "counters"]
        assert counters["readings"]
        for reading in counters["readings"]:
            assert reading["direction"] in {"read", "write", "both", "sent", "received"}
            assert reading["window_us"] > 0
            assert isinstance(reading["bytes"], float) or reading["bytes"]["reason"]
    for bytes_by_arm in result["evidence"]["counters"].values():
        assert bytes_by_arm.keys() == {"early", "at_consume"}
        for counted in bytes_by_arm.values():
            assert isinstance(counted, float) or counted["reason"]
