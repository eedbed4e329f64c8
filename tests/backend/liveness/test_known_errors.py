"""A printed error has the one explanation that is true of it, and one that only looks alike has none."""

from __future__ import annotations

from typing import Any

import pytest

from stabilitybackend.judging.incidents.incidents import IncidentBook
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.judging.liveness.death.known_errors import KNOWN_ERRORS, explained
from support.jobs.watched_job import Job

CUDA_ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
NCCL = (
    "DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, {what} "
    "(run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n{name}: {words}\nLast error:\n{last}"
)
OOM = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 79.15 GiB of which "
    "1.06 GiB is free. Including non-PyTorch memory, this process has 78.08 GiB memory in use. Of the allocated memory "
    "60.10 GiB is allocated by PyTorch, and {unused} is reserved by PyTorch but unallocated."
)


def nccl(what: str, name: str, words: str, last: str = "") -> str:
    return NCCL.format(what=what, name=name, words=words, last=last)


#: Name -> errors as they are printed: "type: message".
PRINTED: dict[str, list[str]] = {
    "Illegal memory access on the GPU": [
        f"AcceleratorError: CUDA error: an illegal memory access was encountered{CUDA_ADVICE}",
        "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered",
        "DistBackendError: [Rank 3] NCCL watchdog thread terminated with exception: CUDA error: an illegal "
        "memory access "
        "was encountered",
    ],
    "Misaligned address on the GPU": ["RuntimeError: CUDA error: misaligned address"],
    "Illegal instruction on the GPU": ["RuntimeError: CUDA error: an illegal instruction was encountered"],
    "Assertion in a GPU kernel": [f"RuntimeError: CUDA error: device-side assert triggered{CUDA_ADVICE}"],
    "Launch failure on the GPU": ["RuntimeError: CUDA error: unspecified launch failure"],
    "Uncorrectable memory error of the GPU (ECC)": ["RuntimeError: CUDA error: uncorrectable ECC error encountered"],
    "Uncorrectable error of NVLink": [
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"
    ],
    "GPU memory in pieces": [
        OOM.format(asked="2.00 GiB", unused="15.20 GiB"),
        OOM.format(asked="900.00 MiB", unused="1.00 GiB"),
    ],
    "GPU memory full": [
        OOM.format(asked="16.00 GiB", unused="200.50 MiB"),
        "RuntimeError: CUDA error: out of memory",
    ],
    "cuDNN not initialized": ["RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"],
    "cuBLAS not initialized": [
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
    "NVIDIA driver too old": [
        "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
    ],
    "Kernels for another GPU": ["RuntimeError: CUDA error: no kernel image is available for execution on the device"],
    "GPU busy": ["RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"],
    "Fabric manager not running": ["RuntimeError: CUDA error: system not yet initialized"],
    "No GPU visible": [
        "RuntimeError: No CUDA GPUs are available", "RuntimeError: CUDA error: no CUDA-capable device is detected",
    ],
    "CUDA in a forked process": [
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use "
        "the 'spawn' start method"
    ],
    "InfiniBand transfer failed": [
        nccl("remote process exited or there was a network error", "ncclRemoteError", "A call failed possibly due to a "
             "network error or a remote process exiting prematurely.",
             "NET/IB: Got completion from peer 10.0.0.7<53113> with status=12 opcode=0 len=0 vendor err 129 (Recv)"),
        "RuntimeError: NCCL error: NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129",
    ],
    "InfiniBand port failed": ["RuntimeError: NCCL error: NET/IB : mlx5_2:1 Got async event : port error"],
    "Two ranks on one GPU": [
        nccl("invalid usage", "ncclInvalidUsage", "This usually reflects invalid usage of NCCL library.",
             "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 50000")
    ],
    "Collective timed out (NCCL watchdog)": [
        "DistBackendError: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=81, "
        "OpType=ALLREDUCE, "
        "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
    ],
    "Other ranks did not come to the barrier": [
        "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 1000 ms"
    ],
    "A peer ended (NCCL)": [
        nccl("remote process exited or there was a network error", "ncclRemoteError", "A call failed possibly due to a "
             "network error or a remote process exiting prematurely.", "socketProgress: Connection closed by "
             "remote peer")
    ],
    "NCCL out of GPU memory": [
        nccl("unhandled cuda error", "ncclUnhandledCudaError", "Call to CUDA function failed.",
             "Cuda failure 2 'out of memory'")
    ],
    "CUDA call within NCCL failed": [
        nccl("unhandled cuda error", "ncclUnhandledCudaError", "Call to CUDA function failed.",
             "Cuda failure 'invalid device ordinal'")
    ],
    "System call within NCCL failed": [
        nccl("unhandled system error", "ncclSystemError", "System call (e.g. socket, malloc) or external library call "
             "failed or device error.", "Error while creating shared memory segment /dev/shm/nccl-8fsCJq (size "
             "9637888)")
    ],
    "NCCL was called wrongly": [
        nccl("invalid usage", "ncclInvalidUsage", "This usually reflects invalid usage of NCCL library.")
    ],
    "Peer's connection closed (Gloo)": [
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.1.1]:3520"
    ],
    "Port of the rendezvous in use": [
        "DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: "
        "false, code: -98, name: EADDRINUSE, message: address already in use"
    ],
    "Port in use": ["OSError: [Errno 98] Address already in use"],
    "Ranks did not meet": [
        "DistStoreError: Timed out after 1801 seconds waiting for clients. 1/2 clients joined.",
        "DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (node1, 29500).",
    ],
    "No process group": [
        "ValueError: Default process group has not been initialized, please make sure to call init_process_group."
    ],
    "Parameters without a gradient (DDP)": [
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. "
        "This error "
        "indicates that your module has parameters that were not used in producing loss."
    ],
    "Tensor changed in place": [
        "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: "
        "[torch.FloatTensor [4, 4]] is at version 2; expected version 1 instead."
    ],
    "Second backward pass": [
        "RuntimeError: Trying to backward through the graph a second time (or directly access saved tensors after they "
        "have already been freed)."
    ],
    "Tensors on different devices": [
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
    ],
    "Checkpoint of another world size": [
        "ZeRORuntimeException: The checkpoint being loaded used a DP world size of 8 but the current world size is 16. "
        "Automatic adjustment of ZeRO's optimizer state partitioning with a new world size is not currently supported."
    ],
    "Weights of another shape": [
        "RuntimeError: Error(s) in loading state_dict for GPT:\n\tsize mismatch for head.weight: copying a param with "
        "shape torch.Size([50304, 768]) from checkpoint, the shape in current model is torch.Size([50257, 768]).",
        "CheckpointException: ValueError: Size mismatch between saved torch.Size([8]) and current: "
        "torch.Size([4]) for w",
    ],
    "Weights saved from a wrapper": [
        'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "a.weight", '
        '"a.bias". \n'
        '\tUnexpected key(s) in state_dict: "module.a.weight", "module.a.bias". ',
        'RuntimeError: Error(s) in loading state_dict for OptimizedModule:\n\tMissing key(s) in state_dict: '
        '"_orig_mod.a.weight". \n\tUnexpected key(s) in state_dict: "a.weight". ',
    ],
    "Checkpoint file damaged": [
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
    ],
    "Checkpoint needs more than weights": [
        "UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two options"
    ],
    "Disk quota exceeded": ["OSError: [Errno 122] Disk quota exceeded: '/home/a/ckpt/step_100.pt'"],
    "Disk full": [
        "OSError: [Errno 28] No space left on device",
        "RuntimeError: [enforce fail at inline_container.cc:603] . PytorchStreamWriter failed writing file "
        "data/0: file "
        "write failed",
    ],
    "Too many open files": [
        "OSError: [Errno 24] Too many open files: '/data/shard-00017.bin'", "RuntimeError: received 0 items of ancdata",
        "RuntimeError: unable to open shared memory object </torch_29_13_0> in read-write mode: Too many open "
        "files (24)",
    ],
    "Shared memory of a DataLoader worker full": [
        "RuntimeError: DataLoader worker (pid 1234) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are out of shared memory. Please try to raise your shared memory limit.",
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_29_13_0>: No space left on device (28)",
        "RuntimeError: unable to open shared memory object </torch_29_13_0> in read-write mode: No space left "
        "on device "
        "(28)",
    ],
    "DataLoader worker killed": ["RuntimeError: DataLoader worker (pid 1234) is killed by signal: Killed. "],
    "DataLoader worker gone": ["RuntimeError: DataLoader worker (pid(s) 1234, 1240) exited unexpectedly"],
    "Bus error": ["Fatal Python error: Bus error\n\nCurrent thread 0x00007f (most recent call first):"],
    "No memory for a new process": ["OSError: [Errno 12] Cannot allocate memory"],
    "Stale file handle": ["OSError: [Errno 116] Stale file handle: '/nfs/data/a.bin'"],
    "Disk or file server failed": ["OSError: [Errno 5] Input/output error"],
    "Token of the Hugging Face Hub refused": [
        "HfHubHTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/api/whoami-v2 (Request "
        "ID: R)\n\n"
        "Invalid credentials in Authorization header",
        "GatedRepoError: 403 Client Error. Cannot access gated repo for url https://huggingface.co/a/b/resolve/main/c.",
    ],
    "Repository of the Hugging Face Hub not found": [
        "RepositoryNotFoundError: 401 Client Error. (Request ID: R)\n\nRepository Not Found for url: "
        "https://huggingface.co/api/models/a/b.\nPlease make sure you specified the correct `repo_id` and `repo_type`."
    ],
}  # fmt: skip

