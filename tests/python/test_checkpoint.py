"""Checkpoints written by the safetensors package: rows against NumPy, a whole run on them, and files that are wrong."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

safetensors = pytest.importorskip("safetensors")

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENGRAM_BENCH_BIN", str(ROOT / "build" / "engram-bench"))

# Preset tiny: 8 heads, 64 elements a row, 2 scales, hidden 64, hc_mult 2.
ROWS, DIM, HIDDEN, HC = 97 + 101 + 103 + 107 + 109 + 113 + 127 + 131, 64, 64, 2
DTYPES = {"F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "BF16": "bfloat16", "U8": "uint8"}

Tensors = dict[str, tuple[str, tuple[int, ...], np.ndarray]]


def write(path: Path, tensors: Tensors) -> None:
    """One file; the package's interface changed from dictionaries to TensorSpec."""
    specs: dict[str, Any] = {}
    for name, (dtype, shape, data) in tensors.items():
        if hasattr(safetensors, "TensorSpec"):
            specs[name] = safetensors.TensorSpec(
                dtype=DTYPES[dtype], shape=list(shape), data_ptr=data.ctypes.data, data_len=data.nbytes
            )
        else:
            specs[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data": data.tobytes()}
    safetensors.serialize_file(specs, str(path), metadata={"format": "pt"})


def tiny_tensors() -> Tensors:
    random = np.random.default_rng(3)
    weight = random.integers(0, 256, (ROWS, DIM), dtype=np.uint8)
    weight[(weight & 0x7F) == 0x7F] ^= 1  # no NaN
    n, k = HIDDEN * (HC + 1), 8 * DIM
    wkv = random.integers(0, 256, (n, k), dtype=np.uint8)
    wkv[(wkv & 0x7F) == 0x7F] ^= 1
    bf16 = random.integers(0x3F00, 0x3F80, (HC, HIDDEN)).astype(np.uint16)
    prefix = "layers.0.engram."
    return {
        prefix + "embed.weight": ("F8_E4M3", (ROWS, DIM), weight),
        prefix + "embed.scale": ("F8_E8M0", (ROWS, 2), random.integers(118, 130, (ROWS, 2), dtype=np.uint8)),
        prefix + "wkv.weight": ("F8_E4M3", (n, k), wkv),
        prefix + "wkv.scale": ("F8_E8M0", (n // 32, k // 32), np.full((n // 32, k // 32), 116, np.uint8)),
        prefix + "q_weight": ("BF16", (HC, HIDDEN), bf16),
        prefix + "k_weight": ("BF16", (HC, HIDDEN), bf16.copy()),
    }


@pytest.fixture
def tensors() -> Tensors:
    return tiny_tensors()


def save(folder: Path, tensors: Tensors) -> Path:
    folder.mkdir(exist_ok=True)
    names = list(tensors)
    write(folder / "model-00001-of-00002.safetensors", {name: tensors[name] for name in names[:1]})
    write(folder / "model-00002-of-00002.safetensors", {name: tensors[name] for name in names[1:]})
    return folder


def e4m3(byte: int) -> float:
    exponent, mantissa = byte >> 3 & 15, byte & 7
    value = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -value if byte & 0x80 else value


E4M3 = np.array([e4m3(byte) for byte in range(256)], dtype=np.float32)


def bf16_bits(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32)
    rounded: np.ndarray = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return rounded


def lookup(folder: Path, tmp_path: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps([1, 5, 31, 0, 5, 7]))
    done = subprocess.run(
        [BINARY, "inspect", "lookup", "--model", "tiny", "--tokens", str(tokens), "--checkpoint", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def test_looked_up_rows_are_the_files(tmp_path: Path, tensors: Tensors) -> None:
    report = json.loads(lookup(save(tmp_path / "checkpoint", tensors), tmp_path).stdout)
    weight = tensors["layers.0.engram.embed.weight"][2]
    scale = tensors["layers.0.engram.embed.scale"][2]
    seen = 0
    for token in report["rows"]:
        for entry in token:
            row = entry["row"]
            scales = (scale[row].astype(np.uint32) << 23).view(np.float32)
            wanted = bf16_bits(E4M3[weight[row]] * np.repeat(scales, 32))
            found = np.array([int(entry["bf16"][i : i + 4], 16) for i in range(0, 4 * DIM, 4)], dtype=np.uint16)
            assert (found == wanted).all(), f"row {row}"
            seen += 1
    assert seen == 6 * 8


def run_on(folder: Path, tmp_path: Path, **parallel: Any) -> subprocess.CompletedProcess[str]:
    scenario = {
        "name": "checkpoint",
        "question": "Does a run read the checkpoint's rows?",
        "model": {
            "preset": "tiny",
            "backbone": {"layers": 2, "weight_bytes_per_layer": 8192, "flops_per_token_per_layer": 16384},
        },
        "parallel": {"tp": 2, "dp": 2, **parallel},
        "device": {"backend": "cpu"},
        "storage": {"backing": "shm", "policy": "none", "checkpoint": str(folder)},
        "workload": {"kind": "steps", "batches": [{"prefill": [8], "decode": 2}], "steps": 4},
    }
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(scenario))
    return subprocess.run(
        [BINARY, "run", str(path), "-o", str(tmp_path / "out"), "--no-progress"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("mode", ["shared", "private", "dp_sharded"])
def test_run_checks_its_rows_against_the_checkpoint(tmp_path: Path, tensors: Tensors, mode: str) -> None:
    done = run_on(save(tmp_path / "checkpoint", tensors), tmp_path, table_mode=mode)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "result.json").read_text())["complete"] is True


def test_wrong_files_name_tensor_and_file(tmp_path: Path, tensors: Tensors) -> None:
    name = "layers.0.engram.embed.weight"
    _, shape, data = tensors[name]

    def refused(case: str, changed: Tensors, *parts: str) -> None:
        error = lookup(save(tmp_path / case, changed), tmp_path, code=5).stderr
        for part in (name, "model-00001-of-00002.safetensors", *parts):
            assert part in error, error

    refused("dtype", {**tensors, name: ("U8", shape, data)}, "U8", "F8_E4M3")
    refused("shape", {**tensors, name: ("F8_E4M3", (ROWS, 32), data[:, :32].copy())}, f"[{ROWS}, 32]")
    refused("rows", {**tensors, name: ("F8_E4M3", (ROWS - 1, DIM), data[:-1].copy())}, str(ROWS), str(ROWS - 1))


def test_truncated_file_names_tensor_and_file(tmp_path: Path, tensors: Tensors) -> None:
    folder = save(tmp_path / "checkpoint", tensors)
    file = folder / "model-00002-of-00002.safetensors"
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 1)
    for error in (lookup(folder, tmp_path, code=5).stderr, run_on(folder, tmp_path, table_mode="shared").stderr):
        assert "layers.0.engram." in error
        assert "model-00002-of-00002.safetensors" in error
        assert "truncated" in error
    assert not (tmp_path / "out").exists()


def test_missing_tensor_and_missing_folder(tmp_path: Path, tensors: Tensors) -> None:
    del tensors["layers.0.engram.k_weight"]
    assert "layers.0.engram.k_weight" in lookup(save(tmp_path / "checkpoint", tensors), tmp_path, code=5).stderr
    assert "nowhere" in lookup(tmp_path / "nowhere", tmp_path, code=1).stderr
