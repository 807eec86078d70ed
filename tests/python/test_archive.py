"""Archives: what goes in and comes out, two writers at once, and what is left where one is killed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from bench import BINARY, ROOT, rehash

SCENARIO = str(ROOT / "scenarios" / "selftest-fake.json")
SMALL = ["--set", "experiment.pairs=1", "--set", "experiment.blocks=1", "--set", "parallel.tp=1"]
OLD = ROOT / "tests" / "data" / "result-v1"


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    variables = {**os.environ, "ENGRAM_BENCH_STATE": "/nonexistent/engram-bench-tests", **environment}
    return subprocess.Popen(
        [BINARY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables
    )


def run(*arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    process = start(*arguments, **environment)
    out, error = process.communicate(timeout=120)
    assert process.returncode == code, f"{process.returncode}\n{out}\n{error}"
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    run("run", SCENARIO, *SMALL, "-o", str(folder))
    return folder


@pytest.fixture
def make(original: Path, tmp_path: Path) -> Any:
    """Runs of other content and date; a log line more makes another run of one."""
    made: list[Path] = []

    def one(date: str = "2026-01-01T00:00:00Z", **changes: Any) -> Path:
        folder = tmp_path / f"run-{len(made)}"
        made.append(folder)
        shutil.copytree(original, folder)
        with (folder / "log.txt").open("a") as log:
            log.write(f"copy {len(made)}\n")
        result = json.loads((folder / "result.json").read_text())
        result["context"]["date"] = date
        for key, value in changes.items():
            if key in result:
                result[key] = value
            else:
                result["context"][key] = value
        (folder / "result.json").write_text(json.dumps(result))
        rehash(folder)
        return folder

    return one


@pytest.fixture
def archive(tmp_path: Path) -> list[str]:
    return ["--archive", str(tmp_path / "archive")]


def entries(archive: list[str]) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(run("archive", "list", *archive, "--json").stdout)["runs"]
    return runs


def test_what_goes_in_is_listed_shown_and_verified(original: Path, make: Any, archive: list[str]) -> None:
    other = make("2027-01-01T00:00:00Z")
    out = run("archive", "add", str(original), str(other), *archive).stdout
    assert out.count("added ") == 2
    found = entries(archive)
    assert [one["name"] for one in found] == ["selftest-fake", "selftest-fake"]
    assert found[0]["id"] == hashlib.sha256((original / "MANIFEST.sha256").read_bytes()).hexdigest()
    assert found[0]["binary_sha256"] == hashlib.sha256(Path(BINARY).read_bytes()).hexdigest()
    kept = Path(archive[1]) / "runs" / found[0]["id"] / "run"
    assert {path.relative_to(kept) for path in kept.rglob("*") if path.is_file()} == {
        path.relative_to(original) for path in original.rglob("*") if path.is_file()
    }
    shown = run("archive", "show", found[0]["id"][:12], *archive).stdout
    assert found[0]["id"] in shown
    assert "lookup_us" in shown or "lookup" in shown
    answer = json.loads(run("archive", "show", "selftest-fake@latest", *archive, "--json").stdout)
    assert answer["result"]["context"]["date"] == "2027-01-01T00:00:00Z"
    assert run("verify", "--all", *archive).stdout.count("are as they were written") == 2
    run("verify", f"archive:{found[0]['id'][:8]}", *archive)


def test_identical_content_is_one_entry(original: Path, archive: list[str], tmp_path: Path) -> None:
    run("archive", "add", str(original), *archive)
    again = shutil.copytree(original, tmp_path / "elsewhere")
    assert "is there already" in run("archive", "add", str(again), "--name", "other", *archive).stdout
    (entry,) = entries(archive)
    assert entry["name"] == "selftest-fake", "the entry keeps its name"


def test_what_does_not_verify_does_not_come_in(make: Any, archive: list[str]) -> None:
    run("archive", "add", str(make()), *archive)
    damaged = make()
    sample = next((damaged / "samples").iterdir())
    sample.write_text(sample.read_text().replace("300", "301"))
    error = run("archive", "add", str(make()), str(damaged), *archive, code=5).stderr
    assert "its content is not what the manifest says" in error
    rehash(damaged)
    assert "the events give 300" in run("archive", "add", str(damaged), *archive, code=5).stderr
    assert len(entries(archive)) == 1, "all are verified before the first goes in"
    run("archive", "add", str(damaged / "samples"), *archive, code=2)


def test_names_that_fit_several_or_none(make: Any, archive: list[str]) -> None:
    run("archive", "add", str(make("2026-01-01T00:00:00Z")), *archive, "--name", "nightly")
    run("archive", "add", str(make("2026-01-02T00:00:00Z")), *archive, "--name", "nightly")
    run("archive", "add", str(make("2026-01-03T00:00:00Z", complete=True)), *archive, "--name", "release")
    error = run("archive", "show", "nightly", *archive, code=2).stderr
    assert "2 runs" in error
    assert "2026-01-01" in error
    assert "2026-01-02" in error
    assert "nearest name: nightly" in run("archive", "show", "nigthly", *archive, code=2).stderr
    assert "no run of this name or id" in run("archive", "show", "abcdef012345", *archive, code=2).stderr
    ids = [one["id"] for one in entries(archive)]
    shown = json.loads(run("archive", "show", "nightly@latest", *archive, "--json").stdout)
    assert shown["entry"]["id"] == ids[1]
    wrong = run("archive", "add", str(make()), *archive, "--name", "x@latest", code=2).stderr
    assert "does not end in @latest" in wrong


def test_an_archived_run_is_a_baseline(original: Path, make: Any, archive: list[str]) -> None:
    run("archive", "add", str(original), *archive, "--name", "base")
    same = json.loads(run("compare", str(make()), "--baseline", "archive:base", *archive, "--json").stdout)
    assert same["comparisons"][0]["arms"] == ["baseline", "candidate"]
    assert same["comparisons"][0]["primary"]["log_ratios"] == [0.0]
    twice = run("compare", str(original), str(original), "--baseline", "archive:base", *archive, code=2).stderr
    assert "leave OTHER out" in twice
    assert "nearest name: base" in run("compare", "archive:bas", str(original), *archive, code=2).stderr
    run("archive", "add", str(make()), *archive, "--name", "base")
    ambiguous = run("compare", str(original), "--baseline", "archive:base", *archive, code=2).stderr
    assert "2 runs" in ambiguous


def test_history_follows_a_metric_over_commits(make: Any, archive: list[str]) -> None:
    for day, commit in ((1, "aaaa"), (2, "bbbb"), (3, "bbbb")):
        run("archive", "add", str(make(f"2026-01-0{day}T00:00:00Z", commit=commit * 10)), *archive)
    document = json.loads(run("archive", "history", "lookup_us.l1", *archive, "--arm", "early", "--json").stdout)
    assert document["metric"] == "lookup_us.l1.p50"
    assert [(one["commit"][:4], one["value"]) for one in document["runs"]] == [
        ("aaaa", 300.0), ("bbbb", 300.0), ("bbbb", 300.0),
    ]  # fmt: skip
    assert document["runs"][0]["change_ratio"]["reason"] == "the first run of this name and arm"
    assert [one["change_ratio"] for one in document["runs"][1:]] == [1.0, 1.0]
    table = run("archive", "history", "lookup_us.l1", *archive).stdout
    assert "aaaaaaaaaaaa" in table
    assert "+0.00 %" in table
    tail = json.loads(run("archive", "history", "step_us.p99", *archive, "--json").stdout)
    assert "368" in tail["runs"][0]["value"]["reason"]
    assert "nearest" in run("archive", "history", "lokup_us", *archive, code=2).stderr


def test_history_sets_no_run_beside_one_of_another_plan(
    original: Path, make: Any, archive: list[str], tmp_path: Path
) -> None:
    run("archive", "add", str(original), *archive)
    other = tmp_path / "seed-2"
    run("run", SCENARIO, *SMALL, "--seed", "2", "-o", str(other))
    run("archive", "add", str(other), *archive)
    rows = json.loads(run("archive", "history", "step_us", *archive, "--arm", "early", "--json").stdout)["runs"]
    assert rows[1]["change_ratio"]["reason"] == "the run before it had another plan"


def test_prune_shows_first_and_removes_when_told(make: Any, archive: list[str]) -> None:
    for day in (1, 2, 3):
        run("archive", "add", str(make(f"2026-01-0{day}T12:00:00Z")), *archive, "--name", "a")
    run("archive", "add", str(make("2026-01-01T12:00:00Z")), *archive, "--name", "b")

    def dates() -> list[tuple[str, str]]:
        return [(one["name"], one["date"][:10]) for one in entries(archive)]

    everything = dates()
    out = run("archive", "prune", "--keep", "1", *archive).stdout
    assert "2 run(s) would go; nothing was removed" in out
    assert dates() == everything
    run("archive", "prune", "--keep", "1", "--before", "2026-01-02", "--yes", *archive)
    assert sorted(dates()) == [("a", "2026-01-02"), ("a", "2026-01-03"), ("b", "2026-01-01")], "what both let go"
    run("archive", "prune", "--before", "2026-01-02T12:00:00Z", "--name", "b", "--yes", *archive)
    assert dates() == [("a", "2026-01-02"), ("a", "2026-01-03")]
    run("archive", "prune", "--keep", "1", "--yes", *archive)
    assert dates() == [("a", "2026-01-03")]
    assert len(list((Path(archive[1]) / "runs").iterdir())) == 1
    assert list((Path(archive[1]) / "incoming").iterdir()) == []
    assert "--keep N" in run("archive", "prune", *archive, code=2).stderr
    assert "write a day" in run("archive", "prune", "--before", "yesterday", *archive, code=2).stderr


def test_where_it_lies(original: Path, tmp_path: Path) -> None:
    def place(*arguments: str, **environment: str) -> str:
        done = run("archive", "add", str(original), *arguments, "--json", code=0, **environment)
        return str(json.loads(done.stdout)["archive"])

    state = {"ENGRAM_BENCH_STATE": str(tmp_path / "state")}
    assert place(**state) == str(tmp_path / "state" / "archive")
    own = {"ENGRAM_BENCH_ARCHIVE": str(tmp_path / "own")}
    assert place(**state, **own) == str(tmp_path / "own")
    assert place("--archive", str(tmp_path / "told"), **own) == str(tmp_path / "told")
    without = {key: value for key, value in os.environ.items() if key not in ("ENGRAM_BENCH_STATE", "HOME")}
    done = subprocess.run(
        [BINARY, "archive", "add", str(original)],
        env={**without, "XDG_STATE_HOME": str(tmp_path / "xdg")},
        capture_output=True,
        check=True,
    )
    assert b"added" in done.stdout
    assert (tmp_path / "xdg" / "engram-bench" / "archive" / "index.json").exists()


def test_a_folder_of_other_things_is_left_alone(original: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    error = run("archive", "add", str(original), "--archive", str(tmp_path / "home"), code=2).stderr
    assert "holds other things" in error
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["letter.txt"]
    assert "no archive there" in run("archive", "list", "--archive", str(tmp_path / "none"), code=2).stderr
    assert (
        "no archive there" in run("archive", "prune", "--keep", "1", "--archive", str(tmp_path / "none"), code=2).stderr
    )
    assert not (tmp_path / "none").exists()


def test_a_newer_archive_is_refused_and_left_alone(original: Path, make: Any, archive: list[str]) -> None:
    run("archive", "add", str(original), *archive)
    file = Path(archive[1]) / "archive.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema_version": 2}))
    for words in (
        ["list"],
        ["add", str(make())],
        ["show", "x"],
        ["history", "step_us"],
        ["prune", "--keep", "0", "--yes"],
    ):
        error = run("archive", *words, *archive, code=5).stderr
        assert "an archive of version 2, this program reads version 1: use the engram-bench that wrote it" in error
    assert len(list((Path(archive[1]) / "runs").iterdir())) == 1


def test_a_newer_result_is_refused_with_what_to_do(make: Any, archive: list[str]) -> None:
    newer = make(schema_version=2, version="7.0.0")
    for words in (["verify", str(newer)], ["compare", str(newer)], ["archive", "add", str(newer), *archive]):
        error = run(*words, code=5).stderr
        assert "schema_version 2, this program reads 1: use the engram-bench that wrote it (version 7.0.0)" in error


def test_a_result_of_the_first_version_stays_readable(archive: list[str]) -> None:
    """Written by engram-bench 0.1.0 and never to be made anew: what it says must be read for ever."""
    answer = json.loads(run("verify", str(OLD), "--json").stdout)
    assert (answer["complete"], answer["verdicts"], answer["samples_derived"]) == (True, 1, 48)
    judged = json.loads(run("compare", str(OLD), "--json").stdout)["comparisons"][0]
    assert judged["primary"]["log_ratios"] == [0.0, 0.0]
    run("archive", "add", str(OLD), *archive)
    rows = json.loads(run("archive", "history", "lookup_us.l1", *archive, "--json").stdout)["runs"]
    assert [one["value"] for one in rows] == [300.0, 300.0]


def test_two_writers_and_a_reader_at_once(make: Any, archive: list[str]) -> None:
    runs = [make(f"2026-02-{day:02}T00:00:00Z") for day in range(1, 13)]
    run("archive", "add", str(runs[0]), *archive)
    for round_ in range(3):
        halves = [runs[:7], runs[5:]]  # two runs are added by both
        writers = [start("archive", "add", *map(str, half), *archive) for half in halves]
        while any(writer.poll() is None for writer in writers):
            assert 1 <= len(entries(archive)) <= 12, "a reader sees whole entries at any time"
        for writer in writers:
            _, error = writer.communicate(timeout=60)
            assert writer.returncode == 0, error
        assert len(entries(archive)) == 12
        assert len(json.loads((Path(archive[1]) / "index.json").read_text())["runs"]) == 12
        if round_ == 0:
            run("verify", "--all", *archive)
        run("archive", "prune", "--before", "2026-02-02", "--keep", "0", "--yes", *archive)
        run("archive", "prune", "--keep", "1", "--yes", *archive)


def check_usable(archive: list[str], whole: set[str]) -> set[str]:
    """Lists, verifies, and holds nothing beside whole runs; `whole` were there before and must still be."""
    if not (Path(archive[1]) / "archive.json").exists():
        assert whole == set()
        return set()
    ids = {one["id"] for one in entries(archive)}
    assert whole <= ids
    if ids:
        run("verify", "--all", "--quiet", *archive)
    return ids


def test_killed_at_random_moments(make: Any, archive: list[str]) -> None:
    runs = [make() for _ in range(3)]
    begun = time.monotonic()
    run("archive", "add", *map(str, runs), *archive)
    length = time.monotonic() - begun
    generator = random.Random(7)
    for _ in range(25):
        shutil.rmtree(archive[1])
        process = start("archive", "add", *map(str, runs), *archive)
        time.sleep(generator.uniform(0, 1.2 * length))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        check_usable(archive, set())
        run("archive", "add", *map(str, runs), *archive)
        assert len(check_usable(archive, set())) == 3
        assert list((Path(archive[1]) / "incoming").iterdir()) == []


TRACED = ("openat", "mkdir", "write", "fsync", "rename", "unlink", "unlinkat", "flock")


@pytest.mark.parametrize("call", TRACED)
def test_killed_at_every_system_call(make: Any, archive: list[str], call: str) -> None:
    """SIGKILL at the first, second, ... such call of an add, and of a prune, until none is left."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    first, second = make("2026-01-01T00:00:00Z"), make("2026-01-02T00:00:00Z")
    trace = ["strace", "-qq", "-e", "signal=none", "-e", f"trace={call}", "-o", "/dev/null"]
    if subprocess.run([*trace, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("tracing is not permitted here")
    run("archive", "add", str(first), *archive)
    (kept,) = (one["id"] for one in entries(archive))
    pristine = Path(archive[1] + "-pristine")
    shutil.copytree(archive[1], pristine)
    prune = ["prune", "--before", "2026-01-02", "--yes"]
    for words, before, after in ((["add", str(second)], {kept}, 2), (prune, set(), 0)):
        # From the first call on; later in steps, since files are alike.
        number, kills = 1, 0
        while True:
            shutil.rmtree(archive[1])
            shutil.copytree(pristine, archive[1])
            inject = ["-e", f"inject={call}:signal=SIGKILL:when={number}"]
            done = subprocess.run(
                [*trace, *inject, BINARY, "archive", *words, *archive], capture_output=True, check=False
            )
            if done.returncode == 0:
                break
            assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), done.stderr
            kills += 1
            check_usable(archive, set(before))
            run("archive", *words, *archive)
            assert len(check_usable(archive, set(before))) == after
            assert list((Path(archive[1]) / "incoming").iterdir()) == []
            number += 1 if number < 12 else 7
        if call in ("openat", "write", "fsync", "rename", "flock"):
            assert kills > 0


@pytest.mark.parametrize(
    ("file", "words"), [("log.txt", "not what the manifest says"), ("MANIFEST.sha256", "changed while it was copied")]
)
def test_a_copy_that_is_not_the_run_does_not_stay(original: Path, archive: list[str], file: str, words: str) -> None:
    """Writes of one file that claim to be done and are not: as good as a folder that changes while it is copied."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    identity = hashlib.sha256((original / "MANIFEST.sha256").read_bytes()).hexdigest()
    copied = Path(archive[1]) / "incoming" / identity / "run" / file
    lost = ["-e", "trace=write", "-e", "inject=write:retval=65536", "-P", str(copied)]
    trace = ["strace", "-qq", "-e", "signal=none", "-o", "/dev/null"]
    if subprocess.run([*trace, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("tracing is not permitted here")
    add = [BINARY, "archive", "add", str(original), *archive]
    done = subprocess.run([*trace, *lost, *add], capture_output=True, text=True, check=False)
    assert (done.returncode, words in done.stderr) == (5, True), done.stderr
    assert entries(archive) == []
    run("archive", "add", str(original), *archive)
    assert len(entries(archive)) == 1


def test_an_index_that_does_not_fit_is_made_again(make: Any, archive: list[str]) -> None:
    run("archive", "add", str(make("2026-01-01T00:00:00Z")), str(make("2026-01-02T00:00:00Z")), *archive)
    index = Path(archive[1]) / "index.json"
    good = index.read_text()
    both = entries(archive)
    for spoiled in ("", good[: len(good) // 2], '{"runs": []}', good.replace(both[0]["id"], "0" * 64)):
        index.write_text(spoiled)
        assert entries(archive) == both
    index.unlink()
    assert entries(archive) == both
    run("archive", "add", str(make("2026-01-03T00:00:00Z")), *archive)
    assert len(json.loads(index.read_text())["runs"]) == 3


def test_a_run_that_was_changed_inside_the_archive_is_found(make: Any, archive: list[str]) -> None:
    run("archive", "add", str(make()), *archive)
    (entry,) = entries(archive)
    folder = Path(archive[1]) / "runs" / entry["id"] / "run"
    (folder / "log.txt").write_text("other\n")
    rehash(folder)
    assert "not the manifest that the run was added with" in run("verify", "--all", *archive, code=5).stderr


def test_a_disk_that_is_full_leaves_the_archive_as_it_was(make: Any, archive: list[str]) -> None:
    run("archive", "add", str(make()), *archive)
    before = entries(archive)
    second = make()
    largest = max(path.stat().st_size for path in second.rglob("*") if path.is_file())
    done = subprocess.run(
        [BINARY, "archive", "add", str(second), *archive],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest - 1, largest - 1)),
    )
    assert done.returncode == 1, done.stderr
    assert "File too large" in done.stderr
    assert entries(archive) == before
    assert list((Path(archive[1]) / "incoming").iterdir()) == [], "nothing is left of the half copy"
    run("archive", "add", str(second), *archive)
    assert len(entries(archive)) == 2
