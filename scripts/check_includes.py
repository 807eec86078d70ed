"""Holds the includes between folders to docs/architecture.md: arrows point down only, so there are no circles."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# From the ground up: a folder may include what stands before it. Programs stand above all folders they try out.
LAYERS = [
    "harness/base", "kernels", "harness/engram", "harness/stats", "harness/evidence", "harness/control", "harness/plan",
    "placement", "collectors", "harness/backend", "harness/replay", "harness/rank/tables", "harness/rank/step",
    "harness/rank", "harness/supervise",
    "harness/measure", "harness/result", "harness/cli", "harness", "kernels/bench", "collectors/bench", "tests",
]
# These may include nothing else of the tree, and neither the OS nor CUDA nor JSON.
PURE = {
    "harness/engram": {"harness/base"},
    "harness/stats": {"harness/base"},
    "harness/evidence": {"harness/base", "harness/stats"},
}
IMPURE_HEADER = re.compile(r"<(sys/|linux/|unistd|fcntl|pthread|numa|hwloc|cuda|nccl|nvml|nlohmann)")
CUDA_HEADER = re.compile(r"<(cuda|cublas|nccl|nvtx|cupti)")
CUDA_FOLDERS = {"kernels", "harness/backend"}  # nothing above the backend knows CUDA
INCLUDE = re.compile(r'^#include (?:"([^"]+)"|(<[^>]+>))', re.MULTILINE)


def layer_of(path: str) -> str:
    """The longest layer that `path` lies in, so that harness/backend/cuda counts as harness/backend."""
    folders = [str(folder) for folder in Path(path).parents]
    found = next((folder for folder in folders if folder in LAYERS), None)
    if found is None:
        raise SystemExit(f"{path}: its folder is not in LAYERS of {Path(__file__).name}; put it at its height")
    return found


def faults_of(path: str, text: str) -> list[str]:
    """What is wrong with the includes of one file, one line a fault."""
    layer = layer_of(path)
    faults = []
    for own, system in INCLUDE.findall(text):
        if own and "/" in own:
            target = layer_of(own)
            if target != layer and LAYERS.index(target) > LAYERS.index(layer):
                faults.append(f"{path}: {layer} lies below {target} and must not include {own}")
            if target != layer and layer in PURE and target not in PURE[layer]:
                faults.append(f"{path}: {layer} is pure and must not include {own}")
        elif layer in PURE and IMPURE_HEADER.match(system):
            faults.append(f"{path}: {layer} is pure and must not include {system}")
        elif CUDA_HEADER.match(system) and layer not in CUDA_FOLDERS and not layer.startswith(("tests", "kernels/")):
            faults.append(f"{path}: only {' and '.join(sorted(CUDA_FOLDERS))} know CUDA: {system}")
    return faults


def main() -> int:
    patterns = ["*.cpp", "*.h", "*.cu", "*.cuh"]
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)
    faults = [fault for path in listed.stdout.split() for fault in faults_of(path, (ROOT / path).read_text())]
    print("".join(f"{fault}\n" for fault in faults), end="", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
