"""`RunConfig`: all settings of a run, as sections and top-level fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dtm.config.budget import Budget
from dtm.config.decoding import AuditConfig, DecodingConfig, EvaluationConfig
from dtm.config.method import MethodConfig
from dtm.config.model import AdapterConfig, ModelConfig, PretrainConfig
from dtm.config.reward import RewardConfig
from dtm.config.rules import AT_LEAST_ONE, AT_LEAST_TWO, NOT_NEGATIVE, check_fields
from dtm.config.task import MazeConfig, TaskConfig
from dtm.config.training import IterateConfig, OptimizerConfig, ReplayConfig, TiltConfig
from dtm.errors import require


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """Checkpoints for `--resume`."""

    every: int | None = None
    """Steps between checkpoints; one is also written at the end of each phase and on SIGTERM. none: every 50
    steps, or every five minutes in pretraining."""
    keep: int = 2
    """Number of latest checkpoints kept on disk."""

    def __post_init__(self) -> None:
        check_fields("checkpoint", self, every=AT_LEAST_ONE, keep=AT_LEAST_ONE)


@dataclass(frozen=True, kw_only=True, slots=True)
class DistributedConfig:
    """Several processes, started by torchrun or --processes; their number does not change results."""

    shard: Literal["auto", "none", "full"] = "auto"
    """Sharding of the weights. full: shard weights and optimiser state over the processes (FSDP2), for models
    that are trained in full and do not fit one GPU. none: every process keeps all. auto: none if it fits,
    else full."""
    shard_size: int | None = None
    """Processes that keep the weights together, with shard full; other groups of as many hold replicas.
    none: those of one machine, or all if machines differ or have one process each."""
    row_order: bool = False
    """Sum gradients row by row in a fixed order: bit-identical for any number of processes, but as slow as
    one process. Otherwise, and with sharded weights, gradients are equal up to rounding."""

    def __post_init__(self) -> None:
        check_fields("distributed", self, shard_size=AT_LEAST_TWO)
        require(
            self.shard_size is None or self.shard == "full",
            f"distributed.shard-size needs distributed.shard full, got {self.shard}: add --distributed.shard "
            "full, or --distributed.shard-size None",
        )


def _c_dtm() -> MethodConfig:
    from dtm.config.registry import configure_method  # imports the method, and with it torch

    return configure_method("c-dtm")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """All settings of a run. The same settings and seed give the same run, bit for bit on a CPU."""

    recipe: str = "custom"
    """Name of the recipe that the configuration is based on."""
    seed: int = 0
    """Seed of every random stream of the run."""
    device: str = "auto"
    """Device of the run: cpu, cuda, or auto (cuda if available)."""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """Number format of forward and backward passes; sampling noise is always float32. auto: bfloat16 on a
    GPU."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the model's blocks with torch.compile, and replay the updates of models trained in full as CUDA
    graphs. auto: on a GPU, unless the weights are in four bits."""
    budget: str | None = None
    """Train until this much is spent on rollouts and updates, instead of to tilt.final or iterate.iterations:
    wall-clock time (90s, 5m, 1.5h), tokens of forward and backward passes (1e8tokens), or floating-point
    operations (2e15flops)."""
    task: TaskConfig = field(default_factory=MazeConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    method: MethodConfig = field(default_factory=_c_dtm)
    tilt: TiltConfig = field(default_factory=TiltConfig)
    iterate: IterateConfig = field(default_factory=IterateConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)

    def __post_init__(self) -> None:
        check_fields("", self, seed=NOT_NEGATIVE)
        if self.budget is not None:
            Budget.parse(self.budget)
