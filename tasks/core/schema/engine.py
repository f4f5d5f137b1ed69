"""The `engine` block: where each stage runs."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, StrictInt, StrictStr, model_validator

from tasks.core.schema.block import Block, Duration, Size


class SlurmDefaults(Block):
    """Settings of all Slurm jobs, unless a stage has its own."""

    account: str | None = None
    partition: str | None = None
    cpus: Annotated[int, Field(ge=1)] | None = None
    """Cores per job."""
    memory: Size | None = None
    """Memory per job, on its node."""
    time: Duration | None = None
    """Time limit per job, rounded up to minutes; the partition's own unless given. Work that a job does not
    finish in it goes to another job."""
    setup: list[str] | None = None
    """Shell lines at the start of a job's script, such as `module load cuda`."""
    extra: dict[str, StrictStr | StrictInt | Literal[True]] | None = None
    """Further long options of sbatch, such as `{qos: low, exclusive: true}`."""

    @model_validator(mode="after")
    def _extra_options_are_known(self) -> Self:
        for name, value in (self.extra or {}).items():
            if not re.fullmatch(r"[a-z][a-z-]*", name):
                raise ValueError(f"extra: {name!r} is no long option of sbatch, such as qos")
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
            raise ValueError("workers: the Dask cluster has its own")
        return self


class TrainEngine(SlurmDefaults):
    """Where the training runs: on this machine or as a Slurm job on one node; in one process, on a GPU where
    there is one, unless it has several ranks."""

    kind: Literal["local", "slurm"] = "local"
    gpus: Annotated[int, Field(ge=1)] | None = None
    """Ranks that train together, each on a GPU of its own. On this machine they wait until so many are free;
    a Slurm job asks for them (`--gres=gpu:N`; `extra: {gres: 'gpu:a100:4'}` names their type), and has none
    without this key. A command of recipe external is started once, and has to start as many ranks itself."""
    ranks: Annotated[int, Field(ge=1)] | None = None
    """Ranks that train together on the CPU, each with `train.threads` threads."""
    time: Duration | None = None
    """Time limit of the job: none on this machine unless given, the partition's under Slurm. A local training
    is resumed by the next start; a Slurm job that has come further by then is queued again."""

    @property
    def processes(self) -> int:
        """How many ranks train together."""
        return self.gpus or self.ranks or 1

    @model_validator(mode="after")
    def _gpus_or_ranks(self) -> Self:
        if self.gpus is not None and self.ranks is not None:
            raise ValueError("gpus and ranks: a rank is on a GPU or on the CPU; give one of the two")
        _require_slurm(self, *(SlurmDefaults.model_fields.keys() - {"time"}))
        return self


class EvaluateEngine(SlurmDefaults):
    """Where the evaluations run: on the machine of the run's agent, or each as a Slurm job of its own."""

    kind: Literal["local", "slurm"] = "local"
    jobs: Annotated[int, Field(ge=1)] = 1
    """How many run at once, or wait in Slurm's queue."""
    gpus: Annotated[int, Field(ge=1)] | None = None
    """GPUs of a Slurm job, none unless given; on this machine an evaluation takes one where there is one."""
    time: Duration | None = None
    """Time limit per evaluation, an hour unless given."""

    @model_validator(mode="after")
    def _keys_have_effect(self) -> Self:
        _require_slurm(self, *(SlurmDefaults.model_fields.keys() - {"time"}), "gpus")
        return self


def _require_slurm(stage: BuildEngine | TrainEngine | EvaluateEngine, *names: str) -> None:
    """ValueError for the first of the keys that has a value where no job is Slurm's."""
    given = sorted(name for name in names if getattr(stage, name) is not None)
    if stage.kind != "slurm" and given:
        raise ValueError(f"{given[0]} needs kind: slurm")


Stage = TypeVar("Stage", BuildEngine, TrainEngine, EvaluateEngine)
EVALUATION_S = 3600
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
        """The build's settings, completed by those of `slurm`; the options in `extra` of both add up."""
        return self._completed(self.build)

    def for_train(self) -> TrainEngine:
        """The training's settings, completed in the same way."""
        return self._completed(self.train)

    def for_evaluate(self) -> EvaluateEngine:
        """The evaluations' settings, completed in the same way; with a time limit in any case."""
        found = self._completed(self.evaluate)
        return found.model_copy(update={"time": EVALUATION_S}) if found.time is None else found

    def for_successor(self) -> list[EvaluateEngine]:
        """The settings of the job that keeps a finished training's evaluations, tried in this order: one
        core and no GPU in the partition of all jobs, or the cluster's own, else in the training's."""
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
