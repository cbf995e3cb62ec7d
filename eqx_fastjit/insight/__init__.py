"""Why functions compile, recompile or block, by leaf path and source line.

Imported on demand, never by `import eqx_fastjit`.
"""

from . import _surroundings as _surroundings  # remembers more for `captures`
from ._breakdown import (
    Breakdown as Breakdown,
    breakdown as breakdown,
    NodeTime as NodeTime,
)
from ._captures import (
    Captures as Captures,
    captures as captures,
    watch as watch,
)
from ._differences import Difference as Difference
from ._explain import (
    cache_info as cache_info,
    CacheInfo as CacheInfo,
    explain as explain,
    Explanation as Explanation,
    Explanations as Explanations,
    Ledger as Ledger,
    ledger as ledger,
    LedgerRow as LedgerRow,
    Signature as Signature,
)
from ._guard import (
    guard as guard,
    RetraceError as RetraceError,
    RetraceWarning as RetraceWarning,
)
from ._jaxpr import inspect_jaxpr as inspect_jaxpr
from ._jaxpr_report import (
    Buffer as Buffer,
    Constant as Constant,
    Donation as Donation,
    Inlined as Inlined,
    JaxprReport as JaxprReport,
    LineCount as LineCount,
    Memory as Memory,
    Residuals as Residuals,
    UnrolledLoop as UnrolledLoop,
)
from ._numerics import (
    compare_eager as compare_eager,
    Comparison as Comparison,
    LeafDifference as LeafDifference,
)
from ._profile import (
    Contender as Contender,
    Profile as Profile,
    profile as profile,
)
from ._snapshots import (
    Change as Change,
    changed as changed,
    Snapshot as Snapshot,
    snapshot as snapshot,
)
from ._warm_call import Part as Part, WarmCall as WarmCall
from ._warmup import warmup as warmup, warmup_all as warmup_all
