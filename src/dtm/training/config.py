"""A run as one frozen value: nested dataclasses, every field documented with its symbol.

Recipes return a `RunConfig`; on the command line every field is a flag (``--tilt.step 2.5``), in a file
every field is a YAML key. Importing this module imports no torch, so help and recipes stay fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from dtm.baselines import (
    BaselineConfig,
    DiffuGRPOConfig,
    GDPOConfig,
    SPGConfig,
    TraceRLConfig,
    UniGRPOConfig,
    VRPOConfig,
    WD1Config,
)
from dtm.errors import require
from dtm.training.budget import Budget

Auto = Literal["auto"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MazeConfig:
    """The maze task: paths from a start to a goal, rewarded for keeping away from the centre."""

    kind: Literal["maze"] = "maze"
    """Which task this section describes."""
    size: int = 15
    """Cells along each side; odd."""
    door_fraction: float = 0.4
    """Chance that a wall which the spanning tree left standing is opened."""
    seed: int = 0
    """Which maze; also which (start, goal) pairs are held out for testing."""
    completion_length: int | None = None
    """Tokens of a completion; none: just enough for the pretraining paths."""
    penalty: float = -0.4
    """Reward of an invalid path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MiniConfig:
    """Sudoku or Countdown in characters, for small models from scratch."""

    kind: Literal["sudoku-mini", "countdown-mini"] = "countdown-mini"
    """Which of the two."""
    data_dir: str | None = None
    """Folder with the published data sets, whose test items are then used; none: all items are generated."""
    seed: int = 0
    """Which items are generated, and how they are split."""
    solved: float = 0.2
    """Share of Sudoku's empty cells, or of Countdown's answers, that the pretraining corpus finishes: a weak
    base by design."""
    skilled: float = 0.6
    """Share of the pretraining before that in which all answers are finished, to learn the puzzle first."""

    def __post_init__(self) -> None:
        require(0 <= self.solved <= 1, f"task.solved is a share in [0, 1], got {self.solved:g}")
        require(0 <= self.skilled < 1, f"task.skilled is a share in [0, 1), got {self.skilled:g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageConfig:
    """A benchmark or your own data for a language model with a tokenizer."""

    kind: Literal["countdown", "sudoku", "gsm8k", "math500", "custom"] = "custom"
    """Which benchmark; custom: your own rows."""
    data_dir: str | None = None
    """Folder with the benchmarks' data sets."""
    data: str | None = None
    """For custom: a JSON-lines file, each row with a "prompt" and columns that your reward receives."""
    protocol: Literal["dtm", "spg", "d1"] = "dtm"
    """Whose prompts and whose reading of the answers."""
    reward: Literal["paper", "released", "spg"] = "paper"
    """Which of the benchmark's rewards."""
    completion_length: int = 256
    """L, the tokens of a completion."""
    prompt_length: int = 1024
    """Rows whose prompt has more tokens are left out, and counted."""
    seed: int = 0
    """Which training rows are kept for validation."""

    def __post_init__(self) -> None:
        for name in ("completion_length", "prompt_length"):
            value = getattr(self, name)
            require(value >= 1, f"task.{name.replace('_', '-')} must be at least 1, got {value}")


TaskConfig = MazeConfig | MiniConfig | LanguageConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The denoiser: where its weights come from, or the shape to train from scratch."""

    base: str | None = None
    """Folder or packaged name of the pretrained base π_0; none: the recipe's latest `dtm pretrain`."""
    width: int = 96
    """Model width."""
    layers: int = 4
    """Transformer blocks."""
    heads: int = 4
    """Attention heads."""
    ffn: int = 256
    """Width of the gated feed-forward layers."""
    nf4: bool = False
    """Keep the base's projections in four bits; needs adapters, and bitsandbytes."""
    recompute: int | Literal["auto", "all", "none"] = "none"
    """Blocks that are worked out again in the backward pass: a third more time, a fraction of the memory;
    auto: as few as fit the memory that is free."""

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "ffn"):
            value = getattr(self, name)
            require(value >= 1, f"model.{name} must be at least 1, got {value}")
        require(
            isinstance(self.recompute, str) or self.recompute >= 0,
            f"model.recompute is auto, all, none or a number of blocks, got {self.recompute}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterConfig:
    """LoRA: train small adapters over a frozen base instead of all weights."""

    rank: int | None = None
    """r; none: train all weights."""
    alpha: float = 64.0
    """α; the update is scaled by α / r."""
    dropout: float = 0.0
    """Dropout on the adapters' input, in training steps alone."""
    targets: str = "all"
    """Projections by name with commas between, or all seven, or published: the four of public code."""
    merge: bool = False
    """Add π_a's adapter into copies of the weights for rollouts and evaluations: fewer products, memory for
    the copies, and a sum rounded to the precision of the base."""

    def __post_init__(self) -> None:
        require(self.rank is None or self.rank >= 1, f"adapter.rank must be at least 1, got {self.rank}")
        require(self.alpha > 0, f"adapter.alpha must be positive, got {self.alpha:g}")
        require(0 <= self.dropout < 1, f"adapter.dropout must lie in [0, 1), got {self.dropout:g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodingConfig:
    """How rollouts are drawn from π_a, in training and in evaluation alike."""

    order: str = "uniform"
    """Which position is revealed next: uniform and max-probability are exact at one token a step,
    sampled-confidence is LLaDA's rule and biased."""
    block: int | None = None
    """B, the block size of semi-autoregressive decoding; none: any-order."""
    tokens_per_step: int = 1
    """Tokens revealed by one forward pass; 1 is exact."""
    temperature: float = 1.0
    """τ of the token draws; 1 samples the model's own law."""
    certainty: float | None = None
    """Also reveal every position whose likeliest token has at least this probability. Saves most
    forward passes; each such token moves the law by at most 1 − certainty in total variation."""
    cache: Literal["none", "block"] = "none"
    """block: only the first pass of a block is over whole sequences; the others are over the block, against
    the keys and values that it left. A fraction of the operations, and an approximation: see audit."""
    refresh: int = 1
    """With a cache, blocks from one pass over whole sequences to the next: more is faster and less exact."""
    until_end: bool = False
    """Stop a completion after the block with its end token, and give its place in the batch to the next
    prompt; what it leaves unwritten becomes end tokens."""
    batch: int = 256
    """Sequences decoded together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditConfig:
    """Decoding again without its shortcuts (cache, until-end, certainty), with the same noise, to compare."""

    share: float = 0.02
    """Share of every collection of rollouts that is decoded twice to compare; 0: none."""
    agreement: float = 0.5
    """Least share of tokens, up to the end of a completion, that must be the same, give or take two standard
    errors. A single other token changes most of what follows it, so that this says little about the law."""
    shift: float | None = None
    """Largest change of the mean reward, in units of the reward and beyond twice its standard error; none:
    any. Past this limit or the one on agreement the rest of the run takes no shortcuts, and says so."""

    def __post_init__(self) -> None:
        require(0 <= self.share <= 1, f"audit.share is a share in [0, 1], got {self.share:g}")
        require(0 <= self.agreement <= 1, f"audit.agreement is a share in [0, 1], got {self.agreement:g}")
        require(self.shift is None or self.shift >= 0, f"audit.shift must not be negative, got {self.shift}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveConfig:
    """The objective: c-DTM with the fields right here, or a baseline with those of its own section."""

    name: Literal["c-dtm", "diffu-grpo", "wd1", "unigrpo", "spg", "vrpo", "gdpo", "trace-rl"] = "c-dtm"
    """c-dtm anneals. The others go through tilt.final iterations: rollouts of the current model, then the
    method's own number of updates on them, at a constant learning rate and with Adam's moments kept."""
    control_variate: str = "adaptive"
    """c: zero, one (the paper's), mean, loo (leave one out), adaptive (closed form from past batches),
    or module:function for your own function of x_t."""
    guard: bool = True
    """Drop the advantage term where π_θ/π_a leaves e^{±h·range(r)}, which the target never does."""
    prompt_baseline: bool = True
    """Take the mean reward of a prompt's other completions off each reward. The target π_{a+h} stays the
    same, but prompts whose rewards are always high no longer drown the others."""
    weight_cap: float | None = None
    """A completion counts at most this many times as much as its prompt's others do on average: rewards above
    that are lowered, in this phase, to where they reach it. Keeps the few successes on prompts that mostly
    fail from being all that a batch learns; none: no limit. Needs prompt-baseline."""
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
        cap = self.weight_cap
        require(
            cap is None or cap > 1, f"objective.weight-cap must exceed 1, the weight of the others; got {cap}"
        )
        require(
            cap is None or self.prompt_baseline,
            "objective.weight-cap compares a completion with its prompt's others: it needs "
            "--objective.prompt-baseline",
        )

    @property
    def baseline(self) -> BaselineConfig | None:
        """The section of the chosen baseline; None for c-DTM, which anneals."""
        return None if self.name == "c-dtm" else getattr(self, self.name.replace("-", "_"))


@dataclass(frozen=True, kw_only=True, slots=True)
class TiltConfig:
    """The annealing ladder a = 0 → A in phases of h."""

    step: float | Auto = 2.5
    """h, the tilt added by each phase; auto: as much as keeps ESS at the target."""
    final: float = 10.0
    """A, the tilt at which annealing stops; for a baseline the number of iterations, and the rest of this
    section, apart from patience, says nothing. Not read where there is a budget."""
    ess: float = 0.7
    """Effective sample size, as a fraction of the buffer, that step = auto aims at."""
    step_cap: float = 5.0
    """Largest h that auto may choose; it is also the answer when all rewards are equal."""
    absorbed: float = 0.9
    """A phase ends once this fraction of the available KL is gained, on fresh rollouts and with its
    standard error taken off."""
    max_steps: int = 200
    """Optimiser steps after which a phase ends in any case."""
    patience: int | None = None
    """Stop when the mean reward has not risen for this many phases; none: go on until A."""

    def __post_init__(self) -> None:
        require(0 < self.final < math.inf, f"tilt.final must be positive and finite, got {self.final:g}")
        if self.step != "auto":
            require(
                0 < self.step <= self.final,
                f"tilt.step must lie in (0, {self.final:g}] (tilt.final), got {self.step:g}",
            )
        require(0 < self.ess < 1, f"tilt.ess is a fraction in (0, 1), got {self.ess:g}")
        require(self.step_cap > 0, f"tilt.step-cap must be positive, got {self.step_cap:g}")
        require(
            self.absorbed > 0,
            f"tilt.absorbed must be positive (above 1 never ends a phase early), got {self.absorbed:g}",
        )
        require(self.max_steps >= 1, f"tilt.max-steps must be at least 1, got {self.max_steps}")
        require(
            self.patience is None or self.patience >= 1,
            f"tilt.patience must be at least 1, got {self.patience}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayConfig:
    """The buffer of rollouts that batches are drawn from; a baseline rebuilds it in every iteration."""

    prompts: int = 64
    """Prompts in the buffer."""
    completions: int = 8
    """K, completions of each prompt; with one alone the progress meter has nothing to compare."""
    refresh_every: int = 25
    """Steps between refreshes."""
    refresh_fraction: float = 0.25
    """Share of the prompts that a refresh replaces by fresh rollouts of π_a."""
    priority: float = 0.8
    """Share of the draws that goes to rollouts in proportion to |w̄ − 1|, whose gradient is not nearly
    zero; corrected for, so nothing is biased. 0 draws all alike."""

    def __post_init__(self) -> None:
        require(self.prompts >= 1, f"replay.prompts must be at least 1, got {self.prompts}")
        require(self.completions >= 1, f"replay.completions must be at least 1, got {self.completions}")
        require(0 <= self.priority < 1, f"replay.priority must lie in [0, 1), got {self.priority:g}")
        require(self.refresh_every >= 1, f"replay.refresh-every must be at least 1, got {self.refresh_every}")
        require(
            0 < self.refresh_fraction <= 1,
            f"replay.refresh-fraction must lie in (0, 1], got {self.refresh_fraction:g}",
        )

    @property
    def refresh_prompts(self) -> int:
        """Prompts that a refresh replaces."""
        return max(1, round(self.refresh_fraction * self.prompts))

    @property
    def closing_prompts(self) -> int:
        """Prompts on which a phase is measured at its end."""
        return max(1, self.prompts // 4)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """AdamW; its moments and the learning-rate schedule start anew in every phase of c-DTM.

    A baseline keeps the moments, and uses no warm-up, decay or average.
    """

    lr: float = 1e-4
    """η, the peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Adam's memory of the gradient and of its square."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    clip_norm: float = 1.0
    """Largest gradient norm, for a loss in nats per token."""
    warmup: float = 0.05
    """Share of tilt.max-steps over which the learning rate rises at a phase's start."""
    decay: float = 0.2
    """Share of tilt.max-steps over which it falls to zero at a phase's end."""
    batch: int = 128
    """Rollouts in a step, each masked once, or as often as the baseline says. A baseline takes whole groups,
    and all of the buffer if it has no more."""
    micro_batch: int | None = None
    """Rows in one forward pass; changes memory, never the gradient. None: as many as batch."""
    ema: float | None = None
    """Memory of the student's moving average, which then becomes the next π_a; none: off."""

    def __post_init__(self) -> None:
        require(self.lr > 0, f"optimizer.lr must be positive, got {self.lr:g}")
        require(all(0 <= b < 1 for b in self.betas), f"optimizer.betas must lie in [0, 1), got {self.betas}")
        require(
            self.weight_decay >= 0, f"optimizer.weight-decay must not be negative, got {self.weight_decay:g}"
        )
        require(self.clip_norm > 0, f"optimizer.clip-norm must be positive, got {self.clip_norm:g}")
        require(self.batch >= 1, f"optimizer.batch must be at least 1, got {self.batch}")
        require(
            self.micro_batch is None or self.micro_batch >= 1,
            f"optimizer.micro-batch must be at least 1, got {self.micro_batch}",
        )
        require(
            min(self.warmup, self.decay) >= 0 and self.warmup + self.decay <= 1,
            f"optimizer.warmup + optimizer.decay must lie in [0, 1], got {self.warmup:g} + {self.decay:g}",
        )
        require(self.ema is None or 0 < self.ema < 1, f"optimizer.ema must lie in (0, 1), got {self.ema}")

    @property
    def rows(self) -> int:
        """Rows in one forward pass."""
        return self.micro_batch or self.batch


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


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """Measuring on held-out prompts, at the start and after each phase."""

    split: Literal["validation", "test"] = "validation"
    """Which prompts: choose settings by validation, and ask test once, at the end."""
    prompts: int = 64
    """Held-out prompts, the same at every evaluation."""
    completions: int = 8
    """Completions of each; diversity is measured within them."""
    temperature: float | None = None
    """τ of the token draws while measuring; none: that of the rollouts."""
    every: int = 1
    """Phases (iterations of a baseline) from one evaluation to the next; the last is always measured. With a
    budget: at the first phase's end after each tenth of it."""

    def __post_init__(self) -> None:
        for name in ("prompts", "completions", "every"):
            value = getattr(self, name)
            require(value >= 1, f"evaluation.{name} must be at least 1, got {value}")
        require(
            self.temperature is None or self.temperature >= 0,
            f"evaluation.temperature must not be negative, got {self.temperature}",
        )


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
class PretrainConfig:
    """Training the base π_0 on the task's own examples with the evidence bound (`dtm pretrain`)."""

    steps: int = 4000
    """Optimiser steps."""
    batch: int = 256
    """Sequences in a step."""
    block: int | Literal["decoding", "any-order"] = "any-order"
    """Block size of the masking interpolant; decoding: the same as the decoder's."""
    lr: float = 2e-3
    """Peak learning rate; warms up over the first 2 % of the steps, then falls as a cosine."""
    weight_decay: float = 0.01
    """Decoupled weight decay."""
    held_out: int = 1024
    """Held-out sequences on which the bound is reported."""

    def __post_init__(self) -> None:
        require(self.steps >= 1, f"pretrain.steps must be at least 1, got {self.steps}")
        require(self.lr > 0, f"pretrain.lr must be positive, got {self.lr:g}")
        require(
            self.weight_decay >= 0, f"pretrain.weight-decay must not be negative, got {self.weight_decay:g}"
        )
        require(self.batch >= 1, f"pretrain.batch must be at least 1, got {self.batch}")
        require(self.held_out >= 1, f"pretrain.held-out must be at least 1, got {self.held_out}")


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
