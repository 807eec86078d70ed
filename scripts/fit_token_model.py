#!/usr/bin/env python3
"""Fits the token model zipf_ngram to a text by its row-reuse curve, and shows the fit.

The curve: of the first N tokens of a text, the share of n-grams (n = 2, 3, 4) that are new. An n-gram is what a hash
head turns into a row, so this is the share of looked-up rows that nobody has looked up before.

    scripts/fit_token_model.py                  # table of measured against fitted, with the parameters in use
    scripts/fit_token_model.py --search 120     # searches for better parameters for 120 s first

The model here and the one in harness/replay/zipf_ngram.cpp are the same, token by token; docs/token-models.md defines
it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Tokens = npt.NDArray[np.int64]

DATA = Path(__file__).resolve().parent.parent / "scenarios" / "data"
SEGMENT = 16  # tokens between two breaks of context
MAX_OCTAVE = 30
SIZES = [2**power for power in range(8, 19)]
NGRAMS = (2, 3, 4)


@dataclasses.dataclass(frozen=True)
class Parameters:
    """The defaults are the fit to the shipped text."""

    exponent: float = 1.067  # of the token frequencies: rank r has weight (r + shift)^-exponent
    shift: float = 1.87
    repeat: float = 0.951  # chance that a token continues what stands before it
    pair_share: float = 0.38  # of these, the share that looks at two tokens instead of one
    tail_one: float = 0.83  # successor k or later is taken with chance about k^-tail
    tail_two: float = 0.415


def word(value: int) -> np.uint64:
    """A Python integer modulo 2^64."""
    return np.uint64(value & 0xFFFFFFFFFFFFFFFF)


def splitmix64(x: Words) -> Words:
    """The mixer of the synthetic content; wraps modulo 2^64."""
    x = x + word(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * word(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * word(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def mix_int(value: int) -> int:
    """splitmix64 of one integer."""
    return int(splitmix64(np.array([word(value)]))[0])


class Model:
    """zipf_ngram over a vocabulary."""

    def __init__(self, parameters: Parameters, vocabulary: int) -> None:
        self.parameters = parameters
        weights = (np.arange(vocabulary) + 1.0 + parameters.shift) ** -parameters.exponent
        self.cumulative = np.cumsum(weights)
        self.cumulative /= self.cumulative[-1]
        self.vocabulary = vocabulary

    def quantile(self, draw: Words) -> Tokens:
        """Token of a 64-bit draw: its upper 53 bits as a number in [0, 1)."""
        unit = (draw >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return np.minimum(np.searchsorted(self.cumulative, unit, side="right"), self.vocabulary - 1)

    @staticmethod
    def successor(draw: Words, place: Words, tail: float) -> Words:
        """Number k >= 1 of a successor: octave by the tail, even inside the octave."""
        thresholds = np.array([2.0 ** (-tail * octave) for octave in range(1, MAX_OCTAVE + 1)])
        unit = (draw & np.uint64(0xFFFFFFFF)).astype(np.float64) * 2.0**-32
        octave = np.searchsorted(-thresholds, -unit, side="left").astype(np.uint64)
        width = np.uint64(1) << octave
        return width + (place & (width - np.uint64(1)))

    def stream(self, seed: int, stream: int, count: int) -> Tokens:
        """Tokens 0..count-1 of a stream."""
        p = self.parameters
        lists = np.uint64(mix_int(mix_int(seed) ^ 0x6E6772616D))
        base = mix_int(mix_int(seed) ^ mix_int(stream + 1))
        segments = -(-count // SEGMENT)
        tokens = np.zeros((segments, SEGMENT), dtype=np.int64)
        starts = np.arange(segments, dtype=np.uint64) * np.uint64(SEGMENT)
        for place in range(SEGMENT):
            draw = splitmix64(np.uint64(base) + starts + np.uint64(place))
            second = splitmix64(draw)
            token = self.quantile(second)
            if place > 0:
                coin = (draw >> np.uint64(32)).astype(np.float64) * 2.0**-32
                two = (coin < p.repeat * p.pair_share) & (place > 1)
                context = splitmix64(lists ^ (tokens[:, place - 1].astype(np.uint64) + np.uint64(1)))
                older = tokens[:, max(place - 2, 0)].astype(np.uint64) + np.uint64(1)
                context = np.where(two, splitmix64(context ^ (older << np.uint64(32))), context)
                number = np.where(two, self.successor(draw, second, p.tail_two),
                                  self.successor(draw, second, p.tail_one))
                token = np.where(coin < p.repeat, self.quantile(splitmix64(context + splitmix64(number))), token)
            tokens[:, place] = token
        return tokens.reshape(-1)[:count]


def reuse_curve(tokens: Tokens) -> npt.NDArray[np.float64]:
    """Share of new n-grams among the first N, for each n of NGRAMS and N of SIZES that the text reaches."""
    rows = []
    for size in NGRAMS:
        key: Words = np.zeros(len(tokens), dtype=np.uint64)
        for back in range(size):
            shifted = np.concatenate([np.full(back, -1, dtype=np.int64), tokens[: len(tokens) - back]])
            key = splitmix64(key ^ splitmix64((shifted + 1).astype(np.uint64)) + np.uint64(back))
        first = np.sort(np.unique(key, return_index=True)[1])
        rows.append([np.searchsorted(first, n) / n for n in SIZES if n <= len(tokens)])
    return np.array(rows)


def misfit(measured: npt.NDArray[np.float64], fitted: npt.NDArray[np.float64]) -> float:
    """Root mean square of the log ratio."""
    return float(np.sqrt(np.mean(np.log(fitted / measured) ** 2)))


def search(start: Parameters, measured: npt.NDArray[np.float64], count: int, vocabulary: int, seconds: float,
           seed: int) -> Parameters:
    """Random steps that keep what fits better."""
    random = np.random.default_rng(seed)
    names = [field.name for field in dataclasses.fields(Parameters)]
    low = np.array([0.5, 0.0, 0.0, 0.0, 0.05, 0.05])
    high = np.array([2.0, 200.0, 1.0, 1.0, 5.0, 5.0])
    step = np.array([0.05, 1.0, 0.05, 0.1, 0.15, 0.15])
    best = np.array(dataclasses.astuple(start))
    best_misfit = np.inf
    end = time.monotonic() + seconds
    tried = best
    while time.monotonic() < end:
        candidate = Parameters(**dict(zip(names, tried.tolist(), strict=True)))
        found = misfit(measured, reuse_curve(Model(candidate, vocabulary).stream(1, 0, count)))
        if found < best_misfit:
            best, best_misfit = tried, found
        moved = best + random.normal(size=6) * step * random.choice([0.2, 1.0]) * (random.random(6) < 0.5)
        tried = np.clip(moved, low, high)
    return Parameters(**dict(zip(names, best.tolist(), strict=True)))


def table(measured: npt.NDArray[np.float64], fitted: npt.NDArray[np.float64]) -> str:
    """Markdown: for each N and n-gram size, measured and fitted."""
    head = " | ".join(f"{n}-grams: text | model" for n in NGRAMS)
    lines = [f"| tokens | {head} |", "|---:|" + "---:|---:|" * len(NGRAMS)]
    for place in range(measured.shape[1]):
        cells = " | ".join(f"{measured[row, place]:.3f} | {fitted[row, place]:.3f}" for row in range(len(NGRAMS)))
        lines.append(f"| {SIZES[place]:,} | {cells} |")
    return "\n".join(lines)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Fit of the token model zipf_ngram to a text.")
    parser.add_argument("--tokens", type=Path, default=DATA / "jargon-lexicon.u32", help="token file")
    parser.add_argument("--map", type=Path, default=DATA / "deepseek-map.u32", help="token map")
    parser.add_argument("--search", type=float, default=0.0, metavar="SECONDS", help="search for better parameters")
    parser.add_argument("--seed", type=int, default=1, help="of the search and of the model's stream")
    options = parser.parse_args()
    try:
        mapping = np.fromfile(options.map, dtype="<u4").astype(np.int64)
        text = mapping[np.fromfile(options.tokens, dtype="<u4")]
    except (OSError, IndexError) as error:
        print(f"fit_token_model.py: {error}", file=sys.stderr)
        return 2
    vocabulary = int(mapping.max()) + 1
    measured = reuse_curve(text)
    parameters = Parameters()
    if options.search > 0:
        parameters = search(parameters, measured, len(text), vocabulary, options.search, options.seed)
    # Another seed than the search used: the fit must not hang on one stream's luck.
    fitted = reuse_curve(Model(parameters, vocabulary).stream(options.seed + 1, 7, len(text)))
    print(table(measured, fitted))
    largest = float(np.max(np.abs(np.log(fitted / measured))))
    print(json.dumps({"parameters": dataclasses.asdict(parameters), "rms_log_misfit": misfit(measured, fitted),
                      "largest_log_misfit": largest}))
    return 0


if __name__ == "__main__":
    np.seterr(over="ignore")
    sys.exit(main())
