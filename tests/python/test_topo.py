"""`topo` beside what numactl, numastat, lstopo and the kernel say of the same machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from bench import BINARY, ROOT, refusing

SCHED_GETAFFINITY = 204  # x86-64
DATA = ROOT / "tests" / "data" / "topology"


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done


def topo(*arguments: str) -> Any:
    return json.loads(run("topo", "--json", *arguments).stdout)


def output_of(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def expand(text: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def test_nodes_cpus_and_distances_equal_numactl() -> None:
    text = output_of("numactl", "--hardware")
    ours = topo()
    cpus = {int(node): [int(cpu) for cpu in found.split()] for node, found in re.findall(r"node (\d+) cpus:(.*)", text)}
    assert {node["node"]: node["cpus"] for node in ours["nodes"]} == cpus
    rows = re.findall(r"^\s+\d+:((?:\s+\d+)+)\s*$", text.split("node distances:")[1], re.MULTILINE)
    assert ours["distances"] == [[int(value) for value in row.split()] for row in rows]


def test_memory_equals_the_kernels_and_numastats() -> None:
    nodes = topo()["nodes"]
    text = output_of("numastat", "-m")
    line = next(line for line in text.splitlines() if line.startswith("MemTotal"))
    stated = [float(value) for value in line.split()[1:-1]]  # MB, the last column is the total
    assert len(nodes) == len(stated)
    for node, megabytes in zip(nodes, stated, strict=True):
        # A virtual machine may be given memory between the two readings.
        assert node["memory_bytes"] <= megabytes * 2**20 * 1.001
        assert node["memory_bytes"] > 0
        assert 0 < node["free_bytes"] <= megabytes * 2**20


def test_xml_is_read_by_lstopo() -> None:
    if shutil.which("lstopo") is None and shutil.which("lstopo-no-graphics") is None:
        pytest.skip("lstopo is not installed")
    tool = "lstopo-no-graphics" if shutil.which("lstopo-no-graphics") else "lstopo"
    xml = run("topo", "--xml").stdout
    read = subprocess.run(
        [tool, "--if", "xml", "-i", "-", "--of", "console", "--only", "numanode"],
        input=xml, capture_output=True, text=True, timeout=60, check=True,
    ).stdout
    found = [int(number) for number in re.findall(r"NUMANode L#\d+ \(P#(\d+)", read)]
    assert found == [node["node"] for node in topo()["nodes"]]


def test_allowed_cpus_follow_taskset() -> None:
    first = min(os.sched_getaffinity(0))
    if shutil.which("taskset") is None:
        pytest.skip("taskset is not installed")
    done = subprocess.run(
        ["taskset", "-c", str(first), BINARY, "topo", "--json"], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout)["allowed_cpus"] == [first]


def test_limits_equal_the_systems() -> None:
    import resource

    limits = topo()["limits"]
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    for key, value in (("memlock_soft_bytes", soft), ("memlock_hard_bytes", hard)):
        assert limits[key] == ("unlimited" if value == resource.RLIM_INFINITY else value)
    shm = os.statvfs("/dev/shm")
    assert limits["dev_shm"]["bytes"] == shm.f_blocks * shm.f_frsize


def test_huge_page_pools_equal_sysfs() -> None:
    for node in topo()["nodes"]:
        folder = Path(f"/sys/devices/system/node/node{node['node']}/hugepages")
        if not folder.is_dir():
            pytest.skip("this kernel has no huge page pools")
        stated = {int(re.sub(r"\D", "", pool.name)) * 1024: pool / "nr_hugepages" for pool in folder.iterdir()}
        ours = {pool["page_bytes"]: pool["total_pages"] for pool in node["huge_pages"]}
        assert ours == {page_bytes: int(pool.read_text()) for page_bytes, pool in stated.items()}


@pytest.mark.parametrize(
    ("name", "nodes", "far", "gpu_nodes"),
    [
        ("two-socket-8gpu.xml", 2, 21, [0, 0, 0, 0, 1, 1, 1, 1]),
        ("nps4-8gpu.xml", 8, 32, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_another_machine(name: str, nodes: int, far: int, gpu_nodes: list[int]) -> None:
    ours = topo("--input", str(DATA / name))
    assert len(ours["nodes"]) == nodes
    assert ours["distances"][0][-1] == far
    assert [device["node"] for device in ours["devices"] if device["kind"] == "gpu"] == gpu_nodes
    assert ours["limits"]["value"] is None  # another machine's limits are not in its file
    assert all("free_bytes" not in node for node in ours["nodes"])
    table = run("topo", "--input", str(DATA / name)).stdout
    assert table.count("H200") == 8


def test_a_node_behind_a_socket_has_none_of_its_cpus() -> None:
    """hwloc writes the cpuset of the socket into it."""
    ours = topo("--input", str(DATA / "two-socket-cxl.xml"))
    assert [node["cpus"] for node in ours["nodes"]] == [[0, 1, 2, 3], [4, 5, 6, 7], []]
    assert ours["distances"] == [[10, 21, 31], [21, 10, 33], [31, 33, 10]]
    assert [device["node"] for device in ours["devices"]] == [0, 1]


def test_devices_links_and_pools_of_another_machine() -> None:
    ours = topo("--input", str(DATA / "two-socket-8gpu.xml"))
    assert [node["memory_bytes"] for node in ours["nodes"]] == [1 << 39, 1 << 39]
    assert [node["cpus"] for node in ours["nodes"]] == [list(range(8)), list(range(8, 16))]
    assert [[pool["total_pages"] for pool in node["huge_pages"]] for node in ours["nodes"]] == [[0, 0], [1024, 200]]
    assert [pool["page_bytes"] for pool in ours["nodes"][0]["huge_pages"]] == [2 << 20, 1 << 30]
    assert all(pool["free_pages"]["value"] is None for node in ours["nodes"] for pool in node["huge_pages"])
    assert [device["node"] for device in ours["devices"] if device["kind"] == "network"] == [0, 1]
    assert all(round(device["link"]["gb_per_s"]) == 63 for device in ours["devices"])
    assert all(re.fullmatch(r"0000:[0-9a-f]{2}:00\.0", device["bus_id"]) for device in ours["devices"])
    table = run("topo", "--input", str(DATA / "two-socket-8gpu.xml")).stdout
    assert "2.0 MiB: 1024, 1.0 GiB: 200" in table
    # hwloc's XML of it is the same machine again.
    again = run("topo", "--input", str(DATA / "two-socket-8gpu.xml"), "--xml").stdout
    assert again.count("<page_type") == 6


def test_this_machine_read_back_from_its_own_xml(tmp_path: Path) -> None:
    file = tmp_path / "machine.xml"
    file.write_text(run("topo", "--xml").stdout)
    live, read = topo(), topo("--input", str(file))
    assert [node["cpus"] for node in read["nodes"]] == [node["cpus"] for node in live["nodes"]]
    assert [device["bus_id"] for device in read["devices"]] == [device["bus_id"] for device in live["devices"]]
    for ours, theirs in zip(live["nodes"], read["nodes"], strict=True):
        totals = {pool["page_bytes"]: pool["total_pages"] for pool in ours["huge_pages"]}
        assert {pool["page_bytes"]: pool["total_pages"] for pool in theirs["huge_pages"]} == totals


def test_machine_files_are_what_their_script_writes(tmp_path: Path) -> None:
    script = tmp_path / "make_topologies.py"
    shutil.copy(DATA / "make_topologies.py", script)
    subprocess.run(["python3", str(script)], check=True, timeout=60)
    for name in ("two-socket-8gpu.xml", "nps4-8gpu.xml", "two-socket-cxl.xml"):
        assert (tmp_path / name).read_text() == (DATA / name).read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--input", "/nonexistent.xml"),
        ("--input", ""),
        ("--input", str(DATA / "broken.xml")),
        ("--xml", "--json"),
        ("--nonsense",),
    ],
)
def test_bad_input_is_usage(arguments: tuple[str, ...]) -> None:
    done = run("topo", *arguments, code=2)
    assert done.stdout == ""
    assert done.stderr.strip()


def test_table_has_the_same_nodes() -> None:
    table = run("topo").stdout
    for node in topo()["nodes"]:
        assert re.search(rf"^\s+{node['node']}\s+[\d.]+ [KMGT]iB", table, re.MULTILINE)
    assert not any(line != line.rstrip() for line in table.splitlines())


@pytest.mark.parametrize(
    ("pattern", "by", "text"),
    [
        (r'(type="NUMANode" os_index="1".*?local_memory=)"[0-9]+"', r'\1"18446744073709551615"', "more memory"),
        (r'type="NUMANode" os_index="1"', 'type="NUMANode" os_index="0"', "number 0"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(tmp_path: Path, pattern: str, by: str, text: str) -> None:
    changed, count = re.subn(pattern, by, (DATA / "two-socket-8gpu.xml").read_text(), count=1, flags=re.DOTALL)
    assert count == 1
    file = tmp_path / "machine.xml"
    file.write_text(changed)
    assert text in run("topo", "--input", str(file), code=2).stderr


def test_a_pair_that_a_file_lacks_has_no_distance(tmp_path: Path) -> None:
    text = (DATA / "nps4-8gpu.xml").read_text()
    file = tmp_path / "machine.xml"
    matrix = re.search(r"<distances2 .*?</distances2>", text, re.DOTALL)
    assert matrix is not None
    two = re.sub(r'nbobjs="8"', 'nbobjs="2"', matrix[0])
    two = re.sub(r"<indexes.*?</indexes>", '<indexes length="4">0 1 </indexes>', two, flags=re.DOTALL)
    two = re.sub(r"<u64values.*</u64values>", '<u64values length="12">10 12 12 10 </u64values>', two, flags=re.DOTALL)
    file.write_text(text.replace(matrix[0], two))
    distances = topo("--input", str(file))["distances"]
    assert distances[0] == [10, 12, *[None] * 6]
    assert distances[7] == [None] * 8
    assert "    -" in run("topo", "--input", str(file)).stdout


def test_distances_of_a_file_of_hwloc_1(tmp_path: Path) -> None:
    if shutil.which("lstopo-no-graphics") is None:
        pytest.skip("lstopo-no-graphics is not installed")
    source = DATA / "two-socket-8gpu.xml"
    old = tmp_path / "v1.xml"
    command = ["lstopo-no-graphics", "-i", str(source), "--of", "xml", "--export-xml-flags", "v1", "-f", str(old)]
    subprocess.run(command, check=True, timeout=60)
    assert topo("--input", str(old))["distances"] == topo("--input", str(source))["distances"] != []


def test_a_refused_sched_getaffinity_is_named() -> None:
    """hwloc alone would ask for ever."""
    command = [*refusing(SCHED_GETAFFINITY), BINARY, "topo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "sched_getaffinity" in done.stderr
