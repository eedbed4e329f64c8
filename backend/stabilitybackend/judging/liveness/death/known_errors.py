"""The most frequent errors of training jobs: meaning, usual cause, next step. Pure.

An entry matches whole phrases of the error, as printed by their libraries: a similar error has no explanation and is
quoted. The first match counts, so specific entries come before general ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stabilitybackend.schema.evidence import Explained, Raised

__all__ = ["KNOWN_ERRORS", "explained", "printed"]

_CUDA = "CUDA Runtime API, error types (docs.nvidia.com/cuda/cuda-runtime-api)"
_CUDNN = "cuDNN API, status codes (docs.nvidia.com/deeplearning/cudnn)"
_CUBLAS = "cuBLAS, status codes (docs.nvidia.com/cuda/cublas)"
_NCCL = "NCCL User Guide, troubleshooting (docs.nvidia.com/deeplearning/nccl)"
_TORCH_CUDA = "PyTorch notes on CUDA semantics (pytorch.org/docs/stable/notes/cuda.html)"
_TORCH_DIST = "PyTorch documentation of torch.distributed (pytorch.org/docs/stable/distributed.html)"
_TORCH_DDP = "PyTorch documentation of DistributedDataParallel (pytorch.org/docs/stable/generated)"
_TORCH_MP = (
    "PyTorch documentation of torch.multiprocessing, sharing strategies (pytorch.org/docs/stable/multiprocessing.html)"
)
_TORCH_DATA = "PyTorch documentation of torch.utils.data (pytorch.org/docs/stable/data.html)"
_TORCH_GRAD = "PyTorch notes on autograd mechanics (pytorch.org/docs/stable/notes/autograd.html)"
_TORCH_SAVE = "PyTorch notes on serialization (pytorch.org/docs/stable/notes/serialization.html)"
_TORCH_ELASTIC = "PyTorch documentation of torchrun, rendezvous (pytorch.org/docs/stable/elastic)"
_DEEPSPEED = "DeepSpeed documentation of universal checkpoints (deepspeed.ai/tutorials/universal-checkpointing)"
_ERRNO = "Linux man-pages, errno(3)"
_HUB = "Hugging Face documentation of access tokens (huggingface.co/docs/hub/security-tokens)"
_BYTEROBUST = "ByteRobust (arXiv 2509.16293): 41 of 62 illegal accesses came from the program, 21 from a machine"


@dataclass(frozen=True, slots=True)
class KnownError:
    """One error and its explanation.

    Args:
        name: short.
        phrases: alternatives; all phrases of one have to be in the printed text, case-sensitive.
        means, cause: a sentence each.
        next: lines to follow; the first one is the advice.
        source: of the explanation.
        only: further condition on the printed text, None for none.
    """

    name: str
    phrases: Sequence[Sequence[str]]
    means: str
    cause: str
    next: Sequence[str]
    source: str
    only: Callable[[str], bool] | None = None

    def fits(self, text: str) -> bool:
        """Return whether a printed text is this error."""
        found = any(all(phrase in text for phrase in every) for every in self.phrases)
        return found and (self.only is None or self.only(text))


def printed(exception: Raised | None, fatal: str) -> str:
    """Return the last output of a process: its exception, else its fatal error."""
    if exception is not None:
        return f"{exception.type}: {exception.message}"
    return fatal


def explained(text: str) -> Explained:
    """Return the explanation of a printed error; an empty one for an unlisted error.

    Example:
        >>> explained("OSError: [Errno 24] Too many open files").name
        'Too many open files'
        >>> explained("ValueError: too many values to unpack").name
        ''
    """
    for known in KNOWN_ERRORS:
        if known.fits(text):
            return Explained(known.name, known.means, known.cause, list(known.next), known.source)
    return Explained()


#: "Tried to allocate 2.00 GiB", "of the allocated memory ..., and 5.10 GiB is reserved by PyTorch but unallocated".
_ASKED = re.compile(r"Tried to allocate ([\d.]+) (\w+)")
_UNUSED = re.compile(r"([\d.]+) (\w+) is reserved by PyTorch but unallocated")
_MIB = {"bytes": 2.0**-20, "KiB": 2.0**-10, "MiB": 1.0, "GiB": 2.0**10}


def _fragmented(text: str) -> bool:
    """Return whether more memory was unused in PyTorch's cache than requested: in pieces too small."""
    asked, unused = _ASKED.search(text), _UNUSED.search(text)
    return asked is not None and unused is not None and _mib(unused) >= _mib(asked)


