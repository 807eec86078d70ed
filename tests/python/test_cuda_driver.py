"""What a run says where the CUDA driver is missing, too old, or has no device. Needs the CUDA module, no GPU."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("ENGRAM_BENCH_BIN", str(ROOT / "build" / "engram-bench")))
FAKE_DRIVER = BINARY.parent / "tests" / "gpu" / "fake_driver"
SKIPPED = 77

pytestmark = pytest.mark.skipif(
    not (FAKE_DRIVER / "libcuda.so.1").exists(), reason="this build has no CUDA module (-Dcuda)"
)


def run(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(BINARY), "run", str(ROOT / "scenarios" / "tiny.json"), "-o", str(folder / "out"), "-q"]
    command += ["--set", "device.backend=cuda"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment}
    )


def with_driver(folder: Path) -> str:
    return f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"


def test_a_driver_that_does_not_load_is_a_skip_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")
    done = run(tmp_path, LD_LIBRARY_PATH=with_driver(tmp_path))
    assert done.returncode == SKIPPED, done.stderr
    assert "no CUDA driver" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("version", ["11080", "12020"])
def test_a_driver_older_than_the_toolkit_says_both_versions(tmp_path: Path, version: str) -> None:
    done = run(tmp_path, LD_LIBRARY_PATH=with_driver(FAKE_DRIVER), FAKE_CUDA_VERSION=version)
    assert done.returncode == SKIPPED, done.stderr
    assert f"supports CUDA {int(version) // 1000}.{int(version) % 1000 // 10}" in done.stderr
    assert "update the driver" in done.stderr


def test_a_driver_without_a_device_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, LD_LIBRARY_PATH=with_driver(FAKE_DRIVER), FAKE_CUDA_VERSION="99000")
    assert done.returncode == SKIPPED, done.stderr
    assert "no device is visible" in done.stderr


def test_auto_falls_to_the_cpu_and_the_result_says_so(tmp_path: Path) -> None:
    command = [str(BINARY), "run", str(ROOT / "scenarios" / "tiny.json"), "--dry-run", "--set", "device.backend=auto"]
    environment = {**os.environ, "LD_LIBRARY_PATH": with_driver(FAKE_DRIVER), "FAKE_CUDA_VERSION": "11080"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "would stop" not in done.stdout
