"""Tables of scripts/selftest_study: counts, pooled series, and how often theory says that an effect is found.

Everything but the theory needs the standard library only; the theory's column needs SciPy and reads "SciPy is not
installed" without it.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    from scipy import integrate, stats
except ImportError:
    stats = None

SERIES_SCHEMA = "engram-bench/selftest-study"
POWER_SCHEMA = "engram-bench/power-study"
LARGEST_FALSE_SHARE = 0.05  # of A/A experiments that read better or worse: 2 of 40
LARGEST_VOID_SHARE = 0.1
LEAST_FOUND_SHARE = 0.9  # of planted effects: 18 of 20
SURPRISE = 0.01  # of all counts of a power study together: below it, theory and counts disagree
REASONS = {"too_wide": "too wide", "below_delta": "below delta", "bootstrap_disagrees": "bootstrap disagrees"}


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def is_complete(result: Path) -> bool:
    try:
        return (result.parent / "MANIFEST.sha256").exists() and load(result)["complete"] is True
    except (OSError, ValueError, KeyError):
        return False


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines of a JSONL file; what a kill left of the last one is cut off."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) != len(data):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return [json.loads(line) for line in whole.splitlines()]


def append_line(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def remove_run(folder: Path) -> None:
    shutil.rmtree(folder)


def without_paths(words: Sequence[str]) -> list[str]:
    """The command as it can be repeated elsewhere: names of files and folders without where they lay."""
    return [Path(word).name if "/" in word and not word.startswith("-") else word for word in words]


def count_series(one: dict[str, Any]) -> dict[str, Any]:
    verdicts = Counter(one["verdicts"])
    seconds = one.get("seconds", [])
    return {
        "series": one["series"],
        "experiments": one["experiments"],
        "claims": verdicts["better"] + verdicts["worse"],
        "void": verdicts["void"],
        "verdicts": dict(verdicts),
        "found": one.get("found"),
        "expected_link": one.get("expected_link"),
        "seconds": seconds,
    }


def judge_counts(count: dict[str, Any]) -> dict[str, Any]:
    n = count["experiments"]
    if count["expected_link"] is None:
        bound = f"at most {math.ceil(LARGEST_FALSE_SHARE * n)} claims and {math.ceil(LARGEST_VOID_SHARE * n)} void"
        passed = count["claims"] <= math.ceil(LARGEST_FALSE_SHARE * n)
        passed = passed and count["void"] <= math.ceil(LARGEST_VOID_SHARE * n)
    else:
        bound = f"at least {math.ceil(LEAST_FOUND_SHARE * n)} found at {count['expected_link']}"
        passed = count["found"] >= LEAST_FOUND_SHARE * n
    return {**count, "bound": bound, "passed": passed}


def pool(studies: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts of all studies added up, series by series: no series takes the place of another."""
    pooled: dict[str, dict[str, Any]] = {}
    for study in studies:
        for one in study["series"]:
            count = count_series(one)
            before = pooled.get(count["series"])
            if before is None:
                pooled[count["series"]] = count
                continue
            for key in ("experiments", "claims", "void", "seconds"):
                before[key] += count[key]
            before["verdicts"] = dict(Counter(before["verdicts"]) + Counter(count["verdicts"]))
            if count["found"] is not None:
                before["found"] += count["found"]
    series = [judge_counts(count) for count in pooled.values()]
    return {"series": series, "passed": all(one["passed"] for one in series)}


def series_row(count: dict[str, Any]) -> str:
    verdicts = ", ".join(f"{n} {name}" for name, n in sorted(count["verdicts"].items()) if n)
    found = "" if count["found"] is None else str(count["found"])
    seconds = count["seconds"]
    took = f"{statistics.median(seconds):.0f} (at most {max(seconds):.0f})" if seconds else ""
    passed = "yes" if count["passed"] else "**no**"
    words = (count["series"], str(count["experiments"]), verdicts, found, count["bound"], passed, took)
    return f"| {' | '.join(words)} |\n"


HEAD = "| series | experiments | verdicts | found | bound | holds | seconds an experiment |\n" + "|---" * 7 + "|\n"


def floor_text(study: dict[str, Any]) -> str:
    parts = []
    for metric, floor in study["floors_log"].items():
        if isinstance(floor, (int, float)):
            parts.append(f"{metric} {math.expm1(floor) * 100:.2f} %")
    pairs = study["aa_pairs_on_record"]
    return f"A/A floors at {study['pairs']} pairs, from {pairs} A/A pairs: {', '.join(parts) or 'none'}."


def worst_text(study: dict[str, Any]) -> str:
    """The largest effects that an arm showed against itself: what a reader judges the floor by."""
    runs = [run for one in study["series"] if one["series"] == "A/A" for run in one["runs"]]
    effects: dict[str, list[float]] = {}
    for run in runs:
        for finding in (run["primary"], *run["guards"]):
            if finding["effect_ratio"] is not None:
                effects.setdefault(finding["metric"], []).append(abs(math.log(finding["effect_ratio"])))
    parts = [f"{metric} {math.expm1(max(values)) * 100:.2f} %" for metric, values in effects.items()]
    return f"Largest A/A effect: {', '.join(parts)}."


