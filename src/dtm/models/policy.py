"""The models of a run: the trained student π_θ, the frozen teacher π_a, the student's average, the base π_0.

They are full copies, or adapters over one shared base, chosen when the policy is made; other code does not
depend on it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dtm.distributed.sharding import gathered, materialise, on_cpu, shard
from dtm.errors import require
from dtm.models.adapters import (
    LoRA,
    adapted,
    adapter_parameters,
    adapter_weights,
    frozen_adapted,
    load_adapter_weights,
)
from dtm.models.denoiser import Denoiser, heard_by
from dtm.models.merging import for_decoding, merged
from dtm.models.transformer import Transformer
from dtm.random import stream
from dtm.records import MaskedStates


class Policy:
    """Student, π_a and optionally the exponential moving average of the student.

    With ``lora`` each is an adapter over the weights of ``base``, which is π_0 and frozen; with ``merge`` π_a
    runs with its adapter merged into copies of the weights. Without ``lora`` the student is ``base`` itself
    and the others are copies; π_0 is then kept only with ``keep_base``. The weights of each
    model are sharded over groups of ``shards`` processes; 1: every process keeps them all.
    """

    def __init__(
        self,
        base: Denoiser,
        ema: float | None = None,
        *,
        lora: LoRA | None = None,
        merge: bool = False,
        keep_base: bool = False,
        shards: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        self.ema, self.lora, self.merge, self.shards = ema, lora, merge, shards
        self.student: Denoiser
        self.base: Denoiser | None
        if self.sharded:
            self._make_sharded(_transformer(base), keep_base)
        elif lora is None:
            self.student, self.base = base, _frozen(base) if keep_base else None
        else:
            require(
                bool(base.linears()),
                f"adapters need declared linear layers, and {type(base).__name__}.linears() is empty: "
                "declare them, or train all weights (leave --adapter.rank out)",
            )
            self.base = base.eval()
            self.student = adapted(base, lora, generator or stream(0, "adapters"))
        if not self.sharded:
            self.teacher = self._frozen_student()
            self.average = None if ema is None else self._frozen_student()
        self._made: dict[bool, Denoiser] = {}
        self._compiles = False

    @property
    def sharded(self) -> bool:
        """Whether a process keeps a part of the weights only."""
        return self.shards > 1

    def log_pi(self, states: MaskedStates) -> Float[Tensor, "N V"]:
        """log π_θ at the scored positions, row by row."""
        return self.student(states.tokens, states.attention, states.scored, clean=states.context)

    @torch.no_grad()
    def log_pi_a(self, states: MaskedStates) -> Float[Tensor, "N V"]:
        """log π_a at the scored positions, row by row."""
        return self.pi_a()(states.tokens, states.attention, states.scored, clean=states.context)

    def rows(self, states: MaskedStates) -> Float[Tensor, "N D"]:
        """The student's hidden states that predict the scored positions, for the head to run on parts."""
        return self.student(states.tokens, states.attention, states.scored, head=False, clean=states.context)

    @torch.no_grad()
    def rows_a(self, states: MaskedStates) -> Float[Tensor, "N D"]:
        """π_a's hidden states that predict the scored positions."""
        return self.pi_a()(states.tokens, states.attention, states.scored, head=False, clean=states.context)

    @torch.no_grad()
    def log_pi_0(self, states: MaskedStates) -> Float[Tensor, "N V"]:
        """log π_0 at the scored positions, row by row."""
        require(self.base is not None, "π_0 was not kept: make the Policy with keep_base=True")
        assert self.base is not None
        return self.base(states.tokens, states.attention, states.scored, clean=states.context)

    def pi_a(self, fp8: bool = False) -> Denoiser:
        """π_a for inference: with ``merge`` its adapter is merged into copies of the weights.

        With ``fp8`` the copies are in eight bits, also without an adapter. They are made once for each π_a.
        """
        if not fp8 and (self.lora is None or not self.merge):
            return self.teacher
        if fp8 not in self._made:
            made = for_decoding(self.teacher, fp8) if fp8 else merged(_transformer(self.teacher))
            if self._compiles:
                _transformer(made).compile_blocks()
            self._made[fp8] = made
        return self._made[fp8]

    def trained(self) -> list[nn.Parameter]:
        """Parameters for the optimiser: the student's weights but frozen ones, or those of its adapter."""
        return [value for value in self._changing(self.student).values() if value.requires_grad]

    def weights(self, model: Denoiser) -> dict[str, Tensor]:
        """Tensors in which the models differ, by name, for a checkpoint."""
        return model.state_dict() if self.lora is None else adapter_weights(model)

    def load_weights(self, model: Denoiser, weights: Mapping[str, Tensor]) -> None:
        """Load what `weights` returned, strictly; sharded weights as this model's are sharded."""
        if model is self.teacher:
            self._made.clear()
        if self.lora is None:
            model.load_state_dict(weights)
        else:
            load_adapter_weights(model, weights)

    def tuned(self, keep: bool = True) -> Denoiser:
        """π_a as a model to save: itself, or a whole copy on the CPU. Collective.

        Without ``keep`` this process only takes part: its copy has no values.
        """
        if not self.sharded:
            return self.teacher
        with torch.device("meta"):
            made = Transformer(_transformer(self.teacher).config)
        values = on_cpu(self.weights(self.teacher), keep)
        if keep:
            made.load_state_dict(values, assign=True)
        return made

    def gathered(self, model: Denoiser | None = None) -> AbstractContextManager[None]:
        """Context with a gathered model, by default π_a, so that processes may make different passes."""
        return gathered(model or self.teacher) if self.sharded else nullcontext()

    def uncounted(self) -> AbstractContextManager[None]:
        """Context whose passes are not charged: a process makes them only because other processes do."""
        models = (self.student, self.teacher, self.base)
        return heard_by(None, *(model for model in models if model is not None))

    def _make_sharded(self, base: Transformer, keep_base: bool) -> None:
        """Shard the student, then fill sharded copies, without a whole copy in any process."""
        copies = [_blank(base) for _ in range(1 + (self.ema is not None) + keep_base)]
        device = base.embedding.weight.device
        shard(base, base.blocks, device, self.shards)
        for copied in copies:
            shard(copied, copied.blocks, device, self.shards)
            materialise(copied, base, device)
        self.student, self.teacher = base, copies.pop(0)
        self.average = None if self.ema is None else copies.pop(0)
        self.base = copies.pop(0) if keep_base else None

    def compile(self) -> None:
        """Compile student, π_a, average and π_0 (see `Transformer.compile_blocks`)."""
        self._compiles = True
        for model in (self.student, self.teacher, self.average, self.base):
            if isinstance(model, Transformer):
                model.compile_blocks()

    def record(self, shape: torch.Size) -> None:
        """Record the student's and π_a's passes over batches of this shape (see `Transformer.record`).

        A model that has a recording keeps it.
        """
        for model in (self.student, self.pi_a()):
            if isinstance(model, Transformer) and model.recording is None:
                model.record(shape)

    @torch.no_grad()
    def track(self) -> None:
        """Move the average towards the student: average ← ema · average + (1 − ema) · student."""
        if self.average is not None and self.ema is not None:
            student = self._changing(self.student)
            for name, average in self._changing(self.average).items():
                average.lerp_(student[name], 1 - self.ema)

    @property
    def successor(self) -> Denoiser:
        """The model that becomes the next π_a: the student's average if there is one, else the student."""
        return self.student if self.average is None else self.average

    def promote(self) -> None:
        """End a phase: the successor becomes π_{a+h}, and all models start from it."""
        self._start_from(self.weights(self.successor))

    def revert(self) -> None:
        """Undo a phase: all models start from π_a again."""
        self._start_from(self.weights(self.teacher))

    def _start_from(self, weights: Mapping[str, Tensor]) -> None:
        self.load_weights(self.student, weights)
        self.load_weights(self.teacher, weights)
        if self.average is not None:
            self.load_weights(self.average, weights)

    def _frozen_student(self) -> Denoiser:
        """A frozen copy of the student as it is now."""
        if self.lora is None:
            return _frozen(self.student)
        assert self.base is not None
        return frozen_adapted(self.base, self.lora, adapter_weights(self.student))

    def _changing(self, model: Denoiser) -> dict[str, nn.Parameter]:
        """Return the parameters that differ between the models, by name."""
        return dict(model.named_parameters()) if self.lora is None else adapter_parameters(model)


def _transformer(model: Denoiser) -> Transformer:
    require(
        isinstance(model, Transformer),
        f"merging, compiling and sharding need a native transformer, not a {type(model).__name__}: set "
        "--adapter.no-merge, --compile off and --distributed.shard none",
    )
    assert isinstance(model, Transformer)
    return model


def _blank(model: Transformer) -> Transformer:
    """Return a frozen copy of a model, on the meta device."""
    memo = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
        for parameter in model.parameters()
    }
    return copy.deepcopy(model, memo).requires_grad_(False).eval()


def _frozen(model: Denoiser) -> Denoiser:
    return copy.deepcopy(model).requires_grad_(False).eval()
