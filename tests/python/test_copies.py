"""Copies, consumer placement, weighted shares and arms of two keys, on whatever machine this is."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENGRAM_BENCH_BIN", str(ROOT / "build" / "engram-bench"))
NODES = sorted(int(one.name[4:]) for one in Path("/sys/devices/system/node").glob("node[0-9]*"))
one_node = pytest.mark.skipif(len(NODES) != 1, reason="this machine has several NUMA nodes")

TINY: dict[str, Any] = {
    "name": "tiny-copies",
    "model": {
        "preset": "tiny",
        "backbone": {"layers": 2, "weight_bytes_per_layer": 8192, "flops_per_token_per_layer": 16384},
    },
    "parallel": {"tp": 2, "dp": 2, "table_mode": "shared"},
    "device": {"backend": "cpu"},
    "storage": {"backing": "shm", "policy": f"bind:{NODES[0]}"},
    "workload": {"kind": "steps", "batches": [{"decode": 4}], "steps": 3},
    "experiment": {"pairs": 1, "blocks": 1},
}
A3 = {
    "factor": "storage.copies",
    "arms": {"one": "one", "per-numa-node": "per-numa-node"},
    "joint_arms": {"consumer": {"storage.policy": "consumer", "device.rank_map": "shard-near"}},
    "pairs": 1,
    "blocks": 1,
}


def bench(
    folder: Path, *arguments: str, code: int = 0, command: str = "run", **sections: Any
) -> tuple[Any, subprocess.CompletedProcess[str]]:
    scenario = {key: {**value} if isinstance(value, dict) else value for key, value in TINY.items()}
    for key, value in sections.items():
        scenario[key] = {**scenario[key], **value} if key != "experiment" and key in scenario else value
    file = folder / "scenario.json"
    file.write_text(json.dumps(scenario))
    output = ["-o", str(folder / "out"), "--force"] if command == "run" else []
    line = [BINARY, command, str(file), *output, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    result = folder / "out" / "result.json"
    return (json.loads(result.read_text()) if result.exists() else None), done


@one_node
def test_copies_on_one_node_are_a_skip(tmp_path: Path) -> None:
    _, done = bench(tmp_path, code=77, storage={"copies": "per-numa-node"})
    assert "storage.copies per-numa-node: this machine has one NUMA node with memory" in done.stderr
    _, done = bench(tmp_path, "--json", command="plan", storage={"copies": "per-numa-node"})
    assert [one["exit"] for one in json.loads(done.stdout)["obstacles"]] == [77]
    assert not list(tmp_path.glob("out"))


@one_node
def test_consumer_on_one_node_lies_there(tmp_path: Path) -> None:
    result, _ = bench(tmp_path, storage={"policy": "consumer"})
    (effective,) = result["effective"]
    assert [one["node"] for one in effective["backings"]] == NODES * 2
    snapshot = result["placement"]["snapshots"][-1]
    assert snapshot["requested_policy"] == "consumer"
    assert [one["policy"] for one in snapshot["backings"]] == [f"bind:{NODES[0]}"] * 2


@one_node
def test_weighted_on_one_node_is_all_of_it(tmp_path: Path) -> None:
    result, _ = bench(tmp_path, storage={"policy": f"weighted:{NODES[0]}=3"})
    for backing in result["placement"]["snapshots"][-1]["backings"]:
        assert backing["observed_shares"] == backing["requested_shares"] == {str(NODES[0]): 1.0}
    bench(tmp_path, code=77, storage={"policy": "weighted:0=3,63=1"})


def test_rows_are_located_in_every_timed_step(tmp_path: Path) -> None:
    result, _ = bench(tmp_path, workload={"batches": [{"decode": 4}], "steps": 7}, experiment={"pairs": 1, "blocks": 2})
    for rank in result["arms"][0]["work_per_rank"]:
        for lookup in rank["lookups"]:
            # Tokens x columns of the shard x steps x slots of a block (one arm: one) x blocks.
            assert lookup["located_rows"] + lookup["unlocated_rows"] == 4 * 4 * 7 * 2
            assert lookup["located_rows"] > lookup["rows_last_step"]


@one_node
def test_a_rehearsal_of_a3_runs_all_three_arms_and_voids_them(tmp_path: Path) -> None:
    result, _ = bench(tmp_path, "--allow-single-node", experiment=A3)
    assert [one["name"] for one in result["arms"]] == ["one", "per-numa-node", "consumer"]
    assert [one["joint_keys"] for one in result["arms"]] == [[], [], ["storage.policy", "device.rank_map"]]
    assert {one["provenance"]["kind"] for one in result["arms"]} == {"research"}
    for comparison in result["comparisons"]:
        assert comparison["chain"]["links"][0]["status"] == "void"
    changes = [one["changes"] for one in result["comparisons"]]
    assert changes == [["storage.copies"], ["storage.policy", "device.rank_map"]]
    ledgers = {one["arm"]: one for one in result["ledger"]}
    assert [one["shard"] for one in ledgers["per-numa-node"]["copies"]] == [0, 1]  # one node: one copy each
    assert ledgers["one"]["copies"] == []
    subprocess.run([BINARY, "verify", str(tmp_path / "out")], check=True, capture_output=True)


def test_an_arm_of_two_keys_is_refused_where_no_exception_names_it(tmp_path: Path) -> None:
    free = {**A3, "joint_arms": {"x": {"storage.policy": "bind:0", "prefetch.submit": "at_consume"}}}
    _, done = bench(tmp_path, code=2, command="plan", experiment=free)
    assert "an arm changes one key, the factor storage.copies" in done.stderr
    assert "storage.policy consumer with device.rank_map shard-near" in done.stderr


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ("weighted:0=0", "a weight is a number from 1 to 255"),
        ("weighted:0=1,0=2", "NUMA node 0 has two weights"),
        ("bind:0,,1", "expected NUMA nodes, as in"),
        ("bind:0,0", "names a node twice"),
        ("interleave:1-0", "runs backwards"),
    ],
)
def test_bad_policies_are_usage_errors(tmp_path: Path, policy: str, text: str) -> None:
    _, done = bench(tmp_path, code=2, command="plan", storage={"policy": policy})
    assert text in done.stderr


@pytest.mark.parametrize("name", ["a3", "a3-small", "a3-lookup", "a3-lookup-small"])
def test_the_shipped_scenarios_are_a3(name: str) -> None:
    done = subprocess.run(
        [BINARY, "plan", str(ROOT / "scenarios" / f"{name}.json"), "--json"], capture_output=True, check=True
    )
    plan = json.loads(done.stdout)
    bound = "hbm" if "lookup" in name else "stub"  # without a lookup nothing of it alone is left to time
    assert [one["name"] for one in plan["arms"]] == ["one", "per-numa-node", "consumer", "stock", bound]
    assert [one["provenance"] for one in plan["arms"]] == ["research", "research", "research", "stock", "research"]
