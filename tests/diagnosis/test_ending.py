"""Which rank ended a training, by what launchers print."""

from __future__ import annotations

import pytest

from tasks.diagnosis.causes.ending import end_of

RAISED = """\
Traceback (most recent call last):
  File "/here/train.py", line 5, in load
    return labels[name]
           ~~~~~~^^^^^^
KeyError: 'cat'"""
SPAWNED = f"""\
Traceback (most recent call last):
  File "/here/run.py", line 9, in <module>
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 2 terminated with the following error:
{RAISED}"""
KILLED = """\
Traceback (most recent call last):
  File "/here/run.py", line 9, in <module>
torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL"""
SRUN = """\
1: Traceback (most recent call last):
1:   File "/here/train.py", line 7, in step
1: RuntimeError: NCCL error: remote process exited or there was a network error
srun: error: node7: task 3: Segmentation fault (core dumped)
srun: error: node6: task 1: Exited with exit code 1"""
SUMMARY = """\
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 7844)  (SIGTERM)
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 7845)  (SIGKILL)"""
LAUNCHED = f"""\
{RAISED}
Traceback (most recent call last):
  File "/env/bin/accelerate", line 8, in <module>
subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1."""
CHAINED = f"""\
{RAISED}

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/here/train.py", line 8, in load
ValueError: no label for cat"""


@pytest.mark.parametrize(
    ("log", "rank", "what"),
    [
        (RAISED, None, "it raised KeyError: 'cat', in load (here/train.py:5)"),
        (SPAWNED, 2, "rank 2 raised KeyError: 'cat', in load (here/train.py:5)"),
        (KILLED, 1, "rank 1 was ended by SIGKILL"),
        (SRUN, 3, "rank 3 was ended by SIGSEGV"),
        (SUMMARY, 1, "rank 1 was ended by SIGKILL"),
        (SUMMARY.replace("-9 ", "137 "), 1, "rank 1 was ended by SIGKILL"),
        (SUMMARY.replace("-9 ", "-40 "), 1, "rank 1 was ended by signal 40"),
        (LAUNCHED, None, "it raised KeyError: 'cat', in load (here/train.py:5)"),
        (CHAINED, None, "it raised ValueError: no label for cat, in load (here/train.py:8)"),
    ],
    ids=[
        "plain",
        "spawn",
        "spawn killed",
        "srun",
        "torchrun",
        "by a shell",
        "real-time signal",
        "accelerate",
        "chained",
    ],
)
def test_the_rank_that_ended_it_is_found(log: str, rank: int | None, what: str) -> None:
    found = end_of(log.splitlines())
    assert found is not None
    assert (found.where.get("rank"), found.evidence["what"]) == (rank, what)


@pytest.mark.parametrize(
    "log",
    [
        "Exception ignored in: <function f>\n" + RAISED,
        "Exception in thread Thread-1 (upload):\n" + RAISED,
        RAISED + "\nstill here" * 50,
        SRUN.split("srun")[0].strip(),
        "[rank1]:[E1126 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout\n"
        + SUMMARY.replace("-9 ", "-6 "),
        "a caption: Traceback (most recent call last):\nKeyError: 'cat'",
    ],
    ids=["ignored", "thread", "went on", "about another", "watchdog", "caption"],
)
def test_what_ended_nothing_is_no_end(log: str) -> None:
    assert end_of(log.splitlines()) is None
