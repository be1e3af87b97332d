"""Cases of the benchmark of families: shapes, random models, prompts, and a clock for kernels."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity

from dtm.engine import Decoder, SampledConfidence
from dtm.models.adapters import LoRA
from dtm.models.policy import Policy
from dtm.models.routing import Experts
from dtm.models.shape import TransformerConfig
from dtm.models.storage import without_memory
from dtm.models.transformer import Transformer
from dtm.models.weights import place
from dtm.random import stream
from dtm.records import Prompts
from llada8b_profile import kind
from measuring import Bench

SDAR_8B = TransformerConfig(
    vocab_size=151_936, mask_id=151_669, eos_id=151_643, width=4096, layers=36, heads=32, kv_heads=8,
    head_width=128, ffn=12_288, rope_base=1e6, norm_eps=1e-6, qk_norm=True, block_origin="token",
    family="sdar",
)  # fmt: skip
LLADA2_MINI = TransformerConfig(
    vocab_size=157_184, mask_id=156_895, eos_id=156_892, width=2048, layers=20, heads=16, kv_heads=4,
    head_width=128, ffn=5120, rope_base=600_000.0, rope_width=64, norm_eps=1e-6, qk_norm=True, fused_qkv=True,
    block_origin="token", family="llada2",
    experts=Experts(
        count=256, active=8, width=512, layers=tuple(range(1, 20)), score="sigmoid", bias="choice", groups=8,
        kept_groups=4, scale=2.5, shared=512,
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A model, and the sizes it is measured with."""

    model: TransformerConfig
    block: int
    prompt: int = 172
    completion: int = 256
    batch: int = 128
    completions: int = 6
    """Of each prompt; they share the first pass."""
    rank: int = 128
    micro_batch: int = 12
    compared: int = 6
    """Rows that are decoded with and without the cache to compare."""
    measured: int = 96
    """Tokens of a completion whose decoding is timed, in whole blocks."""

    @property
    def shape(self) -> TransformerConfig:
        """The model with its blocks."""
        return replace(self.model, attention_block=self.block)

    @property
    def length(self) -> int:
        """Columns of a row: whole blocks."""
        return -(-(self.prompt + self.completion) // self.block) * self.block

    @property
    def lora(self) -> LoRA:
        """The adapters."""
        return LoRA(rank=self.rank)


CASES = {
    "sdar-8b-block-4": Case(model=SDAR_8B, block=4),
    "sdar-8b-block-32": Case(model=SDAR_8B, block=32),
    "llada2.0-mini": Case(model=LLADA2_MINI, block=32),
}


def in_miniature(case: Case) -> Case:
    """The same case with tiny sizes: every code path, in seconds on a CPU."""
    model, experts = case.model, case.model.experts
    if experts is not None:
        experts = replace(experts, count=16, active=2, width=16, layers=(1,), shared=16)
    small = replace(
        model, vocab_size=99, mask_id=98, eos_id=1, width=32, layers=2, heads=4, kv_heads=2, head_width=8,
        ffn=48, rope_width=None if model.rope_width is None else 4, experts=experts,
    )  # fmt: skip
    sizes = {"prompt": 9, "completion": 16, "batch": 6, "completions": 2, "rank": 4, "micro_batch": 2}
    return replace(case, model=small, block=min(case.block, 8), compared=4, **sizes)


@dataclass
class Rig(Bench):
    """A bench, and the results of each case."""

    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    made: tuple[TransformerConfig, Policy] | None = None
    """The policy in memory, and its model."""

    def add(self, name: str, **values: Any) -> None:
        """Keep the results of a case, and say them."""
        self.cases.setdefault(name, {}).update(values)
        self.keep(cases=self.cases)
        shown = {key: f"{value:.4g}" for key, value in values.items() if isinstance(value, int | float)}
        self.say(f"{name}: " + ", ".join(f"{key} {value}" for key, value in shown.items()))


# ── models ───────────────────────────────────────────────────────────────────────────────────────


def random_model(bench: Rig, shape: TransformerConfig, dtype: torch.dtype | None = None) -> Transformer:
    """Weights of deviation 0.02, made tensor by tensor on the device; routers too, so that tokens spread."""
    model, noise = without_memory(shape), stream(0, "weights", device=bench.device)
    dtype = dtype or bench.dtype
    for name, value in list(model.named_parameters()):
        made = torch.ones(value.shape, device=bench.device, dtype=dtype)
        if made.dim() > 1:
            made.normal_(0.0, 0.02, generator=noise)
        elif name.endswith("bias"):
            made.zero_()
        place(model, name, made, dtype, bench.device)
    return model


def policy_of(bench: Rig, case: Case) -> Policy:
    """Student and a merged π_a over one random base, which cases of one model share."""
    if bench.made is None or bench.made[0] != case.model:
        bench.made = None
        bench.empty()
        adapters = stream(0, "adapters", device=bench.device)
        policy = Policy(random_model(bench, case.shape), lora=case.lora, merge=True, generator=adapters)
        for model in (policy.student, policy.teacher):
            model.to(bench.device)
        if bench.on_gpu:
            policy.compile()
        bench.made = case.model, policy
    policy = bench.made[1]
    for model in (policy.student, policy.teacher, policy.pi_a()):
        model.attention_block = case.block
    bench.empty()
    return policy


# ── what cases share ─────────────────────────────────────────────────────────────────────────────


def make_prompts(bench: Rig, case: Case) -> Prompts:
    """Random prompts, enough for a batch of completions."""
    noise, count = stream(0, "prompts", device=bench.device), -(-case.batch // case.completions)
    tokens = torch.randint(2, 90, (count, case.prompt), generator=noise, device=bench.device)
    return Prompts(tokens, torch.ones_like(tokens, dtype=torch.bool), [None] * count)


def decoder_of(case: Case, cache: Literal["prefix", "none"] = "prefix") -> Decoder:
    """Two tokens per step."""
    return Decoder(
        order=SampledConfidence(), block=case.block, tokens_per_step=min(2, case.block), cache=cache
    )


class Kernels:
    """Seconds of the device's kernels by kind, and of the wall clock, between a start and a stop."""

    def __init__(self, bench: Rig) -> None:
        self._bench = bench
        self._profile: torch.profiler.profile | None = None
        self._began = 0.0

    def start(self) -> None:
        """Begin to watch."""
        if self._bench.on_gpu:
            self._profile = torch.profiler.profile(activities=[ProfilerActivity.CUDA])
            self._profile.start()
            self._bench.wait()
            self._began = time.perf_counter()

    def stop(self) -> dict[str, float] | None:
        """Return the seconds of each kind; None on a CPU."""
        if self._profile is None:
            return None
        self._bench.wait()
        wall = time.perf_counter() - self._began
        self._profile.stop()
        found: dict[str, float] = {"wall": wall}
        for event in self._profile.key_averages():
            of = "cache writes" if "index_put" in event.key else kind(event.key)
            found[of] = found.get(of, 0.0) + event.self_device_time_total / 1e6
        return found
