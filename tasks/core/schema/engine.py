"""The `engine` block: where each stage runs."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, StrictInt, StrictStr, model_validator

from tasks.core.schema.block import Block, Duration, Size


class SlurmDefaults(Block):
    """Settings of all Slurm jobs, unless a stage has its own."""

    account: str | None = None
    """The Slurm account that jobs are charged to."""
    partition: str | None = None
    """The Slurm partition of jobs."""
    cpus: Annotated[int, Field(ge=1)] | None = None
    """Cores per job."""
    memory: Size | None = None
    """Memory per job, on its node."""
    time: Duration | None = None
    """Time limit per job, rounded up to minutes; the partition's default unless given. Work that a job does
    not finish in time is given to another job."""
    setup: list[str] | None = None
    """Shell lines at the start of a job's script, such as `module load cuda`."""
    extra: dict[str, StrictStr | StrictInt | Literal[True]] | None = None
    """Further long options of sbatch, such as `{qos: low, exclusive: true}`."""

    @model_validator(mode="after")
    def _extra_options_are_known(self) -> Self:
        for name, value in (self.extra or {}).items():
            if not re.fullmatch(r"[a-z][a-z-]*", name):
                raise ValueError(f"extra: {name!r} is not a long option of sbatch, such as qos")
            if name in OWN_OPTIONS:
                raise ValueError(f"extra: {name} is {OWN_OPTIONS[name]}")
            if "\n" in str(value):
                raise ValueError(f"extra: {name} has more than one line")
        return self


OWN_OPTIONS = {
    "account": "a key of its own",
    "partition": "a key of its own",
    "time": "a key of its own",
    "mem": "given by the key memory",
    "cpus-per-task": "given by the key cpus",
    "gpus-per-node": "given by the key gpus",
    **dict.fromkeys(
        ("array", "chdir", "error", "job-name", "nodes", "ntasks", "ntasks-per-node", "output", "signal"),
        "set by Tarmac; leave it out",
    ),
}
"""Options of sbatch that `extra` may not override, and why."""


