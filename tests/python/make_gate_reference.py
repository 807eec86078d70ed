#!/usr/bin/env python3
"""Writes tests/data/domain/gate.bin for the kernels' tests: inputs of the gate and what the slow reference gives.

Layout, little-endian: int32 tokens, copies, dim; then uint16 BF16 bits hidden[tokens][copies][dim],
kv[tokens][(copies + 1) * dim], q[copies][dim], k[copies][dim]; uint8 masked[tokens]; then
float64 expected[tokens][copies][dim]. eps is 1e-6.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import reference

PATH = Path(__file__).resolve().parents[1] / "data" / "domain" / "gate.bin"
TOKENS, COPIES, DIM = 9, 3, 80
EPS = 1e-6


def gate_file() -> tuple[bytes, reference.Floats]:
    """The file's inputs, and the figures expected of them."""
    random = np.random.default_rng(20)

    def bits(*shape: int, centre: float, width: float) -> reference.Bits:
        # Sums of integers: the same on every machine, unlike a normal distribution's logarithms.
        draws = random.integers(-1000, 1001, size=(3, *shape)).sum(axis=0)
        return reference.to_bf16(centre + draws * (width / 1000))

    hidden = bits(TOKENS, COPIES, DIM, centre=0.0, width=1.0)
    kv = bits(TOKENS, (COPIES + 1) * DIM, centre=0.0, width=0.5)
    q = bits(COPIES, DIM, centre=1.0, width=0.3)
    k = bits(COPIES, DIM, centre=1.0, width=0.3)
    hidden[1] = 0  # the mean square is zero, and so is the dot: sign(0) = +1
    hidden[2, 0, : DIM // 2] = 0  # key and hidden do not meet
    kv[2, DIM // 2 : DIM] = 0
    masked = np.zeros(TOKENS, dtype=np.uint8)
    masked[[3, 7]] = 1
    expected = reference.gate(hidden, kv, q, k, [bool(mask) for mask in masked], EPS)
    parts = [part.astype("<u2").tobytes() for part in (hidden, kv, q, k)]
    return b"".join([struct.pack("<3i", TOKENS, COPIES, DIM), *parts, masked.tobytes()]), expected


if __name__ == "__main__":
    inputs, figures = gate_file()
    PATH.write_bytes(inputs + figures.astype("<f8").tobytes())
    print(f"{PATH}: {PATH.stat().st_size} bytes", file=sys.stderr)
