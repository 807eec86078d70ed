"""Runs engram-bench with small tables and reads what it says about pages: for tests here and inside the guest."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BINARY = os.environ.get("ENGRAM_BENCH_BIN", str(ROOT / "build" / "engram-bench"))
PAGE = 4096

# Four ranks, small tables with the real structure, and next to no arithmetic around them.
SMALL: dict[str, Any] = {
    "name": "small",
    "question": "Where do the pages lie?",
    "model": {
        "preset": "deepseek-v4.1-flash",
        "table_scale": 0.00001,
        "hidden_size": 16,
        "hc_mult": 1,
        "backbone": {"layers": 15, "weight_bytes_per_layer": 1024, "flops_per_token_per_layer": 2048},
    },
    "parallel": {"tp": 2, "dp": 2, "table_mode": "shared"},
    "device": {"backend": "cpu"},
    "storage": {"backing": "shm", "policy": "none"},
    "workload": {
        "kind": "steps",
        "batches": [{"decode": 2}],
        "tokens": {"kind": "uniform"},
        "steps": 1,
        "warmup": 0,
        "burn_in": 0,
    },
    # Page truth in these tests is that of the snapshots.
    "experiment": {"pairs": 1, "blocks": 1, "observed_pass": False},
    "seed": 1,
}


# 12 MiB of tables: several huge pages in each shard.
SOME_HUGE_PAGES = {"model.table_scale": 0.00005}

# prctl(PR_SET_THP_DISABLE) is inherited by the ranks, while the switches in /sys still say yes.
NO_HUGE_PAGES = (
    sys.executable,
    "-c",
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])",
)


def refusing(*system_calls: int) -> tuple[str, ...]:
    """A command prefix: these calls, by their numbers on x86-64, are answered by EPERM, as in a container."""
    return (sys.executable, str(ROOT / "tests" / "seccomp.py"), ",".join(str(one) for one in system_calls))


def engram_bench(*arguments: str, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs it; `options` are those of subprocess.run."""
    done = subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=300, check=False, **options)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def run_scenario(scenario: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    """Into folder/run."""
    file = folder / "scenario.json"
    file.write_text(json.dumps(scenario))
    return engram_bench("run", str(file), "-o", str(folder / "run"))


def rehash(folder: Path) -> None:
    """A manifest that fits what lies in a run's folder now."""
    manifest = folder / "MANIFEST.sha256"
    names = [line[66:] for line in manifest.read_text().splitlines()]
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    manifest.write_text("".join(lines))


class Bench:
    """One scenario and its output folder; settings are dotted keys, laid over SMALL and `base`."""

    def __init__(self, folder: Path, base: dict[str, Any] | None = None) -> None:
        self.base = base or {}
        self.output = folder / "out"
        self.file = folder / "scenario.json"
        self.error = ""
        self.text = ""

    def run(
        self, settings: dict[str, Any], *, code: int = 0, before: tuple[str, ...] = (), options: tuple[str, ...] = ()
    ) -> Any:
        """The result (None where there is none). `before`: a command that starts the program (numactl ...)."""
        scenario = copy.deepcopy(SMALL)
        for key, value in (self.base | settings).items():
            at = scenario
            *path, last = key.split(".")
            for part in path:
                at = at.setdefault(part, {})
            at[last] = value
        self.file.write_text(json.dumps(scenario))
        command = [*before, BINARY, "run", str(self.file), "-o", str(self.output), "--force", "--no-progress", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
        self.error, self.text = done.stderr, done.stdout
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        result = self.output / "result.json"
        return json.loads(result.read_text()) if result.exists() else None

    def rank_snapshot(self, reroll: int, label: str, rank: int) -> Any:
        return json.loads((self.output / f"placement/reroll-{reroll}/{label}-rank-{rank}.json").read_text())


def snapshots(result: Any, arm: str, label: str = "steady") -> list[Any]:
    """Of an arm, one a re-roll."""
    found = [one for one in result["placement"]["snapshots"] if one["arm"] == arm and one["label"] == label]
    assert found, f"no snapshot {label} of arm {arm}"
    return found


def pages(result: Any, arm: str = "A", label: str = "steady") -> list[dict[int, int]]:
    """Pages by node of each backing of each re-roll of an arm, in the unit of numa_maps (pages of the pool for hugetlb,
    else 4 KiB). numa_maps and move_pages must agree."""
    out = []
    for snapshot in snapshots(result, arm, label):
        for backing in snapshot["backings"]:
            unit = backing["kernel_page_bytes"]
            by_node = {int(node): count for node, count in backing["node_pages"].items()}
            moved: dict[int, int] = {}
            for table in backing["tables"]:
                assert table["move_pages"]["unqueryable"] == {}
                assert table["move_pages"]["not_mapped_pages"] == 0
                for node, count in table["move_pages"]["node_pages"].items():
                    moved[int(node)] = moved.get(int(node), 0) + count
            assert moved == {node: count * unit // PAGE for node, count in by_node.items()}
            assert sum(by_node.values()) * unit == backing["bytes"]
            out.append(by_node)
    return out


def shmem_bytes() -> int:
    """Shared memory of this machine, files in tmpfs among it."""
    found = re.search(r"^Shmem:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def within_one_page(by_node: dict[int, int], nodes: list[int]) -> bool:
    """Each of `nodes` within one page of its equal share, and nothing elsewhere."""
    share = sum(by_node.values()) / len(nodes)
    return set(by_node) == set(nodes) and all(abs(by_node[node] - share) <= 1 for node in nodes)


def local_row_shares(result: Any, arm: str) -> list[float]:
    """Of each rank and layer."""
    (found,) = [one for one in result["arms"] if one["name"] == arm]
    lookups = [lookup for rank in found["work_per_rank"] for lookup in rank["lookups"]]
    assert all(one["located_rows"] > 0 for one in lookups)
    assert all(one["unlocated_rows"] == 0 for one in lookups)
    return [one["local_row_share"] for one in lookups]
