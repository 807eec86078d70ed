"""A straightforward Triton lookup of the same contract as kernels/lookup.cu: the baseline ours is compared with.

Tiles of 16 rows, all columns of a row in one load, a persistent grid of min(tiles, cap) programs. `ids` is flat
[tokens * heads]; ids outside [0, table_rows) give zero rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TILE_ROWS = 16


class DevicePointer:
    """A raw device address that Triton takes as a pointer argument."""

    def __init__(self, address: int, dtype: torch.dtype) -> None:
        self.address = address
        self.dtype = dtype

    def data_ptr(self) -> int:
        return self.address


@triton.jit  # type: ignore[untyped-decorator]
def lookup_kernel(  # type: ignore[no-untyped-def]
    ids, weights, scales, out, rows, table_rows, tiles, DIM: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr
):
    columns = tl.arange(0, DIM)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = tile * TILE + tl.arange(0, TILE)
        inside = row < rows
        index = tl.load(ids + row, mask=inside, other=-1)
        found = (index >= 0) & (index < table_rows)
        place = tl.where(found, index, 0).to(tl.int64)
        weight = tl.load(weights + place[:, None] * DIM + columns[None, :], mask=found[:, None], other=0.0)
        scale = tl.load(
            scales + place[:, None] * (DIM // BLOCK) + (columns // BLOCK)[None, :], mask=found[:, None], other=0
        )
        factor = (scale.to(tl.int32) << 23).to(tl.float32, bitcast=True)
        value = (weight.to(tl.float32) * factor).to(tl.bfloat16)
        tl.store(out + row.to(tl.int64)[:, None] * DIM + columns[None, :], value, mask=inside[:, None])


def lookup(
    ids: torch.Tensor,
    weights: DevicePointer,
    scales: DevicePointer,
    out: torch.Tensor,
    table_rows: int,
    cap: int,
    num_warps: int = 4,
) -> None:
    """Launches the kernel on the current stream. out: [rows, 256] BF16."""
    rows = ids.numel()
    tiles = triton.cdiv(rows, TILE_ROWS)
    lookup_kernel[(min(tiles, cap),)](
        ids, weights, scales, out, rows, table_rows, tiles, DIM=256, BLOCK=32, TILE=TILE_ROWS, num_warps=num_warps
    )