def _mib(found: re.Match[str]) -> float:
    return float(found[1]) * _MIB.get(found[2], 0.0)


#: Prefixes of DDP and torch.compile before the names of weights.
_WRAPPERS = ("module.", "_orig_mod.")
_WEIGHT = re.compile(r'"([\w.]+)"')


def _wrapped(text: str) -> bool:
    """Return whether the weights of one side only have a wrapper's prefix."""
    missing, _, unexpected = text.partition("Unexpected key(s) in state_dict")
    sides = [[name.startswith(_WRAPPERS) for name in _WEIGHT.findall(side)] for side in (missing, unexpected)]
    return all(sides) and any(all(one) and not any(other) for one, other in (sides, sides[::-1]))


def _not_a_missing_repository(text: str) -> bool:
    # The Hub answers 401 also for a missing repository.
    return "Repository Not Found" not in text


_ONE_BY_ONE = "Run once with CUDA_LAUNCH_BLOCKING=1: the traceback then names the line that started the kernel."
_SANITIZER = "compute-sanitizer names the kernel and the address; the same batch again tells data from machine."
_SAME_GPU = "Other GPUs with the same error: the program. Always this GPU: have it tested (dcgmi diag), read its Xids."
_NCCL_LOG = "Start with NCCL_DEBUG=INFO: the first WARN of the first rank names the call that failed."
_FIRST_RANK = "Find the rank that did not come: its stack, its exit and its last step are on this server."
_SPACE = "df -h and df -i of the path in the message; quota -s, or the quota tool of the file system."
_OLD_CHECKPOINTS = "Delete or move old checkpoints and caches; keep fewer of them."
_WHOLE = "The checkpoint that was being written is not whole: resume from the one before."