#: Errors that look like one of the table, or tell of one, and are another.
ALIKE = (
    "ValueError: an illegal memory layout was encountered",
    "RuntimeError: illegal access to memory map of shard 3",
    "AssertionError: assert triggered on device 3",
    "RuntimeError: CUDA error: invalid device ordinal",
    "RuntimeError: CUDA error: invalid argument",
    "RuntimeError: CUDA error: the launch timed out and was terminated",
    "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm`",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate",
    "MemoryError: Unable to allocate 12.0 GiB for an array with shape (40000, 40000) and data type float64",
    "OutOfMemoryError: the tokenizer ran out of memory budget",
    "TimeoutError: watchdog of the data server: no answer for 30 s",
    "TimeoutError: collective operation of the team timed out",
    "RuntimeError: unhandled system error in the payment service",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "ConnectionRefusedError: [Errno 111] Connection refused",
    "ConnectionError: Connection closed by peer while reading https://example.com/data",
    "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, "
    "code: -13, name: EACCES, message: permission denied",
    "OSError: [Errno 99] Cannot assign requested address",
    "RuntimeError: Timed out after 30 seconds waiting for the lock",
    "RuntimeError: size mismatch, m1: [4 x 8], m2: [16 x 4]",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x128 and 256x64)",
    "RuntimeError: The size of tensor a (4) must match the size of tensor b (8) at non-singleton dimension 0",
    'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "head.weight". ',
    'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "module.a.weight". \n'
    '\tUnexpected key(s) in state_dict: "module.b.weight". ',
    "RuntimeError: Expected to have finished the epoch before starting a new one",
    "RuntimeError: Invalid magic number; corrupt file?",
    "PermissionError: [Errno 13] Permission denied: '/ckpt'",
    "OSError: [Errno 30] Read-only file system: '/ckpt'",
    "OSError: [Errno 27] File too large",
    "RuntimeError: unable to open shared memory object </torch_29_13_0> in read-only mode: No such file or "
    "directory (2)",
    "OSError: [Errno 23] Too many open files in system",
    "OSError: [Errno 7] Argument list too long",
    "ValueError: too many values to unpack (expected 2)",
    "RuntimeError: DataLoader worker (pid 1234) is killed by signal: Segmentation fault. ",
    "RuntimeError: DataLoader timed out after 60 seconds",
    "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):",
    "Fatal Python error: Aborted",
    "HTTPError: 401 Client Error: Unauthorized for url: https://api.example.com/token",
    "HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/models/a/b",
    "KeyError: 'ECC'",
    "ValueError: bad batch",
    "",
)


