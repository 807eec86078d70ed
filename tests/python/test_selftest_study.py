"""scripts/selftest_study in its short form: scripted times on the fake device, so that every count is known before."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENGRAM_BENCH_BIN", str(ROOT / "build" / "engram-bench"))
STUDY = str(ROOT / "scripts" / "selftest_study")
sys.path.insert(0, str(ROOT / "scripts"))
import selftest_tables as tables  # noqa: E402

SERIES = [
    *("--scenario", str(ROOT / "scenarios" / "selftest-fake.json"), "--set", "experiment.blocks=1"),
    *("--aa", "5", "--injected", "1", "--cpus-per-lane", "1"),
]


def command(*arguments: str) -> list[str]:
    binary = [] if arguments[0] == "table" or "--binary" in arguments else ["--binary", BINARY]
    return [sys.executable, STUDY, *arguments, *binary]


def study(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def killed_and_finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """A series that was killed after its first experiment and called again; and what it had finished before."""
    folder = tmp_path_factory.mktemp("study") / "series"
    with subprocess.Popen(command("series", "-o", str(folder), *SERIES), stdout=subprocess.DEVNULL) as process:
        end = time.monotonic() + 120
        while not tables.is_complete(folder / "runs" / "aa-000" / "result.json") and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    finished = {
        path.parent.name: path.stat().st_mtime_ns
        for path in (folder / "runs").glob("*/result.json")
        if tables.is_complete(path)
    }
    assert 1 <= len(finished) < 8
    study("series", "-o", str(folder), *SERIES)
    return folder, finished


def test_scripted_times_give_exact_counts(killed_and_finished: tuple[Path, dict[str, int]]) -> None:
    folder, _ = killed_and_finished
    document = json.loads((folder / "study.json").read_text())
    counts = {one["series"]: (one["experiments"], one["verdicts"], one.get("found")) for one in document["series"]}
    assert counts == {
        "A/A": (5, {"same": 5}, None),
        "lookup": (1, {"worse": 1}, 1),
        "front": (1, {"worse": 1}, 1),
        "gather": (1, {"worse": 1}, 1),
    }
    assert document["aa_pairs_on_record"] == 40
    assert document["run_anew"] == []
    effects = {one["series"]: one["runs"][0]["primary"]["effect_ratio"] for one in document["series"]}
    assert effects == {"A/A": 1.0, "lookup": pytest.approx(1.1, rel=1e-9), "front": 1.0, "gather": 1.0}
    links = {one["series"]: one["runs"][0]["broke_at"] for one in document["series"][1:]}
    assert links == {"lookup": "mechanism", "front": "guards", "gather": "guards"}
    assert "| lookup | 1 | 1 worse | 1 | at least 1 found at mechanism | yes |" in (folder / "study.md").read_text()


def test_a_killed_series_goes_on_and_repeats_nothing(killed_and_finished: tuple[Path, dict[str, int]]) -> None:
    folder, finished = killed_and_finished
    for name, time_ns in finished.items():
        assert (folder / "runs" / name / "result.json").stat().st_mtime_ns == time_ns


def test_an_experiment_runs_on_its_lane_alone(killed_and_finished: tuple[Path, dict[str, int]]) -> None:
    folder, _ = killed_and_finished
    for path in (folder / "runs").glob("*/result.json"):
        assert len(json.loads(path.read_text())["topology"]["allowed_cpus"]) == 1


def test_another_study_is_not_mixed_into_the_folder(killed_and_finished: tuple[Path, dict[str, int]]) -> None:
    folder, _ = killed_and_finished
    error = study("series", "-o", str(folder), *SERIES, "--percent", "5", code=2).stderr
    assert "another percent" in error


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    out = ["-o", str(tmp_path / "s")]
    assert "lanes of 2 CPUs need" in study("series", *out, "--lanes", "4000", code=2).stderr
    assert "no such program" in study("series", *out, "--binary", str(tmp_path / "none"), code=2).stderr
    assert "nearest" in study("series", *out, *SERIES, "--set", "workload.stepz=1", code=1).stdout


def test_time_that_is_over_leaves_the_rest(tmp_path: Path) -> None:
    out = study("series", "-o", str(tmp_path / "s"), *SERIES, "--minutes", "0", code=3).stdout
    assert "8 experiments are left" in out


def series_of(experiments: int, verdicts: dict[str, int], found: int | None = None) -> dict[str, Any]:
    one: dict[str, Any] = {"series": "A/A", "experiments": experiments, "verdicts": verdicts, "seconds": [10.0]}
    if found is not None:
        one.update(series="lookup", expected_link="mechanism", found=found)
    return {"series": [one]}


def test_a_further_series_is_pooled_with_the_first() -> None:
    first = series_of(40, {"same": 37, "worse": 2, "better": 1})
    second = series_of(40, {"same": 39, "worse": 1})
    assert not tables.pool([first])["passed"], "3 claims of 40"
    assert tables.pool([second])["passed"]
    (both,) = tables.pool([first, second])["series"]
    assert (both["experiments"], both["claims"], both["passed"]) == (80, 4, True)
    (worse,) = tables.pool([first, first])["series"]
    assert (worse["claims"], worse["passed"]) == (6, False)
    assert not tables.pool([series_of(40, {"same": 35, "void": 5})])["passed"]
    assert tables.pool([series_of(40, {"same": 36, "void": 4})])["passed"]


def test_planted_effects_need_nine_of_ten() -> None:
    assert tables.pool([series_of(20, {"worse": 20}, found=18)])["passed"]
    assert not tables.pool([series_of(20, {"worse": 20}, found=17)])["passed"]


@pytest.fixture(scope="module")
def power(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study") / "power"
    study("power", "-o", str(folder), "--runs", "3", "--effects", "0,5", "--cpus-per-lane", "1")
    return folder


def draw(seed: int, purpose: int, place: int, which: int) -> int:
    """The generator of the fake device's noise (harness/measure/order.cpp), written anew."""
    bits = (1 << 64) - 1
    x = seed
    for piece in (purpose, place, which):
        x = (x + 0x9E3779B97F4A7C15 + piece) & bits
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & bits
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & bits
        x ^= x >> 31
    return x


