"""Where and with what a run happened."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

__all__ = ["describe_environment"]
__dir__ = __all__.copy

PACKAGES = ("ffebm", "torch", "lightning", "numpy", "pydantic", "safetensors", "scikit-learn")


def describe_environment(seed: int) -> dict[str, Any]:
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "seed": seed,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "system": platform.platform(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def _commit() -> str:
    """Of the source of this package, with a mark if it has changed since; empty when it was installed without it."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ("git", *arguments), cwd=here, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        if git("ls-files", Path(__file__).name) == "":
            return ""  # installed into somebody else's repository
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())
