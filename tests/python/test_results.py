"""What `run` writes: every file against its schema, event arrays in NumPy, figures derived anew from the events, and
`verify` on archives that were tampered with."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import numpy.typing as npt
import pytest
from bench import BINARY, ROOT, Bench, engram_bench, rehash, run_scenario

SCHEMAS = ROOT / "harness" / "result" / "schema"
TP = 2

SCENARIO: dict[str, Any] = {
    "name": "results",
    "question": "Is it all there?",
    "model": {
        "preset": "tiny",
        "backbone": {"layers": 2, "weight_bytes_per_layer": 8192, "flops_per_token_per_layer": 16384},
    },
    "parallel": {"tp": TP, "dp": 2, "table_mode": "dp_sharded"},
    "device": {"backend": "cpu"},
    "storage": {"backing": "shm", "policy": "bind:0"},
    "workload": {
        "kind": "steps",
        "batches": [{"prefill": [9], "decode": 3}],
        "steps": 5,
        "warmup": 6,
        "burn_in": 1,
    },
    "experiment": {
        "factor": "prefetch.submit",
        "arms": {"A": "early", "B": "at_consume"},
        "controls": {"stub": {"storage.backing": "stub"}},
        "pairs": 1,
        "blocks": 2,
    },
}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    run_scenario(SCENARIO, folder)
    return folder / "run"


@pytest.fixture
def copy(archive: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(archive, tmp_path / "copy"))


def reseal(folder: Path, result: Any) -> None:
    (folder / "result.json").write_text(json.dumps(result))
    rehash(folder)


def load(path: Path) -> Any:
    def refuse(text: str) -> Any:
        raise ValueError(f"{path}: {text} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = load(SCHEMAS / f"{name}.schema.json")
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def samples(archive: Path) -> Iterator[dict[str, Any]]:
    for path in sorted((archive / "samples").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            yield json.loads(line)


def events(archive: Path, rank: int) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.load(archive / "events" / f"rank-{rank}.npy")
    return array


def cell(result: Any, arm: str, metric: str) -> Any:
    found = [one for one in result["cells"] if one["arm"] == arm and one["metric"] == metric]
    assert len(found) == 1
    return found[0]


def test_every_file_fits_its_schema(archive: Path) -> None:
    validator("result").validate(load(archive / "result.json"))
    validator("plan").validate(load(archive / "plan.json"))
    snapshot = validator("snapshot")
    paths = sorted((archive / "placement").glob("*/*.json"))
    assert {path.name for path in paths} >= {f"steady-rank-{rank}.json" for rank in range(4)}
    for path in paths:
        snapshot.validate(load(path))
    sample = validator("sample")
    lines = list(samples(archive))
    assert lines
    for line in lines:
        sample.validate(line)


def test_the_schema_refuses_what_the_rules_forbid(archive: Path) -> None:
    schema = validator("result")
    spoils: list[Callable[[Any], Any]] = [
        lambda r: r["cells"][0].update(median="12.5"),  # a number as text
        lambda r: r["cells"][0].update(n=0),  # figures without samples
        lambda r: cell(r, "A", "expert_us").pop("reason"),  # absent without a reason
        lambda r: r["conditions"].update(driver=None),  # null without a reason
        lambda r: r.pop("hypotheses"),
        lambda r: r.update(extra=1),
        lambda r: r["warnings"].append({"code": "x", "text": "y", "figures": {}}),  # no next step
    ]
    for spoil in spoils:
        result = load(archive / "result.json")
        spoil(result)
        assert not schema.is_valid(result)


def test_sections_and_their_order(archive: Path) -> None:
    result = load(archive / "result.json")
    assert list(result)[:24] == [
        "schema", "schema_version", "complete", "name", "question", "context", "topology", "effective", "conditions",
        "ledger", "placement", "startup", "checks", "arms", "cells", "lookup_rates", "evidence", "comparisons",
        "hypotheses", "grid_caps", "observed_pass", "warnings", "failures", "slots",
    ]  # fmt: skip
    assert result["complete"] is True
    assert result["checks"]["passed"] is True
    (comparison,) = result["comparisons"]
    wanted = {
        "factor": "prefetch.submit", "arms": ["A", "B"], "metric": "lookup_us.p50", "pairs": 1, "delta": 0.02,
        "verdict": None, "reason": "one_reroll", "text": "no verdict: one re-roll", "gate_exit": 4,
    }  # fmt: skip
    assert {key: comparison[key] for key in wanted} == wanted
    assert [link["link"] for link in comparison["chain"]["links"]] == ["pages", "mechanism", "guards", "outcome"]
    assert [one["id"] for one in result["hypotheses"]] == ["H1", "H2", "H3", "H4"]


def test_the_environment_is_not_dumped(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.json"
    scenario.write_text(json.dumps(SCENARIO))
    environment = {**os.environ, "SECRET_TOKEN": "hunter2", "OMP_NUM_THREADS": "3"}
    command = [BINARY, "run", str(scenario), "-o", str(tmp_path / "run"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    assert "hunter2" not in "".join(p.read_text(errors="replace") for p in (tmp_path / "run").rglob("*") if p.is_file())
    result = json.loads(done.stdout)
    assert result["context"]["env"]["OMP_NUM_THREADS"] == "3"
    assert result == load(tmp_path / "run" / "result.json")  # --json prints what the file holds


def test_events_load_in_numpy(archive: Path) -> None:
    result = load(archive / "result.json")
    timed = {slot["slot"]: slot for slot in result["slots"] if slot["kind"] == "timed"}
    for rank in range(4):
        array = events(archive, rank)
        assert array.dtype.names == ("step", "slot", "kind", "layer", "clock", "pad", "pad2", "time_ns")
        assert array.dtype.itemsize == 24
        assert set(array["slot"].tolist()) == set(timed)
        for number, slot in timed.items():
            assert set(array["step"][array["slot"] == number].tolist()) == set(range(slot["steps"]))
        assert set(array["kind"].tolist()) <= {one["kind"] for one in result["event_kinds"]}


def device_times(archive: Path, rank: int) -> dict[tuple[int, int, str, int], int]:
    names = {one["kind"]: one["name"] for one in load(archive / "result.json")["event_kinds"]}
    array = events(archive, rank)
    array = array[array["clock"] == 1]
    return {(int(e["slot"]), int(e["step"]), names[int(e["kind"])], int(e["layer"])): int(e["time_ns"]) for e in array}


def test_samples_follow_from_the_events(archive: Path) -> None:
    """Lookup, exposed wait, gather and step time once more, in NumPy from the raw events."""
    result = load(archive / "result.json")
    first = {slot["slot"]: slot["first_step"] for slot in result["slots"]}
    stub = {slot["slot"] for slot in result["slots"] if slot["arm"] == "stub"}
    times = [device_times(archive, rank) for rank in range(4)]
    seen = 0
    for sample in samples(archive):
        slot, replica, rank = sample["slot"], sample["replica"], sample["rank"]
        step = sample["step"] - first[slot]
        values = sample["values"]
        ranks = [TP * replica + tp for tp in range(TP)] if rank is None else [rank]

        def at(rank: int, name: str, layer: int = 0, slot: int = slot, step: int = step) -> int:
            return times[rank][slot, step, name, layer]

        start = min(at(r, "step_start", -1) for r in ranks)
        assert values["step_us"] == pytest.approx((max(at(r, "step_done", -1) for r in ranks) - start) / 1000)
        members = [TP * replica + tp for tp in range(TP)]
        last = max(at(r, "gather_start") for r in members)
        gather = max(max(0, at(r, "gather_done") - last) for r in ranks)
        assert values["gather_us.l0"] == pytest.approx(gather / 1000)
        assert values["skew_us.l0"] == pytest.approx(max(last - at(r, "gather_start") for r in ranks) / 1000)
        if slot in stub:
            assert "lookup_us" not in values
            continue
        seen += 1
        lookup = max(at(r, "lookup_done") - at(r, "lookup_start") for r in ranks)
        assert values["lookup_us.l0"] == pytest.approx(lookup / 1000)
        exposed = max(max(0, at(r, "lookup_done") - at(r, "consumer_arrival")) for r in ranks)
        assert values["exposed_us.l0"] == pytest.approx(exposed / 1000)
        if rank is not None:
            parts = ("recoverable_us.l0", "host_late_us.l0", "peer_late_us.l0", "other_late_us.l0")
            assert sum(values[part] for part in parts) == pytest.approx(values["exposed_us.l0"])
            assert all(values[part] >= 0 for part in parts)
    assert seen > 0


def test_cells_follow_from_the_samples(archive: Path) -> None:
    result = load(archive / "result.json")
    for arm in ("A", "B", "stub"):
        for metric in ("step_us", "lookup_us.l0", "exposed_us", "rows_us.l0", "queue_us"):
            lines = [s for s in samples(archive) if s["arm"] == arm and s["rank"] is None]
            values = [s["values"][metric] for s in lines if metric in s["values"]]
            one = cell(result, arm, metric)
            assert one["n"] == len(values)
            if not values:
                assert one["median"] is None
                assert one["reason"]
                continue
            low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
            assert [one["q1"], one["median"], one["q3"]] == pytest.approx([low, middle, high])
            assert one["mad"] == pytest.approx(np.median(np.abs(np.array(values) - middle)))


def test_what_does_not_apply_is_null_with_a_reason(archive: Path) -> None:
    result = load(archive / "result.json")
    expert = cell(result, "A", "expert_us")
    assert (expert["median"], expert["n"], expert["reason"]) == (None, 0, "parallel.ep is 1")
    assert cell(result, "stub", "lookup_us")["reason"] == "no lookup runs with storage.backing stub"
    assert cell(result, "A", "step_us")["p99"]["value"] is None
    assert "368" in cell(result, "A", "step_us")["p99"]["reason"]
    assert result["conditions"]["nccl"]["reason"]


def test_order_of_the_slots(archive: Path) -> None:
    slots = load(archive / "result.json")["slots"]
    inside = [slot for slot in slots if slot["reroll"] == 0]
    assert [slot["kind"] for slot in inside[:2]] == ["check", "check"]
    blocks = [[s["arm"] for s in inside if s["kind"] == "timed" and s["block"] == b] for b in (0, 1)]
    assert sorted(blocks) == [["A", "B", "B", "A"], ["B", "A", "A", "B"]]
    assert {slot["arm"] for slot in slots if slot["reroll"] == 1} == {"stub"}
    spans = [(s["first_step"], s["first_step"] + s["steps"]) for s in inside if s["kind"] != "check"]
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_the_ledger_is_what_was_observed(archive: Path) -> None:
    ledger = [one for one in load(archive / "result.json")["ledger"] if one["arm"] != "stub"]
    for one in ledger:
        assert one["observed"]["pss_bytes"] == pytest.approx(one["backing_bytes"], rel=0.01)
        assert one["observed"]["backing_allocated_bytes"] == pytest.approx(one["backing_bytes"], rel=0.01)
        assert one["observed"]["backings_counted"] == 4  # dp_sharded: one shard a rank


def test_a_deviation_of_small_private_tables_is_laid_to_the_ranks_themselves(tmp_path: Path) -> None:
    """Beside some MiB of tables the programs' own anonymous memory is much of what a node has more of."""
    bench = Bench(tmp_path)
    result = bench.run({"storage.backing": "anon", "parallel.table_mode": "private", "storage.copies": "one"})
    (entry,) = result["ledger"]
    observed = entry["observed"]
    states = [bench.rank_snapshot(0, "after_load", rank) for rank in range(4)]
    own = [one["rank_state"]["rollup_bytes"]["pss_anon"] - one["mapping"]["pss_bytes"] for one in states]
    assert observed["ranks_own_bytes"] == sum(own)
    assert min(own) > 1 << 20  # code that was relocated, heap, stacks
    (warning,) = [one for one in result["warnings"] if one["figures"].get("figure") == "node_growth"]
    off = observed["node_growth_bytes"] - entry["backing_bytes"]
    by_ranks = 0 < off <= 2 * sum(own)  # else another program was at work beside it
    assert ("The ranks' own memory besides the tables" in warning["next_step"]) == by_ranks


