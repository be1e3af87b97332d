"""`RunConfig`: the sections and the top-level fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dtm.config.budget import Budget
from dtm.config.decoding import AuditConfig, DecodingConfig, EvaluationConfig
from dtm.config.method import MethodConfig
from dtm.config.model import AdapterConfig, ModelConfig, PretrainConfig
from dtm.config.reward import RewardConfig
from dtm.config.task import MazeConfig, TaskConfig
from dtm.config.training import IterateConfig, OptimizerConfig, ReplayConfig, TiltConfig
from dtm.errors import require


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """Checkpoints for `--resume`."""

    every: int | None = None
    """Steps between checkpoints; one is also written at the end of each phase and on SIGTERM. none: 50 steps,
    or five minutes in pretraining."""
    keep: int = 2
    """How many of the latest checkpoints stay on disk."""

    def __post_init__(self) -> None:
        for name, value in (("every", self.every), ("keep", self.keep)):
            require(value is None or value >= 1, f"checkpoint.{name} must be at least 1, got {value}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DistributedConfig:
    """Several processes: torchrun or --processes starts them; they do not change what a run computes."""

    shard: Literal["auto", "none", "full"] = "auto"
    """full: every process keeps a share of the weights and of the optimiser's state (FSDP2), for models that
    are trained in full and that one GPU cannot hold. none: every process keeps all. auto: none where it fits,
    else full."""
    row_order: bool = False
    """Sum gradients row by row, in one order: equal bit for bit for any number of processes, and as slow as
    one. Otherwise, and with sharded weights, they are equal up to rounding."""


def _c_dtm() -> MethodConfig:
    from dtm.config.registry import configure_method  # imports the method, and with it torch

    return configure_method("c-dtm")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Everything that decides a run. The same config and seed give the same run, bit for bit on a CPU."""

    recipe: str = "custom"
    """Name of the recipe that this configuration started from."""
    seed: int = 0
    """Seed of every random stream of the run."""
    device: str = "auto"
    """cpu, cuda, or auto: cuda where there is one."""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """Arithmetic of the forward and backward passes; sampling noise is float32 always. auto: bfloat16 on
    a GPU."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Fuse the model's blocks with torch.compile, and replay the updates of models trained in full as CUDA
    graphs; auto: on a GPU, unless they are in four bits."""
    budget: str | None = None
    """Go on until this much is spent on rollouts and updates, instead of to tilt.final or iterate.iterations:
    wall-clock (90s, 5m, 1.5h), tokens through a model, forward and backward (1e8tokens), or operations
    (2e15flops)."""
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
        require(self.seed >= 0, f"seed must not be negative, got {self.seed}")
        if self.budget is not None:
            Budget.parse(self.budget)