def series_markdown(studies: Sequence[dict[str, Any]]) -> str:
    text = ""
    for study in studies:
        machine = study["machine"]
        text += (
            f"**{study['first_date'][:10]}, {machine['cpu_model'].strip()}**, {study['cpus']} CPUs, "
            f"{len(machine['numa_nodes'])} NUMA node(s), kernel {machine['kernel']}, backend {machine['backend']}: "
            f"`{study['command']}`. {study['lanes']} experiment(s) at once, each on {study['cpus_per_lane']} CPUs of "
            f"its own; planted work {study['percent']:g} %. {floor_text(study)} {worst_text(study)}"
        )
        if study["run_anew"]:
            text += f" {len(study['run_anew'])} experiment(s) did not go through and were run anew."
        text += "\n\n" + HEAD
        for one in study["series"]:
            text += series_row(judge_counts(count_series(one)))
        text += "\n"
    if len(studies) > 1:
        text += f"**All {len(studies)} series pooled**\n\n" + HEAD
        for one in pool(studies)["series"]:
            text += series_row(one)
        text += "\n"
    return text


def power_counts(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By effect: how many experiments, how many found (`worse`), and what the others said."""
    effects: dict[float, list[dict[str, Any]]] = {}
    for line in lines:
        effects.setdefault(line["effect_percent"], []).append(line)
    out = []
    for effect, group in sorted(effects.items()):
        verdicts = Counter(line["figures_verdict"] for line in group)
        reasons = Counter(line["figures_reason"] for line in group if line["figures_verdict"] == "inconclusive")
        ratios = [math.log(line["effect_ratio"]) for line in group]
        out.append(
            {
                "effect_percent": effect,
                "experiments": len(group),
                "found": verdicts["worse"],
                "verdicts": dict(sorted(verdicts.items())),
                "inconclusive_reasons": dict(sorted(reasons.items())),
                "mean_effect_percent": math.expm1(statistics.fmean(ratios)) * 100,
                # Over all pairs, about each experiment's own mean.
                "noise_percent": math.sqrt(statistics.fmean(line["log_deviation"] ** 2 for line in group)) * 100,
            }
        )
    return out


def t_power(effect: float, noise: float, pairs: int) -> float:
    """Chance that a t interval over `pairs` differences of deviation `noise` lies above zero at a true difference
    `effect` (both of logs): the noncentral t distribution."""
    critical = float(stats.t.ppf(0.975, pairs - 1))
    return float(stats.nct.sf(critical, pairs - 1, effect * math.sqrt(pairs) / noise))


def found_power(effect: float, noise: float, pairs: int, edge: float) -> float:
    """The same, and the mean lies beyond `edge`: what a verdict `worse` asks for. Mean and deviation of normal values
    are independent, so this is an integral over the deviation."""
    critical = float(stats.t.ppf(0.975, pairs - 1))
    error = noise / math.sqrt(pairs)

    def integrand(u: float) -> float:  # u: quantile of the deviation
        deviation = noise * math.sqrt(float(stats.chi2.ppf(u, pairs - 1)) / (pairs - 1))
        least = max(edge, critical * deviation / math.sqrt(pairs))
        return float(stats.norm.sf((least - effect) / error))

    return float(integrate.quad(integrand, 0, 1, limit=200)[0])


def theory_of(study: dict[str, Any], effect_percent: float) -> tuple[float, float] | None:
    """Share found by the t interval alone, and with delta; None without SciPy."""
    if stats is None:
        return None
    effect = math.log1p(effect_percent / 100)
    noise = study["noise_percent"] / 100
    edge = math.log1p(study["delta_percent"] / 100)
    return t_power(effect, noise, study["pairs"]), found_power(effect, noise, study["pairs"], edge)


def surprise(found: int, experiments: int, share: float) -> float:
    """Chance of a count as far from what `share` gives, or farther: the exact binomial test."""
    return float(stats.binomtest(found, experiments, min(max(share, 0.0), 1.0)).pvalue)


def power_as_theory_says(study: dict[str, Any]) -> bool | None:
    """No count surprises at 1 % over all effects together (Bonferroni); None without SciPy."""
    if stats is None:
        return None
    bound = SURPRISE / len(study["effects"])
    for one in study["effects"]:
        theory = theory_of(study, one["effect_percent"])
        assert theory is not None
        if surprise(one["found"], one["experiments"], theory[1]) < bound:
            return False
    return True


def power_markdown(study: dict[str, Any]) -> str:
    text = (
        f"`{study['command']}`: {study['pairs']} pairs, noise of a pair {study['noise_percent']:g} %, delta "
        f"{study['delta_percent']:g} %.\n\n"
        "| planted | experiments | found | share | theory | t interval alone | p of the count | other verdicts |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    for one in study["effects"]:
        theory = theory_of(study, one["effect_percent"])
        others = [f"{n} {name}" for name, n in one["verdicts"].items() if name not in ("worse", "inconclusive")]
        others += [f"{n} {REASONS.get(reason, reason)}" for reason, n in one["inconclusive_reasons"].items()]
        share = one["found"] / one["experiments"]
        if theory is None:
            columns = "SciPy is not installed | | "
        else:
            p = surprise(one["found"], one["experiments"], theory[1])
            columns = f"{theory[1]:.3f} | {theory[0]:.3f} | {p:.2f} "
        text += (
            f"| {one['effect_percent']:g} % | {one['experiments']} | {one['found']} | {share:.3f} | {columns}| "
            f"{', '.join(others)} |\n"
        )
    agrees = power_as_theory_says(study)
    if agrees is not None:
        word = "agree" if agrees else "**do not agree**"
        text += f"\nCounts and theory {word} (exact binomial test, 1 % over all rows).\n"
    return text
