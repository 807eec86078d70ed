"""A slow reference of the Engram domain in Python and NumPy, written from the definitions and not from the C++ code.

Plain loops over plain integers: what it says is easy to believe. Token ids are compressed ids, -1 is a dead token, rows
are BF16 bit patterns in uint16 arrays.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
DEAD = -1
NAN_BITS = 0x7FC0  # the one NaN of a dequantised row

Bits = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Model:
    """What a model states; the fields are the keys of a scenario's "model"."""

    layers: Sequence[int] = (1, 14)
    ngram_sizes: Sequence[int] = (2, 3, 4)
    heads_per_ngram: int = 8
    prime_start: int = 16_000_000
    head_rows: Sequence[int] = ()
    dim: int = 256
    block: int = 32
    format: str = "e4m3_ue8m0"
    compressed_vocab: int = 99_092
    raw_vocab: int = 129_280
    pad_token: int = 2
    hidden_size: int = 5120
    hc_mult: int = 4

    def file(self) -> dict[str, Any]:
        """The model as the JSON object that --model reads."""
        return {key: list(value) if isinstance(value, (tuple, list)) else value
                for key, value in dataclasses.asdict(self).items()}

    @property
    def columns(self) -> int:
        """Hash columns of a layer."""
        return len(self.ngram_sizes) * self.heads_per_ngram


FLASH = Model()
TINY = Model(layers=(0,), ngram_sizes=(2,), head_rows=(97, 101, 103, 107, 109, 113, 127, 131), dim=64,
             compressed_vocab=32, raw_vocab=32, pad_token=0, hidden_size=64, hc_mult=2)
TINY7 = dataclasses.replace(TINY, heads_per_ngram=7)


# --- geometry ---------------------------------------------------------------------------------------------------------


def is_prime(value: int) -> bool:
    """Trial division."""
    return value >= 2 and all(value % d for d in range(2, math.isqrt(value) + 1))


def head_rows(model: Model, table_scale: float = 1.0) -> list[list[int]]:
    """Rows of each column, for each layer: [layer][column]."""
    if model.head_rows:
        return [list(model.head_rows[: model.columns]) for _ in model.layers]
    start = max(64, math.floor(model.prime_start * table_scale))
    used: set[int] = set()
    layers = []
    for _ in model.layers:
        columns: list[int] = []
        for _ in model.ngram_sizes:
            value = start - 1
            for _ in range(model.heads_per_ngram):
                value += 1
                while value in used or not is_prime(value):
                    value += 1
                used.add(value)
                columns.append(value)
        layers.append(columns)
    return layers


def multipliers(model: Model) -> list[list[int]]:
    """One for each layer and look-back 0..3, by NumPy itself."""
    high = (2**63 - 1) // model.compressed_vocab // 2
    return [[int(draw) * 2 + 1 for draw in np.random.default_rng(10007 * layer).integers(0, high, size=4)]
            for layer in model.layers]


# --- hash -------------------------------------------------------------------------------------------------------------


def hash_ids(model: Model, tokens: Sequence[int], pad: int, table_scale: float = 1.0) -> list[list[list[int]]]:
    """Row ids of one whole sequence: [token][layer][column]."""
    primes = head_rows(model, table_scale)
    factors = multipliers(model)
    result = []
    for position in range(len(tokens)):
        # What each look-back sees; from the first blocked place on, pads.
        seen: list[int] = []
        for shift in range(max(model.ngram_sizes)):
            source = position - shift
            alive = source >= 0 and tokens[source] != DEAD and len(seen) == shift
            if alive:
                seen.append(tokens[source])
        seen += [pad] * (max(model.ngram_sizes) - len(seen))
        row = []
        for layer in range(len(model.layers)):
            ids = []
            for place, size in enumerate(model.ngram_sizes):
                rolling = 0
                for shift in range(size):
                    rolling ^= seen[shift] * factors[layer][shift]
                for head in range(model.heads_per_ngram):
                    column = place * model.heads_per_ngram + head
                    ids.append(rolling % primes[layer][column] + sum(primes[layer][:column]))
            row.append(ids)
        result.append(row)
    return result


# --- content ----------------------------------------------------------------------------------------------------------


