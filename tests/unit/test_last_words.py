"""What logs and exceptions of torch, gloo and NCCL mean. Each text is recorded, with where it comes from."""

from __future__ import annotations

import pytest

from trainpkg.last_words import lost_peer_line, memory_asked

# NVIDIA/Megatron-LM issue 935, shortened
WATCHDOG = """[rank6]:[E ProcessGroupNCCL.cpp:1895] To avoid data inconsistency, we are taking the entire process down.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG 1 Rank 6] Process group watchdog thread terminated with exception: [Rank 6] Watchdog caught collective \
operation timeout: WorkNCCL(SeqNum=199, OpType=_REDUCE_SCATTER_BASE, NumelIn=7098994688, NumelOut=443687168, \
Timeout(ms)=600000) ran for 882722 milliseconds before timing out.
Exception raised from checkTimeout at /opt/pytorch/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:567 (most \
recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string<char>) + 0x99 (0x7fb635d98969 in libc10.so)
frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long> >) + 0x1e1
frame #4: <unknown function> + 0xdc253 (0x7fb6358b0253 in /usr/lib/x86_64-linux-gnu/libstdc++.so.6)
"""
# InternLM/lmdeploy issue 3258, shortened: the same watchdog, but a fault of this rank's own GPU
ILLEGAL_ACCESS = """terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated with exception: CUDA error: \
an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
Exception raised from c10_cuda_check_implementation at ../c10/cuda/CUDAException.cpp:43 (most recent call first):
frame #6: c10d::ProcessGroupNCCL::ncclCommWatchdog() + 0x14d (0x7fa14b231b5a in libtorch_cuda.so)
"""
# measured: gloo 2.13, a peer of a DDP training was killed
GLOO = """step 12 loss 0.3
Traceback (most recent call last):
  File "train.py", line 31, in <module>
    loss.backward()
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:42311: \
Connection reset by peer. This may indicate a possible application crash on rank 1.
"""
OWN_ERROR = """Connection refused, retrying
Traceback (most recent call last):
  File "train.py", line 31, in <module>
    raise ValueError("the loss is nan")
ValueError: the loss is nan
"""


@pytest.mark.failure("F096")
@pytest.mark.parametrize(
    ("log", "words"),
    [
        (WATCHDOG, "Watchdog caught collective operation timeout"),
        (GLOO, "Connection closed by peer"),
        ("[rank0]: Terminating the process after attempting to dump debug info, due to collective timeout or "
         "exception. The watchdog\n", "due to collective timeout"),
        (ILLEGAL_ACCESS, ""),
        # the store that went with rank 0 is complained of after the abort: still this GPU's own fault
        (ILLEGAL_ACCESS + "[W TCPStore.cpp:125] recvValue failed on SocketImpl(fd=7): Failed to recv, got 0 bytes", ""),
        (OWN_ERROR, ""),
        ("Connection refused, retrying\n", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_a_log_that_ends_for_another_ranks_sake(log: str, words: str) -> None:
    found = lost_peer_line(log)
    assert (words in found) if words else not found


@pytest.mark.parametrize(
    ("kind", "text", "asked"),
    [
        # torch 2.13, c10/cuda/CUDACachingAllocator.cpp
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
         "of which 5.25 GiB is free. Process 7 has 73.9 GiB memory in use.", "20.00 GiB"),
        # torch 2.13 on a CPU, measured
        ("RuntimeError", "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
         "you tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)", "4000000000000 bytes"),
        # numpy 2.4, measured
        ("_ArrayMemoryError", "Unable to allocate 37.3 GiB for an array with shape (5000000000,)", "37.3 GiB"),
        ("MemoryError", "", ""),
        ("OSError", "[Errno 12] Cannot allocate memory", ""),
        ("RuntimeError", "CUDA error: out of memory", ""),
        ("RuntimeError", "CUDA error: an illegal memory access was encountered", None),
        ("ValueError", "memory", None),
    ],
)  # fmt: skip
def test_memory_that_ran_out(kind: str, text: str, asked: str | None) -> None:
    assert memory_asked(kind, text) == asked
