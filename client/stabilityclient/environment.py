"""Versions, devices and settings of this process that may change a number. Nothing is imported."""

from __future__ import annotations

import os
import sys

from stabilityclient.arguments import cut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = ["PACKAGES", "VARIABLES", "environment", "git_commit"]

#: Packages that compute, or affect a computation; those that the job has imported are reported.
PACKAGES = (
    "torch", "numpy", "triton", "torchvision", "torchaudio", "torchao", "torchdata", "transformers", "accelerate",
    "datasets", "tokenizers", "peft", "trl", "lightning", "pytorch_lightning", "deepspeed", "megatron.core",
    "transformer_engine", "flash_attn", "xformers", "apex", "bitsandbytes", "timm", "webdataset", "streaming",
    "composer", "jax", "jaxlib", "flax", "optax", "tensorflow",
)  # fmt: skip
#: Variables of the environment that change a computation. No other one is ever sent: they may hold secrets.
VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "MKL_CBWR", "MKL_NUM_THREADS",
    "NCCL_ALGO", "NCCL_NVLS_ENABLE", "NCCL_PROTO", "NVIDIA_TF32_OVERRIDE", "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
    "NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "OMP_NUM_THREADS", "PYTHONHASHSEED",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "XLA_FLAGS",
)  # fmt: skip
MAX_TEXT_CHARS = 200
#: Folders above that of the script in which a checkout is looked for.
MAX_PARENTS = 12
_DRIVER = "/proc/driver/nvidia/version"


def environment(environ: Mapping[str, str], world_size: int, git: str) -> dict[str, dict[str, str]]:
    """Return ``entries`` (the facts, name -> text) and ``variables`` (those of VARIABLES that are set).

    Args:
        git: the commit of the script's checkout, "" for none.
    """
    modules = sys.modules
    found = {"python": sys.version.split()[0], "ranks": str(world_size)}
    if git:
        found["git"] = git
    for name in PACKAGES:
        # Not getattr: a package that imports its parts when they are asked for must not do so here.
        version = getattr(modules.get(name), "__dict__", {}).get("__version__")
        if isinstance(version, str):  # an object may do anything where it is asked for its text
            found[name] = cut(version, MAX_TEXT_CHARS)
    for name, read in _FACTS.items():
        try:
            fact = read(modules.get("torch"))
        except Exception:  # a build without it, a module half imported, no such file: unknown
            continue
        if fact is not None:
            found[name] = cut(fact, MAX_TEXT_CHARS)
    variables = {name: cut(environ[name], MAX_TEXT_CHARS) for name in VARIABLES if name in environ}
    return {"entries": found, "variables": variables}


def git_commit(script: str | None) -> str:
    """Return the commit that the checkout of ``script`` is at, "" where it is in none; no process is started.

    Changes that are not committed do not show.

    Args:
        script: file that Python was started with, None for the working folder.
    """
    try:
        folder = os.path.abspath(os.path.dirname(script) if script else os.curdir)
        for _ in range(MAX_PARENTS):
            place = os.path.join(folder, ".git")
            if os.path.isfile(place):  # a worktree
                place = os.path.join(folder, _read(place).partition("gitdir: ")[2])
            if os.path.isdir(place):
                return _commit_of(place)
            if folder == (folder := os.path.dirname(folder)):
                break
    except OSError:
        pass
    return ""


def _commit_of(place: str) -> str:
    head = _read(os.path.join(place, "HEAD"))
    if not head.startswith("ref: "):
        return head[:40]
    branch = head[5:]
    common = os.path.join(place, "commondir")
    shared = os.path.join(place, _read(common)) if os.path.isfile(common) else place
    if os.path.isfile(loose := os.path.join(shared, branch)):
        return _read(loose)[:40]
    lines = _read(os.path.join(shared, "packed-refs")).splitlines()
    return next((line[:40] for line in lines if line.endswith(f" {branch}")), "")


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(4 * 1024 * 1024).strip()


def _driver(torch: Any) -> str | None:
    if not os.path.exists(_DRIVER):
        return None
    words = _read(_DRIVER).partition("\n")[0].split()
    return next((word for word in words if word[:1].isdigit() and "." in word), None)


def _devices(torch: Any) -> str | None:
    if not torch.cuda.is_initialized():  # asking would start CUDA in this process
        return None
    names = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    return ", ".join(f"{names.count(name)} x {name}" for name in sorted(set(names)))


#: Entry -> its reader, given torch or None.
_FACTS: dict[str, Callable[[Any], object]] = {
    "driver": _driver,
    "gpu": _devices,
    "cuda": lambda torch: torch.version.cuda,
    "hip": lambda torch: getattr(torch.version, "hip", None),
    "cudnn": lambda torch: torch.backends.cudnn.version(),
    "nccl": lambda torch: ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_initialized() else None,
    "float32_matmul": lambda torch: torch.get_float32_matmul_precision(),
    "cudnn.benchmark": lambda torch: torch.backends.cudnn.benchmark if torch.version.cuda else None,
    "deterministic": lambda torch: torch.are_deterministic_algorithms_enabled(),
}