def test_every_requested_page_is_where_it_was_asked_for(archive: Path) -> None:
    for snapshot in load(archive / "result.json")["placement"]["snapshots"]:
        if snapshot["arm"] == "stub" or snapshot["label"] == "after_map":
            continue
        assert snapshot["requested_policy"] == "bind:0"
        for backing in snapshot["backings"]:
            assert backing["observed_shares"] == {"0": 1.0}


def test_verify(archive: Path) -> None:
    assert "every cell and 1 verdict(s) follow" in engram_bench("verify", str(archive)).stdout
    assert json.loads(engram_bench("verify", str(archive), "--json").stdout)["complete"] is True


def test_manifest_is_sha256sum(archive: Path) -> None:
    for line in (archive / "MANIFEST.sha256").read_text().splitlines():
        digest, name = line.split("  ", 1)
        assert hashlib.sha256((archive / name).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("name", ["result.json", "plan.json", "events/rank-2.npy", "log.txt", "topology.xml"])
def test_verify_names_a_changed_file(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    assert name in engram_bench("verify", str(copy), code=5).stderr


def test_verify_names_a_lost_and_an_added_file(copy: Path) -> None:
    (copy / "extra.txt").write_text("x")
    assert "extra.txt" in engram_bench("verify", str(copy), code=5).stderr
    (copy / "extra.txt").unlink()
    (copy / "events" / "rank-0.npy").unlink()
    assert "rank-0.npy" in engram_bench("verify", str(copy), code=5).stderr


def test_verify_finds_a_figure_that_its_samples_do_not_give(copy: Path) -> None:
    result = load(copy / "result.json")
    cell(result, "B", "exposed_us")["median"] += 1
    reseal(copy, result)
    error = engram_bench("verify", str(copy), code=5).stderr
    assert "exposed_us" in error
    assert "median" in error


def test_verify_derives_every_verdict_anew(copy: Path) -> None:
    genuine = load(copy / "result.json")
    changes: list[tuple[Callable[[Any], Any], str]] = [
        (lambda r: r["comparisons"][0].update(verdict="better"), "verdict"),
        (lambda r: r["comparisons"][0]["primary"]["log_ratios"].append(0.1), "primary"),
        (lambda r: r["comparisons"].clear(), "0 comparisons"),
        (lambda r: r["hypotheses"][2].update(standing="supported", why="because"), "hypotheses"),
        (lambda r: r["evidence"].update(delta=0.5), "evidence.delta"),
        (lambda r: r["evidence"]["conditions"].update(complete=False), "complete"),
    ]
    for spoil, named in changes:
        result = json.loads(json.dumps(genuine))
        spoil(result)
        reseal(copy, result)
        assert named in engram_bench("verify", str(copy), code=5).stderr
    reseal(copy, genuine)
    engram_bench("verify", str(copy))


def test_verify_misses_a_cell_that_was_taken_out(copy: Path) -> None:
    result = load(copy / "result.json")
    result["cells"] = [one for one in result["cells"] if (one["arm"], one["metric"]) != ("B", "queue_us")]
    reseal(copy, result)
    assert "the samples have queue_us of arm B" in engram_bench("verify", str(copy), code=5).stderr


def test_verify_finds_a_plan_that_its_hash_is_not_of(copy: Path) -> None:
    document = load(copy / "plan.json")
    document["plan"]["seed"] += 1
    (copy / "plan.json").write_text(json.dumps(document, indent=2) + "\n")
    rehash(copy)
    assert "plan.json" in engram_bench("verify", str(copy), code=5).stderr


def test_each_stage_ends_in_a_barrier_whose_skew_is_metered(archive: Path) -> None:
    for reroll in load(archive / "result.json")["startup"]:
        stages = reroll["stages"]
        for stage in {one["stage"] for one in stages}:
            skews = [one["skew_us"] for one in stages if one["stage"] == stage]
            assert min(skews) == 0, "the last to arrive waits for nobody"


def test_verify_names_a_corrupt_sample_line(copy: Path) -> None:
    file = next((copy / "samples").iterdir())
    lines = file.read_text().splitlines()
    lines[2] = lines[2].replace('"values":', '"value":')
    file.write_text("\n".join(lines) + "\n")
    rehash(copy)
    assert f"{file.name}:3: not a sample" in engram_bench("verify", str(copy), code=5).stderr


def test_verify_refuses_what_is_no_run(tmp_path: Path) -> None:
    assert "no result.json" in engram_bench("verify", str(tmp_path), code=2).stderr
    engram_bench("verify", str(tmp_path / "absent"), code=2)