def splitmix64(x: int) -> int:
    """The mixer, modulo 2^64."""
    x = (x + GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def fnv1a64(text: str) -> int:
    """Hash of a tensor's name."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def weight_bytes(model: Model) -> int:
    """Bytes of a row without its scales."""
    return model.dim * (2 if model.format == "bf16" else 1)


def synthetic_row(model: Model, seed: int, layer: int, row: int) -> tuple[bytes, bytes]:
    """Weight bytes and scale bytes of a row of the table of backbone layer `layer`."""
    words = weight_bytes(model) // 8
    scales = 0 if model.format == "bf16" else model.dim // model.block
    stride = words + math.ceil(scales / 8)
    base = splitmix64(seed) + layer * GOLDEN + row * stride

    def word(number: int) -> bytes:
        return splitmix64((base + number) & MASK).to_bytes(8, "little")

    raw = b"".join(word(number) for number in range(words))
    if model.format == "bf16":
        pieces = np.frombuffer(raw, dtype="<u2").astype(np.uint32)
        field = (pieces >> 7) & 0xFF
        tame = (pieces & 0x807F) | ((120 + field % 14) << 7)
        return tame.astype("<u2").tobytes(), b""
    weights = bytes(byte ^ 1 if byte & 0x7F == 0x7F else byte for byte in raw)
    tail = b"".join(word(words + number) for number in range(math.ceil(scales / 8)))
    return weights, bytes(120 + byte % 14 for byte in tail[:scales])


def synthetic_weights(name: str, seed: int, fan_in: int, first: int, count: int) -> Bits:
    """Elements of a synthetic weight tensor."""
    base = splitmix64(seed) ^ fnv1a64(name)
    units = np.array([splitmix64((base + i) & MASK) >> 40 for i in range(first, first + count)], dtype=np.float64)
    return to_bf16((units * 2.0**-24 - 0.5) * (2.0 / math.sqrt(fan_in)))


def to_bf16(values: npt.ArrayLike) -> Bits:
    """Rounds to float32, then to BF16 bits, to nearest, ties to even; NaN becomes the one NaN."""
    with np.errstate(over="ignore"):
        single = np.asarray(values).astype(np.float32)
    bits = single.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(single), np.uint16(NAN_BITS), rounded)


def from_bf16(bits: Bits) -> Floats:
    """BF16 bits as numbers."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def e4m3(byte: int) -> float:
    """Value of an E4M3 code: bias 7, no infinities, one NaN a sign."""
    sign = -1.0 if byte & 0x80 else 1.0
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * mantissa / 8 * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def ue8m0(byte: int) -> float:
    """Value of a scale byte: a power of two; 0 is zero, 255 is infinite."""
    if byte == 0:
        return 0.0
    return math.inf if byte == 255 else 2.0 ** (byte - 127)


def row_value(model: Model, weights: bytes, scales: bytes) -> Bits:
    """BF16 bits of a stored row."""
    if model.format == "bf16":
        return np.frombuffer(weights, dtype="<u2").astype(np.uint16)
    with np.errstate(invalid="ignore"):
        return to_bf16(np.array([e4m3(weights[i]) * ue8m0(scales[i // model.block]) for i in range(model.dim)]))


# --- lookup -----------------------------------------------------------------------------------------------------------


def shard_columns(model: Model, shards: int, index: int) -> tuple[int, int, int]:
    """First column, real columns and columns with padding of a shard."""
    part = math.ceil(model.columns / shards)
    first = index * part
    return first, min(first + part, model.columns) - first, part


def lookup(model: Model, ids: Sequence[Sequence[int]], content: Callable[[int], tuple[bytes, bytes]], shards: int = 1,
           index: int = 0, table_scale: float = 1.0, layer_index: int = 0) -> Bits:
    """Rows of one shard for ids[token][column of the whole layer]: [token][column with padding][dim]. Zero rows for
    padded columns and for ids that are negative or not in the shard."""
    first, real, part = shard_columns(model, shards, index)
    rows = head_rows(model, table_scale)[layer_index]
    begin, end = sum(rows[:first]), sum(rows[: first + real])
    out = np.zeros((len(ids), part, model.dim), dtype=np.uint16)
    for token, row in enumerate(ids):
        for column in range(real):
            number = row[first + column]
            if begin <= number < end:
                out[token, column] = row_value(model, *content(number))
    return out


def digest(rows: Bits) -> str:
    """SHA-256 of rows as little-endian BF16."""
    return hashlib.sha256(rows.astype("<u2").tobytes()).hexdigest()


# --- gate -------------------------------------------------------------------------------------------------------------


def gate(hidden: Bits, kv: Bits, q: Bits, k: Bits, masked: Sequence[bool], eps: float) -> Floats:
    """hidden[token][copy][dim] after the gate, in double precision and not yet rounded. kv[token][(copies + 1) * dim]:
    a key for each copy, then the value that all copies share; q, k [copy][dim]."""
    state, keys, query, scale = (from_bf16(part) for part in (hidden, kv, q, k))
    tokens, copies, dim = state.shape
    out = state.copy()
    for token in range(tokens):
        if masked[token]:
            continue
        value = keys[token, copies * dim:]
        for copy in range(copies):
            own, key = state[token, copy], keys[token, copy * dim:(copy + 1) * dim]
            dot = float(np.sum(own * query[copy] * scale[copy] * key))
            dot /= math.sqrt(float(np.mean(own**2)) + eps) * math.sqrt(float(np.mean(key**2)) + eps) * math.sqrt(dim)
            signed = math.copysign(math.sqrt(max(abs(dot), 1e-6)), dot if dot != 0 else 1.0)
            out[token, copy] = own + value / (1 + math.exp(-signed))
    return out
