"""What is learnt: the reward, and the objective that turns it into a loss."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from dtm.baselines import (
    BaselineConfig,
    DiffuGRPOConfig,
    GDPOConfig,
    Preset,
    SPGConfig,
    TraceRLConfig,
    UniGRPOConfig,
    VRPOConfig,
    WD1Config,
)
from dtm.errors import require


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardConfig:
    """Where the reward comes from, and what happens when it fails."""

    function: str | None = None
    """Your own reward as module:function or path/to/file.py:function; none: the task's."""
    low: float | None = None
    """Lowest reward your function can return; with high, it sets the ratio guard."""
    high: float | None = None
    """Highest reward your function can return; none: the guard uses the range seen in the buffer."""
    on_error: Literal["stop", "skip"] = "stop"
    """When the function raises, hangs, or returns nan for a sample: stop the run (everything written is
    kept) or skip the sample. None from the function always skips it."""
    timeout: float = 60.0
    """Seconds a call may take before it counts as hung."""

    def __post_init__(self) -> None:
        require(self.timeout > 0, f"reward.timeout must be positive, got {self.timeout:g}")
        if self.low is not None and self.high is not None:
            require(self.low < self.high, f"reward.low {self.low:g} must be below reward.high {self.high:g}")

    @property
    def declared(self) -> tuple[float, float] | None:
        """The range of the reward, where it was given."""
        low, high = self.low, self.high
        if low is None or high is None:
            require(low is high, "give reward.low and reward.high together, or neither")
            return None
        return low, high


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveConfig:
    """The objective: c-DTM with the fields right here, or a baseline with those of its own section."""

    name: Literal["c-dtm", "diffu-grpo", "wd1", "unigrpo", "spg", "vrpo", "gdpo", "trace-rl"] = "c-dtm"
    """c-dtm anneals. The others go through tilt.final iterations: rollouts of the current model, then the
    method's own number of updates on them, at a constant learning rate and with Adam's moments kept. After
    `--objective NAME`, `--objective.preset published` is short for `--objective.NAME.preset published`."""
    control_variate: str = "adaptive"
    """c: zero, one (the paper's), mean, loo (leave one out), adaptive (closed form from past batches),
    or module:function for your own function of x_t."""
    guard: bool = True
    """Drop the advantage term where π_θ/π_a leaves e^{±h·range(r)}, which the target never does."""
    prompt_baseline: bool = True
    """Take the mean reward of a prompt's other completions off each reward. The target π_{a+h} stays the
    same, but prompts whose rewards are always high no longer drown the others."""
    block: int | Literal["decoding", "any-order"] = "decoding"
    """Block size of the masking interpolant; decoding: the same as the decoder's."""
    after_end: bool = True
    """Train also on the blocks after the one in which a completion ends. Their loss is nothing for a
    model that knows how sequences end, so leaving them out saves work; only with blocks."""
    control_memory: float = 0.95
    """Share of the past that adaptive c keeps at each step."""
    diffu_grpo: DiffuGRPOConfig = field(default_factory=DiffuGRPOConfig)
    wd1: WD1Config = field(default_factory=WD1Config)
    unigrpo: UniGRPOConfig = field(default_factory=UniGRPOConfig)
    spg: SPGConfig = field(default_factory=SPGConfig)
    vrpo: VRPOConfig = field(default_factory=VRPOConfig)
    gdpo: GDPOConfig = field(default_factory=GDPOConfig)
    trace_rl: TraceRLConfig = field(default_factory=TraceRLConfig)

    def __post_init__(self) -> None:
        memory = self.control_memory
        require(0 <= memory < 1, f"objective.control-memory must lie in [0, 1), got {memory:g}")

    @property
    def baseline(self) -> BaselineConfig | None:
        """The section of the chosen baseline; None for c-DTM, which anneals."""
        return None if self.name == "c-dtm" else getattr(self, self.name.replace("-", "_"))

    @property
    def pairs(self) -> bool:
        """Whether updates look at two completions of a prompt, the best and the worst, and not at all."""
        return self.name == "vrpo"

    def with_preset(self, preset: Preset) -> ObjectiveConfig:
        """The chosen baseline in its corrected or its published form; of some, the two are one."""
        baseline = self.baseline
        require(
            baseline is not None,
            f"{self.name} has no preset: --objective.preset goes with a baseline, as in --objective spg "
            "--objective.preset published (in `dtm compare`: --set spg.preset=published)",
        )
        if isinstance(baseline, WD1Config | SPGConfig | GDPOConfig | TraceRLConfig):
            section = {self.name.replace("-", "_"): replace(baseline, preset=preset)}
            return replace(self, **section)  # type: ignore[arg-type]
        return self
