"""The command line as its page shows it. ENGRAM_BENCH_UPDATE_DOCS=1 rewrites docs/cli.md from the program's help."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENGRAM_BENCH_BIN", str(ROOT / "build" / "engram-bench"))
PAGE = ROOT / "docs" / "cli.md"
HEAD = """# The command line

Data goes to stdout, all else to stderr; a progress bar shows only where stderr is a terminal. Nothing is ever asked,
and nothing is overwritten without `--force`.

| exit | meaning |
|---|---|
| 0 | done |
| 1 | run-time failure: memory, permission, disk, device, placement could not be made, a rank died |
| 2 | usage or an invalid scenario; an output folder that exists |
| 3 | `--gate`: a regression is shown |
| 4 | `--gate`: inconclusive or void |
| 5 | wrong data: rows differ from the reference, or an archive is corrupt |
| 77 | skipped: this machine lacks a NUMA node, a GPU or huge pages that the scenario needs |
| 130 | interrupted; the partial result says `"complete": false` |

They are checked in the order 2, 77, 1. What follows is the program's own help.
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BINARY, *arguments], capture_output=True, text=True, check=False)


def commands(help_text: str) -> list[str]:
    listed = help_text.split("Subcommands:")[1] if "Subcommands:" in help_text else ""
    return re.findall(r"^  ([a-z]+)\b", listed, re.MULTILINE)


def page() -> str:
    def section(path: list[str]) -> str:
        text = run(*path, "--help").stdout
        title = " ".join(["engram-bench", *path])
        own = f"\n## {title}\n\n```\n{text.rstrip()}\n```\n"
        return own + "".join(section([*path, name]) for name in commands(text))

    return HEAD + section([])


def test_help_is_what_the_page_says() -> None:
    text = page()
    if os.environ.get("ENGRAM_BENCH_UPDATE_DOCS"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text


def test_every_command_of_the_readme_exists() -> None:
    named = set(re.findall(r"^\| `engram-bench ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert named == set(commands(run("--help").stdout))


def test_an_unknown_command_is_refused_and_the_nearest_named() -> None:
    result = run("pln")
    assert result.returncode == 2
    assert result.stdout == ""
    assert "pln" in result.stderr
    assert "plan" in result.stderr


def test_an_unknown_option_exits_2() -> None:
    result = run("plan", "--no-such-option", "x.json")
    assert result.returncode == 2
    assert "--no-such-option" in result.stderr


def test_help_and_version_exit_0_on_stdout() -> None:
    for arguments in (["--help"], ["--version"], ["run", "--help"]):
        result = run(*arguments)
        assert result.returncode == 0
        assert result.stdout
        assert result.stderr == ""