def test_every_entry_is_shown_by_a_printed_error_of_its_own() -> None:
    assert list(PRINTED) == [known.name for known in KNOWN_ERRORS]
    assert len(KNOWN_ERRORS) >= 30


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in PRINTED.items() for text in texts])
def test_a_printed_error_has_its_explanation(name: str, text: str) -> None:
    found = explained(text)
    assert found.name == name
    assert found.means.endswith(".")
    assert found.cause.endswith(".")
    assert found.next
    assert found.source


@pytest.mark.parametrize("text", ALIKE)
def test_an_error_that_only_looks_alike_has_no_explanation(text: str) -> None:
    assert explained(text).name == ""


def died(text: str) -> Job:
    kind, _, message = text.partition(": ")
    job = Job(nodes={"a": [0, 1]})
    job.run(30)
    job.event("exception", 1, {"type": kind, "message": message})
    job.dies(1, cause="exception", exit_code=1)
    return job


def test_the_incident_of_a_death_tells_meaning_cause_and_the_next_step_of_a_known_error() -> None:
    said = died("OSError: [Errno 122] Disk quota exceeded: '/home/a'").run(1, moving=False)[-1]
    book = IncidentBook("r")
    (incident, *_) = book.apply(said, segment=0, time=said.now_step, checkpoints=UsableOf([]))
    advice = incident.suggestion
    assert "ended at step 60, in forward: OSError: [Errno 122] Disk quota exceeded: '/home/a'. Disk quota" in said.text
    assert "Usual cause: checkpoints and caches that pile up" in said.text
    assert advice is not None
    assert advice.text.startswith("Make room within the quota before the next start. Start the job again")
    assert any("quota -s" in line for line in advice.checklist)
    assert "errno" in advice.source


@pytest.mark.parametrize("text", ["ValueError: bad batch", "KeyboardInterrupt: "])
def test_an_error_that_is_not_known_is_quoted_and_nothing_is_added(text: str) -> None:
    said: Any = died(text).run(1, moving=False)[-1]
    assert "Usual cause" not in said.text
    assert said.evidence["explained"]["name"] == ""


def test_a_restart_keeps_what_the_error_meant() -> None:
    job = died("RuntimeError: received 0 items of ancdata")
    job.run(1, moving=False)
    job.start, job.stuck = 2, {}
    said = job.run(3)[-1]
    book = IncidentBook("r")
    (incident, *_) = book.apply(said, segment=0, time=said.now_step, checkpoints=UsableOf([]))
    assert said.state == "resolved"
    assert "Too many open files: " in said.text
    assert incident.suggestion is not None
    assert incident.suggestion.action == "none"
    assert any("ulimit -n" in line for line in incident.suggestion.checklist)
