"""Causes among processes that need each other: one that does not come, is paused or is dead."""

from __future__ import annotations

import re
import signal

from tasks.core.units import counted
from tasks.diagnosis.causes.cause import Cause, Support
from tasks.diagnosis.causes.signs import LOCKS, MEETING_CALLS, TORCH_CALLS, Signs
from tasks.diagnosis.observation.record import ObservedProcess

QUEUE_CALLS = ("get (queue.py", "get (multiprocessing/queues.py", "get (multiprocessing/pool.py")
"""Calls in which a consumer waits for what a producer is to deliver."""
IDLE_CALLS = ("get (multiprocessing/queues.py", "get (queue.py", "recv (multiprocessing/connection.py")
_THREAD_DIED = re.compile(r"^Exception in thread (?P<name>[^:]+)")
_VALIDATES = re.compile(r"(?i)(?:\w+\.)*_?(?:evaluat|validat|eval_|test_epoch|zero_shot)\w*(?:\.\w+)* \(")
"""A call of a function that evaluates, by its name."""
_NODES = re.compile(r"--nnodes[= ](?P<nodes>\d+)")
GIL_ASKS = 50
"""So often a second a thread that waits for the GIL wakes at least: CPython lets it ask every 5 ms."""
BUSY_CPU = 0.2
LAUNCHERS = ("torchrun", "torch.distributed.run", "torch/distributed/run.py", "torch.distributed.launch")


def _paused(signs: Signs) -> Support | None:
    paused = signs.paused_ranks
    if not paused:
        return None
    names = ", ".join(str(rank.rank) for rank in paused)
    verb, each = ("is", "it") if len(paused) == 1 else ("are", "them")
    return Support(
        f"rank {names} {verb} stopped by a signal (state T); the others wait for {each}",
        "it goes on with: kill -CONT " + " ".join(str(rank.pid) for rank in paused),
        {"process": ", ".join(str(rank.pid) for rank in paused)},
        {"rank": paused[0].rank},
        command="kill -CONT " + " ".join(str(rank.pid) for rank in paused),
    )


def _nobody_is_paused(signs: Signs) -> str | None:
    is_seen = signs.ranks and all(rank.last is not None for rank in signs.ranks)
    return "no rank is stopped by a signal" if is_seen and not signs.paused_ranks else None


def _missing(signs: Signs) -> Support | None:
    """Find ranks that wait for others to join, of which this machine has none."""
    if signs.progress or not signs.ranks:
        return None
    if (nodes := _awaited_nodes(signs)) is not None:
        return Support(
            f"torchrun waits for {counted(nodes, 'node')} to join; no rank was started yet",
            "start the same command on every node; all must reach the same --rdzv-endpoint",
            {"command": " ".join(signs.seen.command)[:160], "stack": _meeting_call(signs, signs.ranks[0])},
            may_be_a_pause=True,
        )
    living = [rank for rank in signs.ranks if rank.last is not None]
    world = max((rank.world_size or 0 for rank in living), default=0)
    here = {rank.rank for rank in signs.ranks}
    absent = [rank for rank in range(world) if rank not in here]
    meets = [rank for rank in living if _meets(signs, rank)]
    if not absent or len(meets) < len(living):
        return None
    on_node = max((rank.local_world_size or 0 for rank in living), default=0)
    where = "on this node" if on_node == world or on_node > len(here) else "on other nodes"
    call = next((found for rank in meets if (found := _meeting_call(signs, rank))), None)
    return Support(
        f"{len(meets)} of {world} ranks {'waits' if len(meets) == 1 else 'wait'} for the others to join; "
        f"{_shown(absent)} did not come",
        f"see why {_shown(absent)} {where} did not start: its own log, MASTER_ADDR and MASTER_PORT",
        {"here": _shown(sorted(here)), "missing": f"{_shown(absent)} {where}", "stack": call},
        {"rank": absent[0]},
        may_be_a_pause=True,
    )


