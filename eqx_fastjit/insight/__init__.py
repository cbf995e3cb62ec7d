"""Why it compiled, recompiled or was slow. Not loaded by `import eqx_fastjit`."""

from ._breakdown import (
    Breakdown as Breakdown,
    breakdown as breakdown,
    NodeTime as NodeTime,
    Part as Part,
)
from ._captures import (
    Captures as Captures,
    captures as captures,
    Change as Change,
    changed as changed,
    Snapshot as Snapshot,
    snapshot as snapshot,
    watch as watch,
)
from ._jaxpr import (
    Buffer as Buffer,
    Constant as Constant,
    Donation as Donation,
    Inlined as Inlined,
    inspect_jaxpr as inspect_jaxpr,
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
