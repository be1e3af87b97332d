"""From a baseline's settings to its two parts: the objective and the plan of its masks."""

from __future__ import annotations

from typing import assert_never

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
from dtm.masking import (
    ActiveBlock,
    FullMask,
    MaskPlan,
    Planned,
    Quadrature,
    RisingRatio,
    TraceSegments,
    UniformCount,
)
from dtm.methods import GDPO, SPG, VRPO, WD1, Baseline, DiffuGRPO, TraceRL, UniGRPO


def build_baseline(settings: BaselineConfig) -> Baseline:
    """The objective of these settings."""
    match settings:
        case DiffuGRPOConfig():
            return DiffuGRPO(settings)
        case WD1Config():
            return WD1(settings)
        case UniGRPOConfig():
            return UniGRPO(settings)
        case SPGConfig():
            return SPG(settings)
        case VRPOConfig():
            return VRPO(settings)
        case GDPOConfig():
            return GDPO(settings)
        case TraceRLConfig():
            return TraceRL(settings)
    assert_never(settings)


def build_plan(settings: BaselineConfig, block: int | None, end_id: int) -> Planned:
    """Where the objective looks at a completion; ``block`` is the decoder's, ``end_id`` the task's."""
    match settings:
        case DiffuGRPOConfig() | WD1Config():
            return Planned(FullMask(), end_id, settings.prompt_noise)
        case UniGRPOConfig():
            return Planned(RisingRatio(settings.updates), end_id)
        case SPGConfig():
            return Planned(_spg_masks(settings, block), end_id, settings.prompt_noise)
        case VRPOConfig():
            return Planned(UniformCount(settings.draws), end_id)
        case GDPOConfig():
            published = settings.preset == "published"
            return Planned(Quadrature(settings.nodes, published), None if published else end_id)
        case TraceRLConfig():
            return Planned(TraceSegments(settings.merged), end_id)
    assert_never(settings)


def _spg_masks(settings: SPGConfig, block: int | None) -> MaskPlan:
    """Without blocks in the decoder, SPG's block is the whole completion: a uniform number of positions."""
    if settings.masks == "all":
        return FullMask()
    if settings.masks == "random" or block is None:
        return UniformCount(settings.draws)
    return ActiveBlock(block, settings.draws, settings.scored, biased=settings.preset == "published")
