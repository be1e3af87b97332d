"""A run: every section, and what stands above them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dtm.config.annealing import OptimizerConfig, ReplayConfig, TiltConfig
from dtm.config.budget import Budget
from dtm.config.model import AdapterConfig, ModelConfig, PretrainConfig
from dtm.config.objective import ObjectiveConfig, RewardConfig
from dtm.config.sampling import AuditConfig, DecodingConfig, EvaluationConfig
from dtm.config.task import MazeConfig, TaskConfig
from dtm.errors import require


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """What is kept for `--resume`."""

    every: int = 50
    """Steps between checkpoints; one is also written at the end of each phase and on SIGTERM."""
    keep: int = 2
    """How many of the latest checkpoints stay on disk."""

    def __post_init__(self) -> None:
        require(self.every >= 1, f"checkpoint.every must be at least 1, got {self.every}")
        require(self.keep >= 1, f"checkpoint.keep must be at least 1, got {self.keep}")


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
    """Go on until this much is spent on rollouts and updates, instead of up to tilt.final: wall-clock (90s,
    5m, 1.5h), tokens through a model, forward and backward (1e8tokens), or operations (2e15flops)."""
    task: TaskConfig = field(default_factory=MazeConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    tilt: TiltConfig = field(default_factory=TiltConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)

    def __post_init__(self) -> None:
        if self.budget is not None:
            Budget.parse(self.budget)
        objective, tilt = self.objective, self.tilt
        if objective.baseline is not None:
            require(
                self.replay.completions > 1,
                f"{objective.name} learns from how the completions of a prompt differ, and there is one of "
                "each: add --replay.completions 6, or more",
            )
            seen, batch = self.completions_seen, self.optimizer.batch
            require(
                seen <= batch,
                f"an update of {objective.name} takes {seen} completions of a prompt, and optimizer.batch "
                f"holds {batch}: raise it to {seen} or a multiple",
            )
        elif self.budget is None and tilt.step != "auto":  # with a budget, tilt.final is not read
            require(
                tilt.step <= tilt.final,
                f"tilt.step must lie in (0, {tilt.final:g}] (tilt.final), got {tilt.step:g}",
            )

    @property
    def completions_seen(self) -> int:
        """Completions of a prompt that an update of a baseline looks at."""
        return 2 if self.objective.pairs else self.replay.completions
