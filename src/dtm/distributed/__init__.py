"""Process groups: share rows and sum gradients over processes; only this package knows about ranks.

Other packages use the verbs of a `Group` (share, gather, together, by_first, accumulate) and never a rank.
With one process every verb is the identity, and nothing of torch.distributed is imported.
"""

from dtm.distributed.group import ALONE, Group, current, is_first_process, launched, was_shared
from dtm.distributed.reports import report_once

__all__ = ["ALONE", "Group", "current", "is_first_process", "launched", "report_once", "was_shared"]
