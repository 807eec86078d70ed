"""harness/stats beside SciPy, on random data: more than a thousand cases."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENGRAM_BENCH_BIN", str(ROOT / "build" / "engram-bench"))
Request = dict[str, Any]


def ask(requests: list[Request], code: int = 0) -> Any:
    done = subprocess.run(
        [BINARY, "inspect", "stats"],
        input=json.dumps(requests).encode(),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stderr.decode()
    return json.loads(done.stdout) if code == 0 else done.stderr.decode()


def draws(seed: int, count: int, least: int, most: int) -> list[list[float]]:
    random = np.random.default_rng(seed)
    return [
        [float(x) for x in random.normal(random.normal(), np.exp(random.normal()), random.integers(least, most))]
        for _ in range(count)
    ]


def test_t_distribution() -> None:
    random = np.random.default_rng(1)
    df = np.exp(random.uniform(np.log(0.5), np.log(5000), 300))
    p = random.uniform(0.0005, 0.9995, 300)
    t = random.normal(0, 3, 300)
    got = ask([{"function": "t_quantile", "p": float(a), "df": float(b)} for a, b in zip(p, df, strict=True)])
    np.testing.assert_allclose(got, stats.t.ppf(p, df), rtol=1e-8, atol=1e-10)
    got = ask([{"function": "t_cdf", "t": float(a), "df": float(b)} for a, b in zip(t, df, strict=True)])
    np.testing.assert_allclose(got, stats.t.cdf(t, df), rtol=1e-9, atol=1e-14)


def test_normal_and_beta() -> None:
    random = np.random.default_rng(2)
    p = random.uniform(1e-6, 1 - 1e-6, 100)
    got = ask([{"function": "normal_quantile", "p": float(x)} for x in p])
    np.testing.assert_allclose(got, stats.norm.ppf(p), rtol=1e-9, atol=1e-12)
    a, b, x = np.exp(random.normal(0, 2, 200)), np.exp(random.normal(0, 2, 200)), random.uniform(0, 1, 200)
    got = ask(
        [
            {"function": "incomplete_beta", "a": float(i), "b": float(j), "x": float(k)}
            for i, j, k in zip(a, b, x, strict=True)
        ]
    )
    np.testing.assert_allclose(got, special.betainc(a, b, x), rtol=1e-9, atol=1e-14)


def test_t_intervals() -> None:
    samples = draws(3, 200, 2, 40)
    for values, got in zip(samples, ask([{"function": "t_interval", "values": v} for v in samples]), strict=True):
        wanted = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        np.testing.assert_allclose([got["interval"]["low"], got["interval"]["high"]], wanted, rtol=1e-8, atol=1e-10)
        assert got["deviation"] == pytest.approx(np.std(values, ddof=1), rel=1e-9)


def test_welch_intervals() -> None:
    left, right = draws(4, 150, 2, 20), draws(5, 150, 2, 20)
    answers = ask([{"function": "welch_interval", "a": a, "b": b} for a, b in zip(left, right, strict=True)])
    for a, b, got in zip(left, right, answers, strict=True):
        wanted = stats.ttest_ind(b, a, equal_var=False)
        interval = wanted.confidence_interval(0.95)
        assert got["df"] == pytest.approx(wanted.df, rel=1e-8)
        np.testing.assert_allclose(
            [got["interval"]["low"], got["interval"]["high"]], [interval.low, interval.high], rtol=1e-7, atol=1e-9
        )


def test_sign_tests() -> None:
    samples = draws(6, 200, 1, 60)
    for values, got in zip(samples, ask([{"function": "sign_test", "values": v} for v in samples]), strict=True):
        positive = sum(x > 0 for x in values)
        assert got["p"] == pytest.approx(stats.binomtest(positive, len(values)).pvalue, rel=1e-9)


@pytest.mark.parametrize("tied", [False, True])
def test_mann_whitney(tied: bool) -> None:
    left, right = draws(7, 200, 1, 30), draws(8, 200, 1, 30)
    if tied:
        left = [[float(round(x)) for x in values] for values in left]
        right = [[float(round(x)) for x in values] for values in right]
    answers = ask([{"function": "mann_whitney", "a": a, "b": b} for a, b in zip(left, right, strict=True)])
    exact = 0
    for a, b, got in zip(left, right, answers, strict=True):
        wanted = stats.mannwhitneyu(a, b, method="exact" if got["exact"] else "asymptotic")
        assert got["u"] == wanted.statistic
        assert got["p"] == pytest.approx(1.0 if np.isnan(wanted.pvalue) else wanted.pvalue, rel=1e-9, abs=1e-12)
        assert got["exact"] == (min(len(a), len(b)) <= 8 and len({*a, *b}) == len(a) + len(b))
        exact += got["exact"]
    assert tied or exact > 50


def test_holm_follows_its_definition() -> None:
    random = np.random.default_rng(9)
    cases = [[float(x) for x in random.uniform(0, 1, random.integers(1, 12)) ** 3] for _ in range(100)]
    for p, got in zip(cases, ask([{"function": "holm", "p": p} for p in cases]), strict=True):
        order = np.argsort(p, kind="stable")
        wanted = np.empty(len(p))
        for place, index in enumerate(order):
            wanted[index] = max(min(1.0, p[order[i]] * (len(p) - i)) for i in range(place + 1))
        np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_mad_and_quantile_intervals() -> None:
    samples = draws(10, 100, 1, 500)
    for values, got in zip(samples, ask([{"function": "mad", "values": v} for v in samples]), strict=True):
        assert got == pytest.approx(stats.median_abs_deviation(values), rel=1e-9, abs=1e-12)
    samples = draws(11, 100, 72, 500)
    asked = [{"function": "quantile_interval", "p": 0.95, "values": v} for v in samples]
    for values, got in zip(samples, ask(asked), strict=True):
        n = len(values)
        # X_(l) <= q has probability P(Bin(n, p) >= l) >= 0.975, and X_(u) >= q has P(Bin <= u - 1) >= 0.975.
        assert stats.binom.cdf(got["low_rank"] - 1, n, 0.95) <= 0.025 < stats.binom.cdf(got["low_rank"], n, 0.95)
        assert stats.binom.cdf(got["high_rank"] - 2, n, 0.95) < 0.975 <= stats.binom.cdf(got["high_rank"] - 1, n, 0.95)
        assert got["value"] == pytest.approx(np.quantile(values, 0.95), rel=1e-9)


def slow_bootstrap(pairs: list[Request], resamples: int, seed: int) -> tuple[float, float]:
    random = np.random.default_rng(seed)
    means = []
    for _ in range(resamples):
        ys = []
        for drawn in random.integers(0, len(pairs), len(pairs)):
            pair = pairs[drawn]
            a, b = np.array(pair["a"]), np.array(pair["b"])
            if pair["matched"]:
                blocks = random.integers(0, len(a), len(a))
                ys.append(np.median(np.log(b[blocks] / a[blocks])))
            else:
                a = a[random.integers(0, len(a), len(a))]
                b = b[random.integers(0, len(b), len(b))]
                ys.append(np.log(np.median(b) / np.median(a)))
        means.append(np.mean(ys))
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


@pytest.mark.parametrize("matched", [True, False])
def test_bootstrap_beside_a_slow_one(matched: bool) -> None:
    random = np.random.default_rng(12)
    pairs = [
        {
            "a": [float(x) for x in np.exp(random.normal(0, 0.02, 4))],
            "b": [float(x) for x in np.exp(random.normal(0.05, 0.02, 4))],
            "matched": matched,
        }
        for _ in range(8)
    ]
    got = ask([{"function": "bootstrap", "pairs": pairs, "seed": 1}, {"function": "pair_log_ratio", "pairs": pairs}])
    low, high = slow_bootstrap(pairs, 4000, 13)
    # Two Monte Carlo quantiles of the same distribution: apart by a few percent of the width.
    assert got[0]["low"] == pytest.approx(low, abs=0.08 * (high - low))
    assert got[0]["high"] == pytest.approx(high, abs=0.08 * (high - low))
    for pair, y in zip(pairs, got[1], strict=True):
        a, b = np.array(pair["a"]), np.array(pair["b"])
        wanted = np.median(np.log(b / a)) if matched else np.log(np.median(b) / np.median(a))
        assert y == pytest.approx(wanted, rel=1e-9)


def test_two_clusters_split_is_the_best_one() -> None:
    samples = draws(14, 60, 6, 20)
    for values, got in zip(samples, ask([{"function": "two_clusters", "values": v} for v in samples]), strict=True):
        ordered = np.sort(values)
        total = np.sum((ordered - ordered.mean()) ** 2)
        within = [
            np.sum((ordered[:k] - ordered[:k].mean()) ** 2) + np.sum((ordered[k:] - ordered[k:].mean()) ** 2)
            for k in range(2, len(ordered) - 1)
        ]
        assert got["explained"] == pytest.approx(1 - min(within) / total, rel=1e-9)
        assert got["lower"] == int(np.argmin(within)) + 2


def test_unknown_function_is_refused() -> None:
    assert "nonsense" in ask([{"function": "nonsense"}], code=2)
    ask([{"function": "t_quantile", "p": 0.5}], code=2)
