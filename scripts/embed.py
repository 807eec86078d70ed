"""`python scripts/embed.py OUT.cpp NAMESPACE FUNCTION FILE...`: writes the texts of FILEs into a C++ source, so that
the program carries its data files and needs no folder of them."""

from __future__ import annotations

import sys
from pathlib import Path

PIECE = 8000  # characters of one literal: compilers need not take more than 64 KiB


def literal(text: str) -> str:
    pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
    return "\n    ".join(f'R"embed({piece})embed"' for piece in pieces)


def main() -> None:
    out, namespace, function, *files = sys.argv[1:]
    entries = "".join(f'  {{"{Path(file).stem}",\n    {literal(Path(file).read_text())}}},\n' for file in files)
    Path(out).write_text(
        "#include <string_view>\n#include <utility>\n#include <vector>\n"
        f"namespace {namespace} {{\n"
        f"std::vector<std::pair<std::string_view, std::string_view>> {function}() {{\n  return {{\n{entries}  }};\n}}\n"
        f"}}  // namespace {namespace}\n"
    )


if __name__ == "__main__":
    main()
