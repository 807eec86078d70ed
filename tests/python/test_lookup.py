"""The lookup alone, from outside: windows, idle readers, rates beside BW_effective, and what is refused."""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
from bench import engram_bench, rehash, run_scenario

SCENARIO: dict[str, Any] = {
    "name": "readers",
    "question": "Do two readers slow each other down?",
    "model": {"preset": "deepseek-v4.1-flash", "table_scale": 0.0001},
    "parallel": {"tp": 1, "dp": 2, "table_mode": "shared"},
    "device": {"backend": "cpu"},
    "storage": {"backing": "shm", "policy": "bind:0"},
    "workload": {
        "kind": "lookup",
        "batches": [{"prefill": [6], "decode": 2}],
        "steps": 6,
        "warmup": 4,
        "burn_in": 1,
        "tokens": {"kind": "uniform"},
    },
    "experiment": {
        "factor": "workload.active_readers",
        "arms": {"one": 1, "two": 2},
        "controls": {"hbm": {"storage.backing": "hbm"}},
        "pairs": 2,
        "blocks": 1,
        "primary": "lookup_us.p50",
        "guards": ["aggregate_rows_per_s.p50"],
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("lookup")
    (place / "stdout").write_text(run_scenario(SCENARIO, place).stdout)
    return place


@pytest.fixture(scope="module")
def result(folder: Path) -> Any:
    return json.loads((folder / "run" / "result.json").read_text())


def cell(result: Any, arm: str, metric: str) -> Any:
    return next(c for c in result["cells"] if c["arm"] == arm and c["metric"] == metric)


def test_rows_are_checked_and_the_folder_verifies(folder: Path, result: Any) -> None:
    assert result["checks"]["passed"] is True
    assert result["checks"]["rows_compared"] > 0
    engram_bench("verify", str(folder / "run"))


def test_windows_are_long_enough_and_hold_many_launches(result: Any) -> None:
    for arm in result["arms"]:
        for rank in arm["work_per_rank"]:
            windows = rank["windows"]
            reads = arm["name"] == "two" or rank["rank"] == 0
            assert windows["reads"] is reads
            assert (windows["launches"] > 1) is reads
    two = next(arm for arm in result["arms"] if arm["name"] == "two")
    launches = two["work_per_rank"][0]["windows"]["launches"]
    lookup = cell(result, "two", "lookup_us.l1")["per_rank"][0]["median"]
    assert lookup * launches > 150, "a window of one table, in us; 200 are aimed at"


def test_the_idle_reader_has_no_figure(result: Any) -> None:
    one = cell(result, "one", "lookup_us")
    assert [r["n"] for r in one["per_rank"]][1] == 0
    assert one["n"] == one["per_rank"][0]["n"] > 0
    assert cell(result, "two", "lookup_us")["per_rank"][1]["n"] > 0


def test_rates_follow_from_times(result: Any) -> None:
    """24 columns and 8 tokens: rows a second of a window are its rows over its time."""
    lookup = cell(result, "one", "lookup_us.l14")
    rate = cell(result, "one", "rows_per_s.l14")
    assert rate["median"] == pytest.approx(24 * 8 / lookup["median"] * 1e6, rel=0.02)
    alone = cell(result, "one", "aggregate_rows_per_s")
    assert alone["median"] == pytest.approx(cell(result, "one", "rows_per_s")["median"], rel=0.02)
    together = cell(result, "two", "aggregate_rows_per_s")
    assert together["n"] > 0
    ranks = [r["median"] for r in cell(result, "two", "rows_per_s")["per_rank"]]
    assert together["median"] < 2 * sum(ranks)
    assert cell(result, "two", "launch_latency_us")["n"] > 0


def test_samples_hold_the_aggregate_once_a_window(folder: Path) -> None:
    found = 0
    for file in (folder / "run" / "samples").glob("*.jsonl"):
        for line in file.read_text().splitlines():
            sample = json.loads(line)
            if "aggregate_rows_per_s" in sample["values"]:
                found += 1
                assert sample["replica"] == 0
                assert sample["rank"] in (None, 0)
    assert found > 0


def test_each_rate_stands_beside_bw_effective(folder: Path, result: Any) -> None:
    arms = {entry["arm"]: entry for entry in result["lookup_rates"]}
    assert sorted(arms) == ["one", "two"]
    for name, readers in (("one", 1), ("two", 2)):
        ranks = arms[name]["per_rank"]
        assert sorted({r["rank"] for r in ranks}) == list(range(readers))
        assert {r["layer"] for r in ranks} == {None, 1, 14}
        for entry in ranks:
            assert entry["bw_effective_rows_per_s"] > 0
            assert entry["share_of_bw_effective"] == entry["rows_per_s"] / entry["bw_effective_rows_per_s"]
    kinds = [slot["kind"] for slot in result["slots"]]
    assert kinds.count("calibration") == 2 * 2, "one an arm and block, in each of two re-rolls"
    bare = cell(result, "one", "bare_gather_us.l1")
    values = [
        sample["values"]["bare_gather_us.l1"]
        for file in (folder / "run" / "samples").glob("*.jsonl")
        for sample in map(json.loads, file.read_text().splitlines())
        if sample["arm"] == "one" and sample["rank"] is None and "bare_gather_us.l1" in sample["values"]
    ]
    assert bare["median"] == statistics.median(values)
    assert "BW_effective rows/s" in (folder / "stdout").read_text()


def test_a_changed_rate_is_found(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder / "run", copy)
    document = json.loads((copy / "result.json").read_text())
    document["lookup_rates"][0]["per_rank"][0]["share_of_bw_effective"] = 0.99
    (copy / "result.json").write_text(json.dumps(document, indent=2) + "\n")
    rehash(copy)
    assert "lookup rates" in engram_bench("verify", str(copy), code=5).stderr


def test_the_hbm_control_is_left_out_by_name(result: Any) -> None:
    assert [arm["name"] for arm in result["arms"]] == ["one", "two"]
    warning = next(w for w in result["warnings"] if w["code"] == "control_skipped")
    assert "Control hbm did not run: storage.backing hbm needs a GPU" in warning["text"]
    assert warning["figures"] == {"control": "hbm"}


def test_more_rows_a_second_are_better(tmp_path: Path) -> None:
    """Scripted: the second arm's lookups take twice as long, so its rate must be judged worse."""
    scenario = json.loads(json.dumps(SCENARIO))
    scenario["device"] = {"backend": "fake", "fake_durations_us": {"lookup": 50}, "fake_noise": 0.01}
    scenario["experiment"].update(
        factor="device.fake_durations_us",
        arms={"fast": {"lookup": 50}, "slow": {"lookup": 100}},
        controls={},
        pairs=6,
        primary="rows_per_s.p50",
        guards=["lookup_us.p50"],
    )
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(scenario))
    engram_bench("run", str(file), "-o", str(tmp_path / "out"))
    comparison = json.loads((tmp_path / "out" / "result.json").read_text())["comparisons"][0]
    assert comparison["primary"]["effect_ratio"] == pytest.approx(0.5, rel=0.05)
    assert comparison["primary"]["figures_verdict"] == "worse"
    assert comparison["guards"][0]["figures_verdict"] == "worse"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["workload.active_readers=3"], "workload.active_readers 3: there are 2 ranks"),
        (["workload.active_readers=0"], "found 0"),
        (["workload.active_readers=[0,7]"], "names rank 7"),
        (["experiment.primary=exposed_us.p50"], "a metric of workload.kind steps"),
        (["experiment.primary=bare_rows_per_s.p50"], "is not judged"),
        (["experiment.primary=lookup_us.l7.p50"], "backbone layer 7 has no table"),
        (["experiment.guards=[\"front_us.p50\"]"], "not a metric of workload.kind lookup"),
        (["storage.backing=stub"], "storage.backing stub"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused(tmp_path: Path, settings: list[str], words: str) -> None:
    scenario = json.loads(json.dumps(SCENARIO))
    if any(setting.startswith("workload.active_readers") for setting in settings):
        scenario["experiment"] = {"pairs": 1, "blocks": 1}
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(scenario))
    arguments = [argument for setting in settings for argument in ("--set", setting)]
    done = engram_bench("run", str(file), "-o", str(tmp_path / "out"), *arguments, code=2)
    assert words in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_skipped_lookup_ends_the_run(tmp_path: Path) -> None:
    scenario = json.loads(json.dumps(SCENARIO))
    scenario["experiment"] = {"pairs": 1, "blocks": 1}
    scenario["fault"] = {"kind": "skip_lookup", "stage": "in_step", "rank": 1, "step": 0}
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(scenario))
    done = engram_bench("run", str(file), "-o", str(tmp_path / "out"), code=5)
    assert "rank 1" in done.stderr
    assert "the lookup did not run or came too late" in done.stderr