def _awaited_nodes(signs: Signs) -> int | None:
    """Return for how many nodes the launcher waits, where it has not started any rank."""
    words = " ".join(signs.seen.command)
    if len(signs.seen.processes) > 1 or not any(name in words for name in LAUNCHERS):
        return None
    found = _NODES.search(words)
    return int(found["nodes"]) if found is not None and int(found["nodes"]) > 1 else None


def _meets(signs: Signs, rank: ObservedProcess) -> bool:
    """Return whether a rank waits for others to join: by its stack, or because it sleeps with a
    connection."""
    if rank.stack:
        return _meeting_call(signs, rank) is not None
    return signs.sleeps(rank) and bool(rank.connections) and not signs.seen.workers_of(rank)


def _meeting_call(signs: Signs, rank: ObservedProcess) -> str | None:
    return signs.calls(rank, *MEETING_CALLS)


def _shown(ranks: list[int]) -> str:
    names = ", ".join(map(str, ranks[:8])) + (" and more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {names}"


def _all_ranks_are_here(signs: Signs) -> str | None:
    world = max((rank.world_size or 0 for rank in signs.ranks), default=0)
    return f"all {world} ranks are here" if 0 < world <= len(signs.ranks) else None


def _dead_producer(signs: Signs) -> Support | None:
    """Find a consumer whose producer is dead: a thread, by the log or because there is no other; a child that
    has ended; a task that a pool lost with its worker."""
    for process in (*signs.ranks, *signs.living_workers):
        call = signs.calls(process, *QUEUE_CALLS)
        if call is None or signs.waits_for_data(process) or not signs.sleeps(process):
            continue
        died = _died(signs, process, call)
        if died is None:
            continue
        who = f"rank {process.rank}" if process.role == "rank" else f"worker {process.pid}"
        return Support(
            f"{who} waits for something from a producer that is dead: {died}",
            "let the producer put its exception into the queue, give get() a timeout, or use a pool that "
            "reports dead workers, such as concurrent.futures",
            {"stack": call, "called from": signs.own_call(process)},
            {"rank": process.rank},
            may_be_a_pause=True,
        )
    return None


def _died(signs: Signs, process: ObservedProcess, call: str) -> str | None:
    children = [one for one in signs.seen.processes if one.parent == process.pid]
    ended = [one for one in children if one.last is None]
    if "multiprocessing/pool.py" in call:
        workers = [one for one in children if one.last is not None and one.stack]
        is_idle = bool(workers) and all(signs.calls(one, *IDLE_CALLS) for one in workers)
        return f"its pool's {len(workers)} workers are idle, and its task is lost" if is_idle else None
    if "multiprocessing/" in call:
        return f"process {ended[0].pid} has ended ({_ending(ended[0])})" if ended else None
    stated = next((found["name"] for line in signs.log_lines if (found := _THREAD_DIED.match(line))), None)
    if stated is not None and stated not in process.other_stacks:
        return f"thread {stated.strip()} ended by an exception"
    return None if process.other_stacks else "it has no other thread"


def _ending(process: ObservedProcess) -> str:
    return signal.Signals(process.signal).name if process.signal else f"exit code {process.exit_code >> 8}"


def _gil_held(signs: Signs) -> Support | None:
    """Find a process one of whose threads computes all the time and never gives Python's lock away, while the
    main thread asks for it again and again."""
    if signs.goes_on:
        return None
    for process in (*signs.ranks, *signs.living_workers):
        main, *others = process.thread_cpu or [0.0]
        busy = max(others, default=0.0)
        asks = (process.grown("switches") or 0) / (process.seconds or 1.0)
        is_alone = busy >= max(BUSY_CPU, 0.9 * process.cpu) and main <= 0.1 * busy
        if not is_alone or asks < GIL_ASKS or process.share(*LOCKS) < 0.4:
            continue
        if process.gil_owner == "MainThread":
            continue
        calls = process.other_stacks.get(process.gil_owner or "", ())
        who = f"rank {process.rank}" if process.role == "rank" else f"worker {process.pid}"
        return Support(
            f"a thread of {who} holds Python's lock (the GIL) and computes, so that nothing else of it runs",
            "let that call give the lock away, or make it in a process of its own; a regular expression may "
            "take exponential time",
            {
                "thread": process.gil_owner,
                "stack": " from ".join(calls[:2]) or None,
                "cpu": f"{busy:.1f} cores",
            },
            {"rank": process.rank},
            may_be_a_pause=process.gil_owner is None,
        )
    return None


def _desync(signs: Signs) -> Support | None:
    """Find ranks that wait for one another in different places. A rank outside of all collectives is none of
    these: what it waits for is another cause."""
    if len(signs.ranks) < 2 or signs.goes_on or signs.paused_ranks:
        return None
    gone = [rank for rank in signs.ranks if rank.last is None]
    living = [rank for rank in signs.ranks if rank.last is not None]
    if not living or not all(map(signs.in_collective, living)):
        return None
    places = {signs.calls(rank, "distributed_c10d.py") or "elsewhere" for rank in living}
    callers = {_caller(rank) for rank in living}
    if len(places) == 1 and len(callers) == 1 and not gone:
        return None
    shown = {f"rank {rank.rank}": _caller(rank) for rank in living}
    ended = {f"rank {rank.rank}": f"ended ({_ending(rank)})" for rank in gone}
    names = _shown([rank.rank for rank in gone])
    return Support(
        f"{names} ended, and the others wait for it in a collective"
        if gone
        else "the ranks wait for one another in different places",
        f"see why {names} ended; a launcher such as torchrun ends the others then"
        if gone
        else "give every rank as many batches: tarmac preflight counts them per rank and worker",
        {**shown, **ended},
        {"rank": (gone or living)[0].rank},
        may_be_a_pause=True,
    )


def _one_validates(signs: Signs) -> Support | None:
    """Find a rank that evaluates while others wait for it in a collective."""
    main = signs.main
    if main is None or not signs.is_main_waited_for:
        return None
    call = next((call for call in main.stack or () if _VALIDATES.match(call)), None)
    if call is None:
        return None
    waiting = sum(map(signs.in_collective, signs.ranks))
    return Support(
        f"rank {main.rank} evaluates, and {counted(waiting, 'other rank')} "
        f"{'waits' if waiting == 1 else 'wait'} for it in a collective",
        "let each rank evaluate a part, or evaluate checkpoints in a job beside it; a longer wait than "
        "the process group's timeout ends the training",
        {"stack": call},
        {"rank": main.rank},
    )


def _caller(rank: ObservedProcess) -> str:
    """Return the innermost call of a rank that is not torch's."""
    own = (call for call in rank.stack or () if not any(one in call for one in TORCH_CALLS))
    return next(own, "unseen")


def _log_goes_on(signs: Signs) -> str | None:
    return "the log shows progress meanwhile" if signs.goes_on else None


def _only_one_rank(signs: Signs) -> str | None:
    is_alone = len(signs.ranks) == 1 and (signs.ranks[0].world_size or 1) == 1
    return "there is one rank" if is_alone else None


def _one_waits_outside(signs: Signs) -> str | None:
    main = signs.main
    if len(signs.ranks) < 2 or main is None or not main.stack or signs.in_collective(main):
        return None
    return f"rank {main.rank} is in no collective: {signs.own_call(main) or main.stack[0]}"


RANKS = (
    Cause("validation.rank0", "warning", _one_validates),
    Cause("rank.paused", "error", _paused, (_nobody_is_paused,)),
    Cause("gil.held", "error", _gil_held),
    Cause("ranks.missing", "error", _missing, (_all_ranks_are_here,)),
    Cause("producer.dead", "error", _dead_producer, yields_to=("worker.killed", "worker.crashed")),
    Cause(
        "collective.desync",
        "error",
        _desync,
        (_log_goes_on, _only_one_rank, _one_waits_outside),
        yields_to=("tracker.blocked", "checkpoint.stalled", "download.blocked", "rank.paused"),
    ),
)
