"""The parts of a run, which `dtm.loop.assemble` makes once from a configuration.

Train, dry run, eval, sample, compare and pretrain share one `Assembly`. The base is loaded when it is first
used, and what follows from other parts (masking, memory, engines) is derived here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from dtm.capacity.memory import Memory, TrainingShape, estimate, parameters
from dtm.capacity.preflight import available, check_device, check_fp8, check_memory, recomputed_blocks
from dtm.config import RunConfig
from dtm.distributed import Group, current
from dtm.distributed.sharding import shard_size
from dtm.engine import Decoder, LocalEngine, RolloutEngine
from dtm.engine.collect import Collector
from dtm.engine.draws import head_rows
from dtm.errors import require
from dtm.loop.base import Loop
from dtm.masking import MaskCount, Masking, in_blocks, runs_doubled
from dtm.methods.base import Method
from dtm.models.adapters import LoRA
from dtm.models.denoiser import Denoiser
from dtm.models.families import read_shape
from dtm.models.placement import Placement
from dtm.models.policy import Policy
from dtm.models.shape import TransformerConfig
from dtm.models.storage import check_weights
from dtm.models.transformer import Transformer
from dtm.random import stream
from dtm.runs.bases import asked_for, check_base, is_factory, is_newest, load_base, no_base
from dtm.tasks.base import Task
from dtm.tasks.language import LanguageTask
from dtm.tasks.rewards import Scorer


@dataclass(frozen=True)
class Assembly:
    """The parts of a run."""

    config: RunConfig
    placement: Placement
    task: Task
    method: Method
    loop: Loop
    decoder: Decoder
    scorer: Scorer
    reward_range: float | None
    """max r − min r where it is known: declared, or the task's."""
    base_folder: Path | None
    """Folder of the base; None: it was given as an object, or is not pretrained yet."""
    given_model: Denoiser | None = None
    """A base that was given as an object."""
    group: Group = field(default_factory=current)
    """The processes of the run."""

    @property
    def run_config(self) -> RunConfig:
        """The configuration that a run writes down: with the folder of its base."""
        model = self.config.model
        if self.base_folder is None or not is_newest(model.base, self.base_folder):
            return self.config
        return replace(self.config, model=replace(model, base=str(self.base_folder.absolute())))

    @cached_property
    def masking(self) -> Masking:
        """Masking of the method; with block-causal attention, inside the model's blocks."""
        self.decoder.require_blocks(self.attention_block)
        return in_blocks(self.method.masks(self.decoder.block, self.task.eos_id), self.attention_block)

    @property
    def attention_block(self) -> int | None:
        """B of the base's block-causal attention; None: full attention."""
        if self.shape is not None:
            return self.shape.attention_block
        return None if self.given_model is None else self.given_model.attention_block

    @cached_property
    def base(self) -> Denoiser:
        """The base π_0 on the device."""
        if self.given_model is not None:
            return check_base(self.given_model.to(self.placement.device), "memory", self.config, self.task)
        return load_base(self.config, self.base_folder, self.task, self.placement)

    @property
    def has_base(self) -> bool:
        """Whether there is a base to start from."""
        made = self.given_model is not None or is_factory(self.config.model.base)
        return made or self.base_folder is not None

    @cached_property
    def shape(self) -> TransformerConfig | None:
        """The shape of the base, or of one that `dtm pretrain` would make; None: not a native transformer."""
        if self.base_folder is not None:
            return read_shape(self.base_folder, asked_for(self.config.model))[1]
        if isinstance(self.given_model, Transformer):
            return self.given_model.config
        return None if self.has_base else new_shape(self.config, self.task)

    @cached_property
    def lora(self) -> LoRA | None:
        """The shape of the adapters; None where all weights are trained."""
        adapter = self.config.adapter
        if adapter.rank is None:
            require(not self.config.model.nf4, "model.nf4 needs adapters: four-bit weights cannot be trained")
            return None
        targets = tuple(name.strip() for name in adapter.targets.split(","))
        return LoRA(rank=adapter.rank, alpha=adapter.alpha, dropout=adapter.dropout, targets=targets)

    @cached_property
    def sharded(self) -> bool:
        """Whether the weights are sharded over the processes (`DistributedConfig.shard`)."""
        mode = self.config.distributed.shard
        if mode == "none" or self.group.size == 1:
            return False
        if mode == "full":
            refused = {
                "adapters, which are small beside a base that every process keeps": self.lora is not None,
                "decoding.fp8, whose copies are whole": self.config.decoding.fp8,
                "decoding.ahead, which needs π_a whole while it is sharded": self.config.decoding.ahead,
                "a model that is not a native transformer": self.shape is None,
            }
            for what, is_asked in refused.items():
                require(not is_asked, f"distributed.shard full does not go with {what}: use shard none")
            return True
        if self.shape is None or self.lora is not None:
            return False
        if self.config.decoding.fp8 or self.config.decoding.ahead:
            return False
        smallest = replace(self._training_shape(self.shape, shards=1), recompute=self.shape.layers)
        alone = estimate(self.shape, smallest).total <= available(self.placement.device)
        return not all(self.group.gather(alone))

    @cached_property
    def shards(self) -> int:
        """Processes over which the weights are sharded; other groups of as many hold replicas. 1: none."""
        if not self.sharded:
            return 1
        return shard_size(self.config.distributed.shard_size, self.group.gather(self.group.neighbours))

    @cached_property
    def prompt_width(self) -> int:
        """Columns of a prompt, from a few of them; whole blocks where attention is block-causal."""
        width = self.task.prompts("train", 16, stream(0, "forecast")).tokens.shape[1]
        block = None if self.shape is None else self.shape.attention_block
        return width + -width % (block or 1)

    # ── memory ───────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def memory(self) -> Memory | None:
        """Bytes of each part of the run, estimated; None: not a native transformer."""
        return None if self.shape is None else estimate(self.shape, self.training_shape)

    @cached_property
    def training_shape(self) -> TrainingShape:
        """The settings that determine the memory of the run, apart from the model's shape."""
        assert self.shape is not None
        run = self._training_shape(self.shape)
        return replace(run, recompute=self.recomputed(self.shape, run))

    def recomputed(self, shape: TransformerConfig, run: TrainingShape, loaded: int = 0) -> int:
        """Blocks under activation checkpointing; ``loaded`` bytes of the model are in memory already."""
        return recomputed_blocks(self.config.model.recompute, shape, run, self.placement.device, loaded)

    def _training_shape(self, shape: TransformerConfig, shards: int | None = None) -> TrainingShape:
        config, completion, together = self.config, self.task.completion_length, self.config.decoding.batch
        half, method, draws = self.placement.is_half, self.method, self.method.rows_per_rollout
        candidates = together * (config.decoding.block or completion)
        return TrainingShape(
            rows=method.sequences_together(config.optimizer.rows, draws) * draws,
            length=self.prompt_width + completion,
            prompt=self.prompt_width,
            scored=method.scored_per_row(completion, config.decoding),
            rollouts=self.loop.prompts * config.replay.completions,
            lora=self.lora,
            ema=self.loop.ema is not None or method.reads_base,  # π_0 takes as much as an average
            weight_bytes=2 if half and self.lora is not None else 4,
            nf4=config.model.nf4,
            compute_bytes=2 if half else 4,
            doubled=runs_doubled(self.masking),
            compiled=self.placement.compiles,
            held=None if method.held is None else max(1, method.held // shape.vocab_size),
            decoded=together,
            candidates=min(candidates, head_rows(shape.vocab_size)),
            cached=config.decoding.cache == ("block" if shape.attention_block is None else "prefix"),
            merged=config.adapter.merge,
            fp8=config.decoding.fp8,
            shards=shards or self.shards,
        )

    def preflight(self) -> None:
        """Refuse a run whose base is incomplete, or that needs a GPU or more memory than there is."""
        if self.base_folder is not None:
            check_weights(self.base_folder, asked_for(self.config.model))
        elif not self.has_base:
            raise no_base(self.config)
        if self.shape is None or self.memory is None:
            return
        self.decoder.require_blocks(self.shape.attention_block)
        device = self.placement.device
        if self.config.decoding.fp8:
            check_fp8(self.shape, device)
        check_device(parameters(self.shape), device, asked_for=self.config.device != "auto")
        check_memory(self.memory, device, has_replicas=1 < self.shards < self.group.size)

    # ── parts with state ─────────────────────────────────────────────────────────────────────────

    def new_policy(self) -> Policy:
        """Make the student, π_a, and the average and π_0 if they are needed, over the base.

        Training may change the base, so a later use of `base` loads it again; a given model changes itself.
        """
        base = self.base
        self.__dict__.pop("base")
        if isinstance(base, Transformer):
            loaded = sum(parameter.nbytes for parameter in base.parameters())
            base.recompute = self.recomputed(base.config, self._training_shape(base.config), loaded)
        policy = Policy(
            base,
            self.loop.ema,
            lora=self.lora,
            merge=self.config.adapter.merge,
            keep_base=self.method.reads_base,
            shards=self.shards,
            generator=stream(self.config.seed, "adapters"),
        )
        if self.placement.compiles:
            policy.compile()
        return policy

    def new_model(self) -> Transformer:
        """A freshly initialised model for the task's vocabulary."""
        return Transformer(new_shape(self.config, self.task), stream(self.config.seed, "initial weights"))

    def collector(self, between: Callable[[], None] = lambda: None) -> Collector:
        """Rollouts with rewards, drawn by the configured engine."""
        return Collector(self.task, self.scorer, self.engine(self.decoder, between), self.group, between)

    def engine(self, decoder: Decoder, between: Callable[[], None] = lambda: None) -> RolloutEngine:
        """An engine that draws completions of the task; its model is loaded later."""
        # Kernels may round differently for other numbers of rows; a row alone is the same in every process.
        batch = 1 if self.config.distributed.row_order else self.config.decoding.batch
        return LocalEngine(decoder, self.task.completion_length, batch, between)

    def pretraining_masks(self) -> tuple[MaskCount, MaskCount]:
        """Return the masks of `dtm pretrain`: of most steps, and of the last ones (`pretrain.settle`)."""
        settings, block = self.config.pretrain, self.decoder.block
        require(
            not isinstance(self.task, LanguageTask),
            f"{self.config.recipe} starts from a model that has been pretrained",
        )
        require(
            not settings.settle or block is not None,
            "pretrain.settle masks in the decoder's blocks, and there are none: give --decoding.block, or "
            "--pretrain.settle 0",
        )
        usual = block if settings.block == "decoding" else settings.block
        end_id = None if settings.after_end or block is None else self.task.eos_id
        skew = settings.mask_skew
        return (
            MaskCount(usual if isinstance(usual, int) else None, skew=skew),
            MaskCount(block, end_id, skew=skew),
        )


def new_shape(config: RunConfig, task: Task) -> TransformerConfig:
    """The shape of a model from scratch."""
    model = config.model
    return TransformerConfig(
        vocab_size=task.vocab_size,
        mask_id=task.mask_id,
        eos_id=task.eos_id,
        width=model.width,
        layers=model.layers,
        heads=model.heads,
        ffn=model.ffn,
    )