class BuildEngine(SlurmDefaults):
    """Where the build runs: on this machine, as a Slurm job array, or on a Dask cluster."""

    kind: Literal["local", "slurm", "dask"] = "local"
    """Where samples are converted: on this machine, in Slurm jobs, or on a Dask cluster."""
    workers: Annotated[int, Field(ge=1)] | None = None
    """Processes on this machine (2 unless given) or per Slurm job (`cpus` unless given)."""
    jobs: Annotated[int, Field(ge=1)] | None = None
    """Slurm jobs that share the work; 4 unless given."""
    address: Annotated[str, Field(pattern=r"^(tcp|tls|ws|wss|ucx|ucxx)://\S+:\d+$")] | None = None
    """Address of the Dask scheduler, such as `tcp://10.0.0.1:8786`."""

    @model_validator(mode="before")
    @classmethod
    def _two_workers_here(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("kind", "local") == "local":
            return {**value, "workers": 2 if value.get("workers") is None else value["workers"]}
        return value

    @model_validator(mode="after")
    def _keys_have_effect(self) -> Self:
        _require_slurm(self, *SlurmDefaults.model_fields, "jobs")
        if (self.kind == "dask") != (self.address is not None):
            raise ValueError("kind: dask and address belong together")
        if self.kind == "dask" and self.workers is not None:
            raise ValueError("workers: the Dask cluster has its own workers; remove the key")
        return self


class TrainEngine(SlurmDefaults):
    """Where the training runs: on this machine or as a Slurm job. Without `gpus` or `ranks` it is one
    process, which uses a GPU if there is one."""

    kind: Literal["local", "slurm"] = "local"
    """Where the training runs: on this machine, or in a Slurm job."""
    nodes: Annotated[int, Field(ge=1)] | None = None
    """Number of nodes of the Slurm job, one unless given. `gpus` or `ranks`, `cpus` and `memory` are those of
    each node."""
    gpus: Annotated[int, Field(ge=1)] | None = None
    """Number of ranks that train together, each on its own GPU. On this machine the training waits until that
    many GPUs are free. A Slurm job requests them (`--gres=gpu:N`; `extra: {gres: 'gpu:a100:4'}` names their
    type) and has no GPU without this key. The command of the recipe `external` is started by torchrun
    where it begins with `python`."""
    ranks: Annotated[int, Field(ge=1)] | None = None
    """Number of ranks that train together on the CPU, each with `train.threads` threads."""
    shard: bool = False
    """Whether each rank holds a part of weights, gradients and optimizer state, by torch's FSDP2, in place of
    all: for models whose 16 bytes per parameter do not fit a GPU."""
    time: Duration | None = None
    """Time limit of the job. Unless given, there is none on this machine, and the partition's under Slurm. A
    local training is resumed by the next start; a Slurm job that has made progress is queued again."""

    @property
    def per_node(self) -> int:
        """The number of ranks on a machine."""
        return self.gpus or self.ranks or 1

    @property
    def processes(self) -> int:
        """The number of ranks that train together, on all machines."""
        return self.per_node * (self.nodes or 1)

    @model_validator(mode="after")
    def _gpus_or_ranks(self) -> Self:
        if self.gpus is not None and self.ranks is not None:
            raise ValueError("gpus and ranks: ranks run on GPUs or on the CPU; give one of the two")
        if self.nodes is not None and self.nodes > 1 and (self.gpus or self.ranks) is None:
            raise ValueError("nodes: needs the number of ranks on each; give gpus or ranks")
        if self.shard and self.processes == 1:
            raise ValueError("shard: needs several ranks to share the weights; give gpus or ranks")
        _require_slurm(self, *(SlurmDefaults.model_fields.keys() - {"time"}), "nodes")
        return self


class EvaluateEngine(SlurmDefaults):
    """Where the evaluations run: on the machine of the run's agent, or each as its own Slurm job."""

    kind: Literal["local", "slurm"] = "local"
    """Where evaluations run: on this machine, or in Slurm jobs of their own."""
    jobs: Annotated[int, Field(ge=1)] = 1
    """How many evaluations run at once, or wait in Slurm's queue."""
    gpus: Annotated[int, Field(ge=1)] | None = None
    """GPUs per Slurm job, none unless given; on this machine an evaluation uses a GPU if there is one."""
    time: Duration | None = None
    """Time limit per evaluation. Unless given, one hour, and none for `lmms_eval`, whose benchmarks may take
    longer (under Slurm the partition's)."""

    @model_validator(mode="after")
    def _keys_have_effect(self) -> Self:
        _require_slurm(self, *(SlurmDefaults.model_fields.keys() - {"time"}), "gpus")
        return self


def _require_slurm(stage: BuildEngine | TrainEngine | EvaluateEngine, *names: str) -> None:
    """Raise ValueError for the first key that has a value although the stage does not run on Slurm."""
    given = sorted(name for name in names if getattr(stage, name) is not None)
    if stage.kind != "slurm" and given:
        raise ValueError(f"{given[0]} needs kind: slurm")


def _for_one_gpu(train: TrainEngine) -> TrainEngine:
    """Return the training's settings without the GPUs beyond the first, and without their share of the
    rest."""
    parts = train.gpus or 1
    whole = {"exclusive", "gpus"} if parts > 1 else set()
    extra = {name: value for name, value in (train.extra or {}).items() if name not in whole}
    if "gres" in extra:
        extra["gres"] = re.sub(r"^(gpu(?::[^:,]+)?):\d+$", r"\1:1", str(extra["gres"]))
    return train.model_copy(
        update={
            "nodes": None,
            "gpus": train.gpus and 1,
            "cpus": train.cpus and math.ceil(train.cpus / parts),
            "memory": train.memory and math.ceil(train.memory / parts),
            "extra": extra or None,
        }
    )


Stage = TypeVar("Stage", BuildEngine, TrainEngine, EvaluateEngine)
EVALUATION_S = 3600
UNLIMITED_KINDS = frozenset({"lmms_eval"})
"""The kinds of evaluation that have no time limit unless the config gives one."""
SUCCESSOR_MEMORY = "1GB"
LARGE = frozenset(
    ("exclusive", "gres", "gpus", "gpus-per-task", "cpus-per-gpu", "mem-per-cpu", "mem-per-gpu", "mincpus")
)
"""Options of sbatch that would make a small job a large one."""


class Engines(Block):
    """Where each stage runs."""

    slurm: SlurmDefaults = SlurmDefaults()
    build: BuildEngine = BuildEngine()
    train: TrainEngine = TrainEngine()
    evaluate: EvaluateEngine = EvaluateEngine()

    def for_build(self) -> BuildEngine:
        """Return the build's settings, completed from `slurm`; the options in both `extra` are merged."""
        return self._completed(self.build)

    def for_train(self) -> TrainEngine:
        """Return the training's settings, completed in the same way."""
        return self._completed(self.train)

    def for_evaluate(self, kind: str = "") -> EvaluateEngine:
        """Return the settings of evaluations of a `kind`, completed in the same way, with their time
        limit."""
        found = self._completed(self.evaluate)
        if found.time is not None or kind in UNLIMITED_KINDS:
            return found
        return found.model_copy(update={"time": EVALUATION_S})

    def for_successor(self) -> list[TrainEngine | EvaluateEngine]:
        """Return the settings to try, in order, for the job that keeps a finished training's evaluations.

        Evaluations in it take one GPU, with its share of the cores and the memory. For those that are Slurm
        jobs it takes one core and no GPU, first in the default partition and then in the training's.
        """
        train = self.for_train()
        if self.evaluate.kind != "slurm":
            return [_for_one_gpu(train)]
        return list(self.for_small_job())

    def for_small_job(self) -> list[EvaluateEngine]:
        """Return the settings to try, in order, for a job of one core without a GPU: first in the default
        partition and then in the training's."""
        train = self.for_train()
        extra = {name: value for name, value in (self.slurm.extra or {}).items() if name not in LARGE}
        wanted = {
            "kind": "slurm",
            "account": train.account,
            "cpus": 1,
            "memory": SUCCESSOR_MEMORY,
            "setup": train.setup,
            "extra": extra or None,
        }
        partitions = dict.fromkeys([self.slurm.partition, train.partition])
        return [EvaluateEngine.model_validate({**wanted, "partition": one}) for one in partitions]

    def _completed(self, stage: Stage) -> Stage:
        if stage.kind != "slurm":
            return stage
        shared = {name: value for name, value in self.slurm if value is not None}
        own = {name: value for name, value in stage if value is not None}
        extra = {**(self.slurm.extra or {}), **(stage.extra or {})}
        return stage.model_copy(update={**shared, **own, "extra": extra or None})
