"""`plan` on the shipped scenarios and on files that are wrong: exit codes, texts, and the schema beside the parser."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENGRAM_BENCH_BIN", str(ROOT / "build" / "engram-bench"))
SCENARIOS = sorted((ROOT / "scenarios").glob("*.json"))
SCHEMA = json.loads((ROOT / "scenarios" / "schema" / "scenario.schema.json").read_text())
TINY = str(ROOT / "scenarios" / "tiny.json")


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done


def plan(scenario: str | Path, *settings: str) -> Any:
    options = [part for setting in settings for part in ("--set", setting)]
    return json.loads(run("plan", str(scenario), *options, "--json").stdout)


def error_of(scenario: str | Path, *settings: str) -> str:
    options = [part for setting in settings for part in ("--set", setting)]
    done = run("plan", str(scenario), *options, code=2)
    assert done.stdout == ""
    return done.stderr


def written(folder: Path, text: str) -> Path:
    path = folder / "scenario.json"
    path.write_text(text)
    return path


MATRICES = ("a1", "a2", "a3", "b1", "b2", "t", "h2")
EXPERIMENTS = [path for path in SCENARIOS if path.stem.split("-")[0] in MATRICES]
LOADS = ("decode", "prefill", "mixed", "one-prefills", "low-reuse", "repeat")


def load_file(load: str, experiment: Path) -> Path:
    """The form of a load that fits the experiment's size."""
    folder = ROOT / "scenarios" / "loads"
    small = folder / f"{load}-small.json"
    return small if experiment.stem.endswith("-small") and small.exists() else folder / f"{load}.json"


def test_every_matrix_is_there_in_both_sizes_and_alone_where_it_can_be() -> None:
    """B1 cannot be: at_consume waits for a consumer, which the lookup alone does not have."""
    names = {path.stem for path in SCENARIOS}
    for matrix in MATRICES:
        kinds = [matrix] if matrix == "b1" else [matrix, f"{matrix}-lookup"]
        assert {f"{kind}{size}" for kind in kinds for size in ("", "-small")} <= names
    alone = ROOT / "scenarios" / "a1-lookup-small.json"
    assert "nothing consumes the rows" in error_of(alone, "prefetch.submit=at_consume")


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_plans_under_every_load(path: Path, load: str) -> None:
    overlay = load_file(load, path)
    jsonschema.validate(json.loads(overlay.read_text()), SCHEMA)
    answer = json.loads(run("plan", str(path), "--with", str(overlay), "--json").stdout)
    assert answer["name"] == f"{path.stem}-{load}"
    workload = answer["plan"]["workload"]
    for key, value in json.loads(overlay.read_text())["workload"].items():
        if key == "batches":
            assert [{k: batch[k] for k in asked} for batch, asked in zip(workload[key], value, strict=True)] == value
        elif isinstance(value, dict):
            assert value.items() <= workload[key].items()
        else:
            assert workload[key] == value
    before = plan(path)["plan"]
    assert answer["plan"]["experiment"] == before["experiment"], "a load changes no experiment"


def test_overlays_are_laid_over_in_order_and_below_settings(tmp_path: Path) -> None:
    one = tmp_path / "one.json"
    two = tmp_path / "two.json"
    one.write_text('{"name": "one", "workload": {"steps": 3, "burn_in": 2}}')
    two.write_text('{"name": "two", "workload": {"steps": 5}, "experiment": null}')
    done = run(
        "plan", TINY, "--with", str(one), "--with", str(two), "--set", "workload.burn_in=7", "--json"
    )
    answer = json.loads(done.stdout)
    assert answer["name"] == "tiny-one-two"
    assert answer["plan"]["workload"]["steps"] == 5
    assert answer["plan"]["workload"]["burn_in"] == 7
    one.write_text('{"workload": {"step": 3}}')
    assert "workload.steps" in run("plan", TINY, "--with", str(one), code=2).stderr, "a wrong key has a nearest one"
    one.write_text('{"workload": {"steps": 3')
    assert f"--with {one}" in run("plan", TINY, "--with", str(one), code=2).stderr
    one.write_text("[]")
    assert "a scenario is a JSON object" in run("plan", TINY, "--with", str(one), code=2).stderr
    assert "nothing.json" in run("plan", TINY, "--with", str(tmp_path / "nothing.json"), code=2).stderr


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_shipped_scenarios_are_valid(path: Path) -> None:
    jsonschema.validate(json.loads(path.read_text()), SCHEMA)
    answer = plan(path)
    assert answer["valid"] is True
    assert answer["name"] == path.stem
    jsonschema.validate(answer["plan"], SCHEMA)
    for arm in answer["arms"]:
        memory = arm["memory"]
        backings = arm["effective"]["backings"]
        holds_tables = arm["overrides"].get("storage.backing") != "stub"
        assert memory["table_bytes"] == (sum(backing["bytes"] for backing in backings) if holds_tables else 0)
        assert memory["total_bytes"] <= answer["estimate"]["peak_bytes"]