def noise(seed: int, reroll: int) -> float:
    a, b = (((draw(seed, 5, reroll, which) >> 11) + 0.5) * 2.0**-53 for which in (0, 1))
    return math.sqrt(-2 * math.log(a)) * math.cos(2 * math.pi * b)


def test_the_noise_is_the_scripted_one(power: Path) -> None:
    lines = tables.read_lines(power / "experiments.jsonl")
    assert sorted((line["effect_percent"], line["seed"]) for line in lines) == [
        *((0.0, 1), (0.0, 2), (0.0, 3)),
        *((5.0, 50_000_001), (5.0, 50_000_002), (5.0, 50_000_003)),
    ]
    for line in lines:
        effect = math.log1p(line["effect_percent"] / 100)
        assert len(line["log_ratios"]) == 8
        for pair, value in enumerate(line["log_ratios"]):
            drawn = 0.02 / math.sqrt(2) * (noise(line["seed"], 2 * pair + 1) - noise(line["seed"], 2 * pair))
            # Which of the two re-rolls each arm got is the order's matter.
            assert abs(value - effect) == pytest.approx(abs(drawn), abs=2e-5)


def test_verdicts_are_those_of_the_rule(power: Path) -> None:
    """From the pairs' log ratios by SciPy: worse where the t interval lies above zero and the mean beyond 2 %."""
    found = {0.0: 0, 5.0: 0}
    for line in tables.read_lines(power / "experiments.jsonl"):
        y = np.array(line["log_ratios"])
        half = stats.t.ppf(0.975, len(y) - 1) * y.std(ddof=1) / math.sqrt(len(y))
        worse = y.mean() - half > 0 and y.mean() > math.log1p(0.02)
        assert (line["figures_verdict"] == "worse") == worse
        found[line["effect_percent"]] += int(worse)
    document = json.loads((power / "study.json").read_text())
    assert {one["effect_percent"]: one["found"] for one in document["effects"]} == found
    assert found == {0.0: 0, 5.0: 3}


def test_theory_against_a_simulation() -> None:
    document = {"noise_percent": 2, "delta_percent": 2, "pairs": 8}
    generator = np.random.default_rng(5)
    critical = stats.t.ppf(0.975, 7)
    for effect in (0.0, 2.0, 3.0, 5.0):
        y = generator.normal(math.log1p(effect / 100), 0.02, (200_000, 8))
        mean, error = y.mean(axis=1), y.std(axis=1, ddof=1) / math.sqrt(8)
        theory = tables.theory_of(document, effect)
        assert theory is not None
        assert theory[0] == pytest.approx(np.mean(mean > critical * error), abs=0.004)
        assert theory[1] == pytest.approx(np.mean((mean > critical * error) & (mean > math.log1p(0.02))), abs=0.004)


def test_counts_that_theory_does_not_explain_are_found() -> None:
    document: dict[str, Any] = {"noise_percent": 2, "delta_percent": 2, "pairs": 8, "command": "x"}
    row = {"effect_percent": 3.0, "experiments": 200, "found": 180, "verdicts": {}, "inconclusive_reasons": {}}
    assert tables.power_as_theory_says({**document, "effects": [row]}) is True
    assert tables.power_as_theory_says({**document, "effects": [{**row, "found": 120}]}) is False


def test_without_scipy_the_theory_says_so(power: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads((power / "study.json").read_text())
    assert "| 5 % | 3 | 3 | 1.000 | 1.000 |" in tables.power_markdown(document)
    monkeypatch.setattr(tables, "stats", None)
    assert "SciPy is not installed" in tables.power_markdown(document)


def test_a_line_that_a_kill_cut_off_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    tables.append_line(path, {"a": 1})
    with path.open("a") as file:
        file.write('{"a": ')
    assert tables.read_lines(path) == [{"a": 1}]
    tables.append_line(path, {"a": 2})
    assert tables.read_lines(path) == [{"a": 1}, {"a": 2}]