KNOWN_ERRORS: Sequence[KnownError] = (
    # --- the GPU ------------------------------------------------------------------------------------------------------
    KnownError(
        "Illegal memory access on the GPU",
        (("an illegal memory access was encountered",), ("CUDA_ERROR_ILLEGAL_ADDRESS",)),
        "A kernel read or wrote GPU memory that was not its own; the line that Python names may be a later one.",
        "an index out of range or a faulty custom or fused kernel, less often a machine.",
        ("Find the kernel before the next start.", _ONE_BY_ONE, _SANITIZER, _SAME_GPU),
        f"{_CUDA}; {_BYTEROBUST}",
    ),
    KnownError(
        "Misaligned address on the GPU",
        (("CUDA error: misaligned address",),),
        "A kernel read memory at an address that does not fit the size of what it reads.",
        "a custom kernel with vector loads on a tensor that is sliced or not contiguous.",
        ("Give the kernel contiguous, aligned tensors.", _ONE_BY_ONE, _SANITIZER),
        _CUDA,
    ),
    KnownError(
        "Illegal instruction on the GPU",
        (("an illegal instruction was encountered",),),
        "The GPU met an instruction that it does not know while it ran a kernel.",
        "a kernel that was built for other GPUs, memory that was overwritten, or a faulty GPU.",
        ("Look whether it comes again on another GPU.", _SAME_GPU, _SANITIZER),
        _CUDA,
    ),
    KnownError(
        "Assertion in a GPU kernel",
        (("device-side assert triggered",),),
        "A kernel checked its input and found a value out of range; every later CUDA call of the process fails too.",
        "a label or token id that is negative or not below the number of classes or the vocabulary.",
        (
            "Look at the lines above the error: 'Assertion ... failed' names the check.",
            "Compare the largest and the smallest label or token id of the batch with the model's sizes.",
            _ONE_BY_ONE,
            "The same batch on the CPU gives a plain IndexError.",
        ),
        _CUDA,
    ),
    KnownError(
        "Launch failure on the GPU",
        (("CUDA error: unspecified launch failure",),),
        "A kernel ended by an error of which CUDA knows no more; the process can't use the GPU any more.",
        "an invalid pointer or shared memory out of range in a custom kernel, or a faulty GPU.",
        ("Find the kernel before the next start.", _SANITIZER, _SAME_GPU),
        _CUDA,
    ),
    KnownError(
        "Uncorrectable memory error of the GPU (ECC)",
        (("uncorrectable ECC error encountered",),),
        "The GPU's memory had an error that its check bits can't correct; nothing computed after it can be trusted.",
        "a weak memory cell or a faulty GPU.",
        (
            "Reset the GPU, or take it out, before the next start.",
            "nvidia-smi -q -d ECC,ROW_REMAPPER: pending and failed remappings, before a reset wipes the counters.",
            "A second one on the same GPU: have it exchanged.",
        ),
        _CUDA,
    ),
    KnownError(
        "Uncorrectable error of NVLink",
        (("uncorrectable NVLink error detected",),),
        "A transfer between two GPUs had an error that the link can't correct.",
        "a faulty link, bridge or switch, or a GPU that is going.",
        ("Reset the GPUs of the node before the next start.", "nvidia-smi nvlink -e: which link counts errors?"),
        _CUDA,
    ),
    KnownError(
        "GPU memory in pieces",
        (("CUDA out of memory.", "is reserved by PyTorch but unallocated"),),
        "The GPU's memory is full, though PyTorch holds more unused memory than was asked for: in pieces too small.",
        "fragmentation: sequences or batches of changing length, or caches of many sizes.",
        (
            "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
            "Pad to a few fixed lengths; avoid allocations of ever new sizes.",
            "torch.cuda.memory._snapshot() shows the pieces.",
        ),
        _TORCH_CUDA,
        _fragmented,
    ),
    KnownError(
        "GPU memory full",
        (("CUDA out of memory.",), ("CUDA error: out of memory",)),
        "The GPU's memory did not suffice for one more tensor.",
        "a longer sequence or bigger batch than before, a tensor kept over steps, or another process on the GPU.",
        (
            "Compare this step's batch and sequence length with earlier ones; lower the micro-batch.",
            "nvidia-smi: is another process on this GPU, such as one of the last start?",
            "Memory that grows from step to step: a loss or output kept with its graph (use .item() or .detach()).",
            "Activation checkpointing, sharding (FSDP, ZeRO) or a smaller micro-batch with accumulation.",
        ),
        _TORCH_CUDA,
    ),
    KnownError(
        "cuDNN not initialized",
        (("CUDNN_STATUS_NOT_INITIALIZED",),),
        "cuDNN could not set itself up on the GPU.",
        "no GPU memory left for its workspace; else versions of cuDNN, CUDA and driver that do not fit.",
        (
            "Look at the free memory of the GPU first.",
            "An earlier CUDA error of the same process: that one is the cause.",
            "torch.backends.cudnn.version(): the cuDNN of another installation on LD_LIBRARY_PATH?",
        ),
        _CUDNN,
    ),
    KnownError(
        "cuBLAS not initialized",
        (("CUBLAS_STATUS_NOT_INITIALIZED",), ("CUBLAS_STATUS_ALLOC_FAILED",)),
        "cuBLAS could not set itself up on the GPU.",
        "no GPU memory left for its workspace, or an earlier error of a kernel (an index out of range).",
        ("Look at the free memory of the GPU first.", _ONE_BY_ONE, "Token ids and labels: all within range?"),
        _CUBLAS,
    ),
    KnownError(
        "NVIDIA driver too old",
        (
            ("CUDA driver version is insufficient for CUDA runtime version",),
            ("The NVIDIA driver on your system is too old",),
        ),
        "The program was built for a newer CUDA than this node's driver knows.",
        "a node with an older driver than the others, or a new container image.",
        (
            "Compare nvidia-smi of this node with the others': driver and CUDA version.",
            "Update the driver, or take an image of an older CUDA.",
        ),
        _CUDA,
    ),
    KnownError(
        "Kernels for another GPU",
        (("no kernel image is available for execution on the device",),),
        "The program has no code for this generation of GPU.",
        "PyTorch or an extension that was built for other compute capabilities.",
        (
            "torch.cuda.get_arch_list() against torch.cuda.get_device_capability().",
            "Build the extension again with TORCH_CUDA_ARCH_LIST of this GPU.",
        ),
        _CUDA,
    ),
    KnownError(
        "GPU busy",
        (("all CUDA-capable devices are busy or unavailable",),),
        "The GPU takes no new process.",
        "exclusive mode with a process left over from the last start, MIG without an instance, or a GPU in error.",
        ("End what is left of the last start: nvidia-smi shows it.", "nvidia-smi -q -d COMPUTE: exclusive mode?"),
        _CUDA,
    ),
    KnownError(
        "Fabric manager not running",
        (("CUDA error: system not yet initialized",),),
        "The switches between the GPUs of this node are not set up.",
        "the service nvidia-fabricmanager does not run, or has another version than the driver.",
        ("systemctl status nvidia-fabricmanager on the node.", "Its version has to be that of the driver exactly."),
        _CUDA,
    ),
    KnownError(
        "No GPU visible",
        (("No CUDA GPUs are available",), ("no CUDA-capable device is detected",)),
        "The process sees no GPU.",
        "CUDA_VISIBLE_DEVICES is empty or wrong, the container was started without GPUs, or the GPU is lost.",
        ("nvidia-smi in the same container.", "CUDA_VISIBLE_DEVICES of the process; the scheduler's request for GPUs."),
        _CUDA,
    ),
    KnownError(
        "CUDA in a forked process",
        (("Cannot re-initialize CUDA in forked subprocess",),),
        "A process that was forked used CUDA, which its parent had set up already.",
        "a data set that puts tensors on the GPU within a worker of the DataLoader.",
        ("Leave tensors on the CPU in the workers.", "Else start workers by spawn (multiprocessing_context='spawn')."),
        _TORCH_MP,
    ),
    # --- collectives and the network ----------------------------------------------------------------------------------
    KnownError(
        "InfiniBand transfer failed",
        (("NET/IB", "Got completion from peer"), ("NET/IB", "Got completion with error")),
        "A network card reported that a transfer to another node failed.",
        "the process at the other end died, or a port, cable or switch on the way failed.",
        (
            "Look first whether the other end's process had died: then this is only its echo.",
            "ibstat and perfquery on both nodes: port down, link_downed, symbol errors?",
            "Status 12 is a time-out of the other end; NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT only hide it.",
        ),
        _NCCL,
    ),
    KnownError(
        "InfiniBand port failed",
        (("NET/IB", "Got async", "port error"),),
        "A port of a network card went down.",
        "a cable, transceiver or switch, or somebody's maintenance.",
        ("Look at the port on the named node: ibstat.", "The switch's log and the counters of both ends."),
        _NCCL,
    ),
    KnownError(
        "Two ranks on one GPU",
        (("Duplicate GPU detected",),),
        "Two ranks of one communicator use the same GPU, which NCCL does not allow.",
        "torch.cuda.set_device(LOCAL_RANK) is missing or comes too late, or the launcher starts too many processes.",
        ("Set the device from LOCAL_RANK before anything else uses CUDA.", "--nproc-per-node against the GPUs."),
        _NCCL,
    ),
    KnownError(
        "Collective timed out (NCCL watchdog)",
        (("Watchdog caught collective operation timeout",),),
        "A collective did not end within its time-out, and PyTorch ended the process; this rank only waited.",
        "another rank did not join: it hangs, died, is late (checkpoint, evaluation) or called other collectives.",
        (
            _FIRST_RANK,
            "Flight Recorder (TORCH_FR_BUFFER_SIZE=2000): the first collective that not all ranks reached.",
            "All ranks alike late: a longer time-out for that phase (init_process_group(timeout=...)).",
        ),
        _TORCH_DIST,
    ),
    KnownError(
        "Other ranks did not come to the barrier",
        (("failed to pass monitoredBarrier",), ("successfully reached monitoredBarrier, but received errors",)),
        "A barrier waited for ranks that did not come; the message names them.",
        "these ranks died, hang, or took another branch of the program.",
        (_FIRST_RANK, "A branch that depends on the rank or its data, such as logging or saving on rank 0 only."),
        _TORCH_DIST,
    ),
    KnownError(
        "A peer ended (NCCL)",
        (("ncclRemoteError",),),
        "The connection to another rank broke in a collective; this rank is not the cause.",
        "the process or the node at the other end is gone, or the network between.",
        (_FIRST_RANK, "No rank died: the network of the two nodes.", _NCCL_LOG),
        _NCCL,
    ),
    KnownError(
        "NCCL out of GPU memory",
        (("ncclUnhandledCudaError", "out of memory'"),),
        "NCCL could not get GPU memory for its buffers.",
        "PyTorch holds nearly all of it: each communicator takes some hundred MiB beside PyTorch's cache.",
        ("Leave it memory: torch.cuda.set_per_process_memory_fraction, a smaller micro-batch.", _NCCL_LOG),
        _NCCL,
    ),
    KnownError(
        "CUDA call within NCCL failed",
        (("NCCL", "unhandled cuda error"), ("ncclUnhandledCudaError",)),
        "A CUDA call that NCCL made failed.",
        "an earlier error of a kernel, a driver that does not fit, or two processes on one GPU.",
        (_NCCL_LOG, "An earlier CUDA error of the same process: that one is the cause."),
        _NCCL,
    ),
    KnownError(
        "System call within NCCL failed",
        (("NCCL", "unhandled system error"), ("ncclSystemError",)),
        "A call to the operating system or the network failed in NCCL.",
        "the wrong network interface, a firewall, /dev/shm too small, locked memory (ulimit -l), or a dead peer.",
        (
            _NCCL_LOG,
            "NCCL_SOCKET_IFNAME: the interface that all nodes share.",
            "/dev/shm of the container (--shm-size) and ulimit -l (unlimited for InfiniBand).",
        ),
        _NCCL,
    ),
    KnownError(
        "NCCL was called wrongly",
        (("ncclInvalidUsage",), ("ncclInvalidArgument",)),
        "A collective was called in a way that NCCL does not allow.",
        "ranks with different sizes or types in one collective, or more than one process on a GPU.",
        (_NCCL_LOG, "TORCH_DISTRIBUTED_DEBUG=DETAIL compares shapes and types of all ranks."),
        _NCCL,
    ),
    KnownError(
        "Peer's connection closed (Gloo)",
        (("gloo", "Connection closed by peer"), ("gloo", "Connection reset by peer")),
        "Another rank closed the connection in a collective on the CPU; this rank is not the cause.",
        "the process at the other end is gone.",
        (_FIRST_RANK,),
        _TORCH_DIST,
    ),
    KnownError(
        "Port of the rendezvous in use",
        (
            ("The server socket has failed to listen on any local network address", "EADDRINUSE"),
            ("The server socket has failed to listen on any local network address", "ddress already in use"),
        ),
        "The port at which the ranks meet (MASTER_PORT) is taken on the first node.",
        "another job on the node, or what is left of the last start of this one.",
        (
            "Choose another MASTER_PORT, or --rdzv-endpoint with port 0.",
            "ss -ltnp on the first node: which process has the port?",
        ),
        _TORCH_ELASTIC,
    ),
    KnownError(
        "Port in use",
        (("[Errno 98] Address already in use",),),
        "A port that the program wants to listen on is taken.",
        "another process of the node, or what is left of the last start.",
        ("ss -ltnp on the node: which process has the port?",),
        _ERRNO,
    ),
    KnownError(
        "Ranks did not meet",
        (("Timed out after", "seconds waiting for clients"), ("The client socket has timed out after",)),
        "Not all ranks came to the address at which they meet within the time-out.",
        "a node that did not start, another MASTER_ADDR or world size on a node, or a firewall between.",
        (
            "Which ranks did not start? Their launcher's log on their node.",
            "MASTER_ADDR and MASTER_PORT reachable from each node (nc -vz); the name resolves alike everywhere.",
            "--nnodes and --nproc-per-node alike on all nodes.",
        ),
        _TORCH_ELASTIC,
    ),
    KnownError(
        "No process group",
        (("Default process group has not been initialized",),),
        "A collective was called before init_process_group.",
        "the script was started without torchrun, or library code runs before the set-up.",
        ("Call init_process_group first.", "Started by torchrun? RANK and WORLD_SIZE are set then."),
        _TORCH_DIST,
    ),
    # --- the model ----------------------------------------------------------------------------------------------------
    KnownError(
        "Parameters without a gradient (DDP)",
        (("Expected to have finished reduction in the prior iteration before starting a new one",),),
        "Some parameters had no part in the loss of the last step, so that DDP still waits for their gradients.",
        "a branch of the model that was not used, or an output that is not in the loss.",
        (
            "Put every output into the loss, or set find_unused_parameters=True.",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL names the parameters.",
        ),
        _TORCH_DDP,
    ),
    KnownError(
        "Tensor changed in place",
        (("one of the variables needed for gradient computation has been modified by an inplace operation",),),
        "A tensor that the backward pass needs was overwritten after the forward pass used it.",
        "an operation in place (+=, x[...] =, relu_), or an optimizer step between forward and backward.",
        ("torch.autograd.set_detect_anomaly(True) names the operation.", "Write x = x + y instead of x += y there."),
        _TORCH_GRAD,
    ),
    KnownError(
        "Second backward pass",
        (("Trying to backward through the graph a second time",),),
        "The graph of the forward pass was freed by a first backward pass and is used again.",
        "a state or loss that is carried from step to step without .detach().",
        ("Detach what is carried over the step.",),
        _TORCH_GRAD,
    ),
    KnownError(
        "Tensors on different devices",
        (("Expected all tensors to be on the same device",),),
        "An operation got tensors of different devices.",
        "a buffer, mask or input that was made on the CPU or on another GPU.",
        ("Make it on the model's device, or register it as a buffer.",),
        _TORCH_CUDA,
    ),
    # --- checkpoints --------------------------------------------------------------------------------------------------
    KnownError(
        "Checkpoint of another world size",
        (("The checkpoint being loaded used a DP world size of",),),
        "The optimizer's parts in the checkpoint are those of another number of data-parallel ranks.",
        "the job was started again with more or fewer GPUs.",
        (
            "Start with as many data-parallel ranks as before, or convert it to a universal checkpoint.",
            "Without the optimizer's state (load_optimizer_states=False) expect a bump of the loss.",
        ),
        _DEEPSPEED,
    ),
    KnownError(
        "Weights of another shape",
        (("size mismatch for", "copying a param with shape"), ("Size mismatch between saved", "and current:")),
        "The checkpoint's tensors have other shapes than the model's; the message names them.",
        "another vocabulary, width or number of classes, or a part saved by one rank of another parallel layout.",
        (
            "Compare the config of the checkpoint with this one: vocabulary, width, layers, tensor-parallel size.",
            "All shapes off by one factor: it is a shard of another world size; load it with its own, or reshard it.",
            "Only the embedding or head: the vocabulary was resized or padded.",
        ),
        _TORCH_SAVE,
    ),
    KnownError(
        "Weights saved from a wrapper",
        (
            ("Error(s) in loading state_dict", "Missing key(s) in state_dict"),
            ("Error(s) in loading state_dict", "Unexpected key(s) in state_dict"),
        ),
        "The names of the weights differ by a prefix (module., _orig_mod.) that a wrapper adds.",
        "it was saved from the model within DDP or torch.compile and is loaded without, or the reverse.",
        ("Save and load the bare model (model.module, model._orig_mod), or strip the prefix.",),
        _TORCH_SAVE,
        _wrapped,
    ),
    KnownError(
        "Checkpoint file damaged",
        (("PytorchStreamReader failed reading zip archive",), ("PytorchStreamReader failed reading file",)),
        "The file is no whole checkpoint: its end is missing, or a part can't be read.",
        "the job died while it was written, the disk was full, or a copy was cut off.",
        (_WHOLE, "Compare its size with those of the other ranks or steps.", "Write to another name, then rename."),
        _TORCH_SAVE,
    ),
    KnownError(
        "Checkpoint needs more than weights",
        (("Weights only load failed",),),
        "torch.load refused objects in the file that are not plain tensors.",
        "since PyTorch 2.6 weights_only is True by default.",
        (
            "Allow the named classes by torch.serialization.add_safe_globals, if the file is your own.",
            "weights_only=False runs code of the file: only for files that you trust.",
        ),
        _TORCH_SAVE,
    ),
    # --- the node -----------------------------------------------------------------------------------------------------
    KnownError(
        "Disk quota exceeded",
        (("[Errno 122] Disk quota exceeded",),),
        "The user or the project may store no more on this file system, though the disk itself may have room.",
        "checkpoints and caches that pile up; also a limit on the number of files.",
        ("Make room within the quota before the next start.", _SPACE, _OLD_CHECKPOINTS, _WHOLE),
        _ERRNO,
    ),
    KnownError(
        "Disk full",
        (("[Errno 28] No space left on device",), ("PytorchStreamWriter failed writing file",)),
        "The file system has no space, or no more files, left.",
        "checkpoints and caches that pile up; a small /tmp or /dev/shm in a container.",
        ("Make room before the next start.", _SPACE, _OLD_CHECKPOINTS, _WHOLE),
        _ERRNO,
    ),
    KnownError(
        "Too many open files",
        (
            ("[Errno 24] Too many open files",),
            ("received 0 items of ancdata",),
            ("unable to open shared memory object", "Too many open files (24)"),
        ),
        "The process has as many files and sockets open as it may.",
        "workers of the DataLoader that pass tensors by file descriptor, a leak of files, or a low limit.",
        (
            "Raise the limit (ulimit -n) where the job is started.",
            "torch.multiprocessing.set_sharing_strategy('file_system').",
            "ls /proc/PID/fd: do they grow from step to step, and which ones?",
        ),
        _TORCH_MP,
    ),
    KnownError(
        "Shared memory of a DataLoader worker full",
        (
            ("DataLoader worker (pid", "is killed by signal: Bus error"),
            ("It is possible that dataloader's workers are out of shared memory",),
            ("unable to open shared memory object", "No space left on device (28)"),
            ("unable to allocate shared memory(shm) for file",),
        ),
        "A worker could not write its batch into /dev/shm.",
        "a container with the default of 64 MiB of shared memory; many workers with large batches.",
        (
            "Give the container more: --shm-size, --ipc=host, or an emptyDir of medium Memory at /dev/shm.",
            "df -h /dev/shm; files that a killed job left there.",
            "Fewer workers or a lower prefetch_factor.",
        ),
        _TORCH_DATA,
    ),
    KnownError(
        "DataLoader worker killed",
        (("DataLoader worker (pid", "is killed by signal: Killed"),),
        "A worker of the DataLoader was killed from outside.",
        "the kernel for host memory: each worker holds its own copy of the data set's Python objects.",
        (
            "dmesg on the node, and the limit of the container: a kill for memory?",
            "Fewer workers; keep the index in arrays or Arrow, not in lists of Python objects.",
        ),
        _TORCH_DATA,
    ),
    KnownError(
        "DataLoader worker gone",
        (("DataLoader worker (pid(s)", "exited unexpectedly"),),
        "A worker of the DataLoader ended without saying why.",
        "killed for host memory, or a crash in native code that reads the data.",
        (
            "dmesg on the node: a kill for memory, or a segfault?",
            "Run once with num_workers=0: the error then comes with its traceback.",
        ),
        _TORCH_DATA,
    ),
    KnownError(
        "Bus error",
        (("Fatal Python error: Bus error",),),
        "The process touched memory that is mapped and has nothing behind it.",
        "/dev/shm full, a memory-mapped file that was cut or whose file system failed, less often the host's memory.",
        (
            "df -h /dev/shm on the node.",
            "Was a data file replaced or deleted while the job had it mapped? Is its file system there?",
            "dmesg: memory errors (EDAC, MCE)?",
        ),
        _ERRNO,
    ),
    KnownError(
        "No memory for a new process",
        (("[Errno 12] Cannot allocate memory",),),
        "The host could give the process no more memory.",
        "workers that are forked from a large process, a limit of the container, or overcommit switched off.",
        ("free -g and the limit of the container on the node.", "Start fewer workers, and before the large data."),
        _ERRNO,
    ),
    KnownError(
        "Stale file handle",
        (("[Errno 116] Stale file handle",),),
        "A file on a network file system was deleted or moved on the server while it was open.",
        "a clean-up of a shared folder, or a restart of the file server.",
        ("Look who deletes below that path, and whether the mount is whole on all nodes.",),
        _ERRNO,
    ),
    KnownError(
        "Disk or file server failed",
        (("[Errno 5] Input/output error",), ("[Errno 121] Remote I/O error",)),
        "A disk or a file server could not read or write.",
        "a failing disk, or a network file system that lost its server.",
        ("dmesg on the node: which device or mount?", "The same file from another node tells disk from server."),
        _ERRNO,
    ),
    KnownError(
        "Token of the Hugging Face Hub refused",
        (
            ("huggingface.co", "Invalid credentials in Authorization header"),
            ("huggingface.co", "Invalid username or password"),
            ("huggingface.co", "401 Client Error"),
            ("GatedRepoError",),
        ),
        "The Hub refused the token of this job.",
        "the token expired or was deleted, is not set on this node, or has no access to a gated or private repository.",
        (
            "hf auth whoami with the job's HF_TOKEN; make a new token where it fails.",
            "A gated repository: accept its terms with the token's account.",
            "Files that are in the cache already need no token: HF_HUB_OFFLINE=1.",
        ),
        _HUB,
        _not_a_missing_repository,
    ),
    KnownError(
        "Repository of the Hugging Face Hub not found",
        (("Repository Not Found for url: https://huggingface.co",),),
        "The Hub has no repository of this name that the job may see.",
        "a name with a mistake, or a private repository and no valid token: the Hub answers both alike.",
        ("Open the address in a browser that is signed in.", "hf auth whoami with the job's HF_TOKEN."),
        _HUB,
    ),
)
