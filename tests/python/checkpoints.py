"""Checkpoint folders for tests, written by the safetensors package in dtypes that NumPy lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from reference import Model, head_rows

Array = npt.NDArray[Any]
WIDTH = {"float8_e4m3fn": 1, "float8_e8m0fnu": 1, "bfloat16": 2}


def write(path: Path, tensors: dict[str, tuple[str, Array]]) -> None:
    """Writes tensors given as (dtype, array of its bit patterns: uint8 or uint16)."""
    import safetensors

    kept = {name: (dtype, np.ascontiguousarray(array)) for name, (dtype, array) in tensors.items()}
    assert all(array.itemsize == WIDTH[dtype] for dtype, array in kept.values())
    specs: dict[str, Any]
    if hasattr(safetensors, "TensorSpec"):  # from 0.8 on
        specs = {name: safetensors.TensorSpec(dtype=dtype, shape=array.shape, data_ptr=array.ctypes.data,
                                              data_len=array.nbytes) for name, (dtype, array) in kept.items()}
    else:
        specs = {name: {"dtype": dtype, "shape": list(array.shape), "data": array.tobytes()}
                 for name, (dtype, array) in kept.items()}
    safetensors.serialize_file(specs, str(path))


def random_tensors(model: Model, seed: int, table_scale: float = 1.0) -> dict[str, tuple[str, Array]]:
    """Every Engram tensor of a model, named as in the checkpoint; codes of NaN and extreme scales among the rows."""
    random = np.random.default_rng(seed)
    out, wide = model.hidden_size * (model.hc_mult + 1), model.columns * model.dim
    tensors: dict[str, tuple[str, Array]] = {}
    for layer, columns in zip(model.layers, head_rows(model, table_scale), strict=True):
        rows = sum(columns)
        name = f"layers.{layer}.engram."
        extremes = np.array([0, 1, 7, 118, 127, 134, 200, 254, 255], dtype=np.uint8)
        small = np.arange(118, 124, dtype=np.uint8)
        bf16 = (np.float32(1) + random.random((2, model.hc_mult, model.hidden_size), dtype=np.float32)).view(np.uint32)
        weights = random.integers(0, 256, size=(out, wide), dtype=np.uint8)
        weights[(weights & 0x7F) == 0x7F] ^= 1  # the projection holds no NaN
        tensors |= {
            name + "embed.weight": ("float8_e4m3fn", random.integers(0, 256, size=(rows, model.dim), dtype=np.uint8)),
            name + "embed.scale": ("float8_e8m0fnu", random.choice(extremes, size=(rows, model.dim // model.block))),
            name + "wkv.weight": ("float8_e4m3fn", weights),
            name + "wkv.scale": ("float8_e8m0fnu", random.choice(small, size=(-(-out // 32), -(-wide // 32)))),
            name + "q_weight": ("bfloat16", (bf16[0] >> 16).astype(np.uint16)),
            name + "k_weight": ("bfloat16", (bf16[1] >> 16).astype(np.uint16)),
        }
    return tensors