@pytest.mark.parametrize(("setting", "words"), [
    ("experiment.primary=lokup_us.p50", "nearest is lookup_us"),
    ('experiment.guards=["front_us.p50","step_us.p5"]', "step_us.p5"),
    ('device.fake_durations_us={"lokup":5}', "unknown operation lokup; nearest: lookup"),
    ('device.fake_durations_us={"lookup.14":5}', "lookup.l14"),
])  # fmt: skip
def test_names_that_only_later_parts_know_are_checked_at_once(setting: str, words: str) -> None:
    assert words in error_of(TINY, setting)


def test_steps_whose_events_do_not_fit_are_refused() -> None:
    few, many = (plan(TINY, f"workload.steps={steps}")["arms"][0]["memory"] for steps in (10, 10_000_000))
    assert many["record_bytes"] == 1_000_000 * few["record_bytes"]
    (obstacle,) = plan(TINY, "workload.steps=1000000000")["obstacles"]
    assert obstacle["exit"] == 1
    assert "workload.steps" in obstacle["text"]


def test_an_endless_file_is_no_scenario() -> None:
    assert "longer than the" in error_of("/dev/zero")


def test_the_quick_scenario_is_small() -> None:
    answer = plan(ROOT / "scenarios" / "quick.json")
    assert answer["estimate"]["peak_bytes"] < 2 << 30
    assert [arm["name"] for arm in answer["arms"]] == ["early", "at_consume"]
    assert answer["arms_share_allocation"] is True
    layers = answer["arms"][0]["memory"]["table_bytes"] / 2
    assert 60 << 20 < layers < 70 << 20


def test_the_expanded_plan_is_a_scenario_with_the_same_hash(tmp_path: Path) -> None:
    answer = plan(TINY, "storage.pretouch=parallel:2", "prefetch.grid_cap=0.25")
    again = plan(written(tmp_path, json.dumps(answer["plan"])))
    assert again["sha256"] == answer["sha256"]
    assert answer["plan"]["storage"]["pretouch"] == "parallel:2"
    assert plan(TINY)["sha256"] != answer["sha256"]


def test_time_is_a_range_that_follows_the_work() -> None:
    short = plan(TINY)["estimate"]
    long = plan(TINY, "workload.steps=4000")["estimate"]
    assert 0 < short["time_low_s"] < short["time_high_s"] < long["time_high_s"]
    assert short["time_low_s"] < long["time_low_s"]
    fake = plan(TINY, "device.backend=fake")["estimate"]
    assert fake["time_low_s"] is None
    assert "virtual time" in fake["time_reason"]


def test_seed_is_a_setting() -> None:
    done = run("plan", TINY, "--seed", "77", "--json")
    assert json.loads(done.stdout)["plan"]["seed"] == 77


def test_a_file_after_a_setting_is_not_a_setting() -> None:
    done = run("plan", "--set", "workload.steps=2", "--set", "seed=5", TINY, "--json")
    answer = json.loads(done.stdout)["plan"]
    assert (answer["workload"]["steps"], answer["seed"]) == (2, 5)


def test_layouts_of_two_by_two() -> None:
    shared = plan(TINY)["arms"][0]["effective"]
    assert [backing["readers"] for backing in shared["backings"]] == [[0, 2], [1, 3]]
    sharded = plan(TINY, "parallel.table_mode=dp_sharded")["arms"][0]["effective"]
    assert [rank["shard"] for rank in sharded["ranks"]] == [0, 2, 1, 3]
    private = plan(TINY, "parallel.table_mode=private")["arms"][0]["effective"]
    assert [backing["readers"] for backing in private["backings"]] == [[0], [1], [2], [3]]


# What is wrong about the form: parser and schema must both refuse it.
@pytest.mark.parametrize(
    ("fragment", "text"),
    [
        ({"storage": {"polcy": "bind:0"}}, "unknown key storage.polcy; nearest: storage.policy"),
        ({"parallel": {"tp": "two"}}, "parallel.tp: expected an integer from 1 to 64"),
        ({"parallel": {"tp": 65}}, "found 65"),
        ({"model": {"preset": "deepseek-v4"}}, "nearest: deepseek-v4.1-flash"),
        ({"storage": {"backing": "hugetlb"}}, "expected one of shm"),
        ({"storage": {"policy": "bind"}}, "policy bind is written bind:nodes"),
        ({"workload": {"batches": []}}, "workload.batches: expected a list of 1 to"),
        ({"workload": {"batches": [{"decode": -1}]}}, "workload.batches.0.decode"),
        ({"experiment": {"pairs": 0}}, "experiment.pairs"),
        ({"experiment": {"arms": {}, "factor": "seed"}}, "experiment"),
        ({"seed": None}, "seed: expected an integer"),
        ({"name": "a b"}, "name"),
    ],
    ids=str,
)
def test_bad_form_is_refused_by_parser_and_schema(tmp_path: Path, fragment: dict[str, Any], text: str) -> None:
    scenario = {"name": "x"} | fragment
    assert text in error_of(written(tmp_path, json.dumps(scenario)))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(scenario, SCHEMA)


# What only fits together wrongly.
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            ["parallel.tp=16", "model.preset=deepseek-v4.1-flash", "model.backbone.layers=40"],
            "Engram sharding leaves ranks without hash heads: 24 heads over 16 shards",
        ),
        (["parallel.dp=1"], "parallel.table_mode shared needs replicas"),
        (["parallel.dp=1", "parallel.table_mode=dp_sharded"], "parallel.table_mode dp_sharded needs replicas"),
        (["storage.backing=anon"], "cannot serve parallel.table_mode shared"),
        (["experiment.factor=storage.policy", "experiment.arms={}"], "experiment.arms is empty"),
        (["experiment.factor=storage.policy", 'experiment.arms={"A": "none"}'], "names one arm"),
        (["storage.backing=cuda-host-numa", "storage.policy=bind:0"], "made by a CUDA driver"),
        (["storage.policy=bind:0,"], "NUMA node"),
        (["storage.policy"], "expected KEY=VALUE"),
        (["workload.tokens.kind=file", "workload.tokens.file=missing.u32"], "missing.u32"),
    ],
    ids=str,
)
def test_bad_combinations_exit_2(settings: list[str], text: str) -> None:
    assert text in error_of(TINY, *settings)


def test_syntax_errors_name_line_and_column(tmp_path: Path) -> None:
    assert "scenario.json: line 2, column 11: " in error_of(written(tmp_path, '{"name": "x",\n "seed": 01}'))
    assert "given twice" in error_of(written(tmp_path, '{"name": "x", "name": "y"}'))
    assert "line 1, column" in error_of(written(tmp_path, '{"name": "x", "storage": {"tolerance": NaN}}'))
    assert "no-such.json" in error_of(tmp_path / "no-such.json")
    error_of(tmp_path)  # a folder


def test_obstacles_of_this_machine_leave_a_plan_valid() -> None:
    answer = plan(TINY, "storage.policy=bind:1000")
    assert answer["valid"] is True
    assert answer["obstacles"][0]["exit"] == 77
    assert "bind:1000" in answer["obstacles"][0]["text"]
    assert "fall back" in answer["vllm"]
    huge = plan(ROOT / "scenarios" / "quick.json", "model.table_scale=5")
    assert {obstacle["exit"] for obstacle in huge["obstacles"]} == {1}
    assert plan(TINY)["obstacles"] == []
    assert plan(TINY)["vllm"] is None


def test_the_readme_example_of_the_scenario_page_is_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "scenario.md").read_text()
    example = page.split("```json\n")[1].split("```")[0]
    answer = plan(written(tmp_path, example))
    assert [arm["control"] for arm in answer["arms"]] == [False, False, True]


def test_generated_files_are_those_of_the_program() -> None:
    assert run("plan", "--print-schema").stdout == (ROOT / "scenarios/schema/scenario.schema.json").read_text()
    assert run("plan", "--print-reference").stdout in (ROOT / "docs/scenario.md").read_text()
