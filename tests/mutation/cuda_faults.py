"""Faults planted in the Hopper kernel: barriers, fences, waits, rings, and numbers for comparison.

Every fault replaces strings in sources that the kernel is compiled from. Races need time to show,
so most faults come with a delay that leaves a correct kernel correct; each delay is also a control
of its own, which must pass.
"""

from dataclasses import dataclass

SM90 = "src/cuda/sm90/"


@dataclass(frozen=True)
class Edit:
    """`old` occurs exactly once in `file` and becomes `new`."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    name: str
    what: str
    edits: tuple[Edit, ...]
    mode: str = "dual"
    # "noticed": a test must see it (a wrong result, an error or a hang). "passes": a control.
    # "maybe": wrong by the rules, but what the hardware does need not show it; `why` says more.
    expect: str = "noticed"
    why: str = ""


def sm90(file: str, old: str, new: str) -> Edit:
    return Edit(SM90 + file, old, new)


WAIT_KEY = "ptx::mbarrier_wait(shared + S::key_full(key_ring.stage), key_ring.parity);"
WAIT_VALUE = "ptx::mbarrier_wait(shared + S::value_full(value_ring.stage), value_ring.parity);"
RELEASE_KEY = (
    "if (warp == 0 && lane == 0) ptx::mbarrier_arrive(shared + S::key_empty(key_ring.stage));"
)
KEY_EMPTY = "ptx::mbarrier_wait(shared + S::key_empty(ring.stage), ring.parity ^ 1);"
VALUE_EMPTY = "ptx::mbarrier_wait(shared + S::value_empty(ring.stage), ring.parity ^ 1);"
LOADED = "uint4 q[kPasses];"
CLEAR_LOOP = "for (int i = threadIdx.x % (128 * kWarpgroups); i < c.tile * kChunks;"
READ_O = "    __syncwarp();\n    constexpr int kChunks = c.head_dim / 8;\n"
START_BARRIER = "ptx::named_barrier_sync(kBarrierWarpgroup + warpgroup, 128);\n    row = 64"
CLEAR_END = (
    "    ptx::fence_proxy_async();\n"
    "    ptx::named_barrier_sync(kBarrierConsumers, 128 * kWarpgroups);\n"
)
RUN_FENCE = f"    ptx::fence_proxy_async();\n    {START_BARRIER}"


def sleep(condition: str, nanoseconds: int) -> str:
    return f"if ({condition}) __nanosleep({nanoseconds}); "


SLOW_KEYS = sm90("products.h", WAIT_KEY, WAIT_KEY + sleep("warpgroup == 2", 3000))
SLOW_VALUES = sm90("products.h", WAIT_VALUE, WAIT_VALUE + sleep("warpgroup == 2", 3000))
SLOW_QUERY = sm90("query.h", LOADED, sleep("warp == 3", 20000) + LOADED)
SLOW_CLEAR = sm90("row_block.h", CLEAR_LOOP, sleep("warpgroup == 1", 20000) + CLEAR_LOOP)
SLOW_MAP = sm90("producer.h", KEY_EMPTY, KEY_EMPTY + "__nanosleep(2000);")

CONTROLS = [
    Fault("control", "nothing", (), expect="passes"),
    Fault("control-refined", "nothing, units that decide", (), "refined", "passes"),
    Fault("control-int8", "nothing, int8 product", (), "int8", "passes"),
    Fault("control-slow-keys", "delay before a key product", (SLOW_KEYS,), expect="passes"),
    Fault("control-slow-values", "delay before a value product", (SLOW_VALUES,), expect="passes"),
    Fault("control-slow-query", "delay of a loading warp", (SLOW_QUERY,), expect="passes"),
    Fault("control-slow-clear", "delay of a clearing warpgroup", (SLOW_CLEAR,), expect="passes"),
    Fault("control-slow-producer", "delay of the key producer", (SLOW_MAP,), expect="passes"),
]

BARRIERS = [
    Fault(
        "no-key-wait",
        "consumers do not wait for a key tile",
        (
            sm90("products.h", WAIT_KEY, ""),
            SLOW_MAP,
        ),
    ),
    Fault(
        "no-value-wait",
        "consumers do not wait for a value tile",
        (
            sm90("products.h", WAIT_VALUE, ""),
            sm90("producer.h", VALUE_EMPTY, VALUE_EMPTY + "__nanosleep(2000);"),
        ),
    ),
    Fault(
        "no-key-empty-wait",
        "the producer overwrites key tiles that are in use",
        (sm90("producer.h", KEY_EMPTY, ""),),
    ),
    Fault(
        "no-value-empty-wait",
        "the producer overwrites value tiles that are in use",
        (sm90("producer.h", VALUE_EMPTY, ""),),
    ),
    Fault(
        "key-empty-count",
        "a key tile is free when two of three warpgroups have released it",
        (
            sm90(
                "attention.cuh",
                "S::key_empty(stage), kWarpgroups)",
                "S::key_empty(stage), kWarpgroups - 1)",
            ),
            SLOW_KEYS,
        ),
    ),
    Fault(
        "value-empty-count",
        "a value tile is free when two of three warpgroups have released it",
        (
            sm90(
                "attention.cuh",
                "S::value_empty(stage), kWarpgroups)",
                "S::value_empty(stage), kWarpgroups - 1)",
            ),
            SLOW_VALUES,
        ),
    ),
    Fault(
        "item-empty-count-low",
        "an item slot is free one warp early",
        (sm90("attention.cuh", "4 * kWarpgroups + 2)", "4 * kWarpgroups + 1)"),),
    ),
    Fault(
        "item-empty-count-high",
        "an item slot waits for one warp too many",
        (sm90("attention.cuh", "4 * kWarpgroups + 2)", "4 * kWarpgroups + 3)"),),
    ),
    Fault(
        "no-item-empty-wait",
        "items are handed out into slots that are in use",
        (
            sm90(
                "producer.h",
                "ptx::mbarrier_wait(shared + S::item_empty(ring.stage), ring.parity ^ 1);",
                "",
            ),
        ),
    ),
    Fault(
        "ring-parity",
        "the parity of a ring does not flip at its wrap",
        (sm90("shared.h", "parity ^= 1;", ""),),
    ),
    Fault(
        "half-the-bytes",
        "the barrier of a key tile opens after half of its bytes",
        (
            sm90(
                "producer.h",
                "ptx::mbarrier_arrive_expect_tx(full, S::Key::kTileBytes);",
                "ptx::mbarrier_arrive_expect_tx(full, S::Key::kTileBytes / 2);",
            ),
        ),
    ),
    Fault(
        "early-key-release",
        "a key tile is released before its product is issued",
        (
            sm90(
                "products.h",
                WAIT_KEY,
                WAIT_KEY + RELEASE_KEY + sleep("warpgroup == 2", 3000),
            ),
            sm90(
                "products.h",
                RELEASE_KEY + "\n    key_ring.next();",
                "key_ring.next();",
            ),
        ),
    ),
    Fault(
        "no-barrier-after-init",
        "warps use barriers that are not initialised yet",
        (
            sm90(
                "attention.cuh",
                "    ptx::fence_barrier_init();\n  }\n  __syncthreads();",
                "    ptx::fence_barrier_init();\n  }\n",
            ),
            sm90(
                "attention.cuh",
                "if (threadIdx.x == 0) {",
                "if (threadIdx.x == 0) { __nanosleep(20000);",
            ),
        ),
    ),
    Fault(
        "no-dead-value-barrier",
        "a warpgroup multiplies before the others have cleared dead values",
        (
            sm90("row_block.h", CLEAR_END, "    ptx::fence_proxy_async();\n"),
            SLOW_CLEAR,
        ),
    ),
    Fault(
        "no-query-barrier",
        "a warpgroup starts before all its warps have loaded their queries",
        (sm90("row_block.h", START_BARRIER, "row = 64"), SLOW_QUERY),
        expect="maybe",
        why="a warp's quarter of a product reads the 16 rows that the same warp has written",
    ),
    Fault(
        "unit-decided-by-warp",
        "each warp decides about a unit for itself",
        (
            sm90(
                "row_block.h",
                "return ptx::named_barrier_any(kBarrierWarpgroup + warpgroup, 128, any);",
                "return __any_sync(~0u, any);",
            ),
        ),
        mode="refined",
    ),
]

FENCES = [
    Fault(
        "no-query-fence",
        "queries reach the async proxy without a fence",
        (sm90("row_block.h", RUN_FENCE, f"    {START_BARRIER}"),),
        expect="maybe",
        why="the barrier after it leaves the stores time to land",
    ),
    Fault(
        "no-dead-value-fence",
        "cleared values reach the async proxy without a fence",
        (
            sm90(
                "row_block.h",
                CLEAR_END,
                "    ptx::named_barrier_sync(kBarrierConsumers, 128 * kWarpgroups);\n",
            ),
        ),
        expect="maybe",
        why="the barrier after it leaves the stores time to land",
    ),
    Fault(
        "no-wgmma-fence",
        "products are issued without wgmma.fence",
        (
            Edit(
                "src/cuda/ptx/wgmma.h",
                'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");',
                'asm volatile("" ::: "memory");',
            ),
        ),
        expect="maybe",
        why="ptxas orders registers by itself where it sees the missing fence",
    ),
    Fault(
        "no-barrier-init-fence",
        "initialised barriers reach the async proxy without a fence",
        (sm90("attention.cuh", "    ptx::fence_barrier_init();\n", ""),),
        expect="maybe",
        why="__syncthreads follows, and the first TMA comes long after",
    ),
    Fault(
        "no-output-syncwarp",
        "a warp reads its output tile back without __syncwarp",
        (sm90("row_block.h", READ_O, "    constexpr int kChunks = c.head_dim / 8;\n"),),
        expect="maybe",
        why="nothing lets the lanes of a warp drift apart between the stores and the loads",
    ),
]

# A missing wait is undone by the compiler, which says so.
SERIALISED = "ptxas serialises the products and warns, which ./dev check ptxas refuses"
WAITS = [
    Fault(
        "no-wait-for-scores",
        "scores are read while their product runs (plain)",
        (
            sm90(
                "row_block.h",
                "issue_full_scores(s);\n        this->pass_turn();\n        ptx::wgmma_wait<0>();",
                "issue_full_scores(s);\n        this->pass_turn();\n        ptx::wgmma_wait<1>();",
            ),
            sm90(
                "row_block.h",
                "full_scores(all);\n        this->pass_turn();\n        ptx::wgmma_wait<0>();",
                "full_scores(all);\n        this->pass_turn();\n        ptx::wgmma_wait<1>();",
            ),
            sm90(
                "row_block.h",
                "ptx::wgmma_wait<1>();\n          if (at.is_last())",
                "ptx::wgmma_wait<2>();\n          if (at.is_last())",
            ),
        ),
        expect="maybe",
        why=SERIALISED,
    ),
    Fault(
        "waits-for-one-too-few",
        "scores are read while their product runs (every wait<1>)",
        (
            Edit(
                "src/cuda/ptx/wgmma.h",
                'asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");',
                'asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(2 * kPending) : "memory");',
            ),
        ),
        expect="maybe",
        why=SERIALISED,
    ),
    Fault(
        "never-waits",
        "no product is waited for",
        (
            Edit(
                "src/cuda/ptx/wgmma.h",
                'asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");',
                'asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(7) : "memory");',
            ),
        ),
        expect="maybe",
        why=SERIALISED,
    ),
]

NUMBERS = [
    Fault(
        "mask-off-by-one",
        "one key beyond the last live one is seen",
        (
            sm90(
                "row_block.h",
                "x[i] = j >= begin[h] && j < end[h] ?",
                "x[i] = j >= begin[h] && j <= end[h] ?",
            ),
        ),
    ),
    Fault(
        "sum-not-rescaled",
        "the reference rises without the sum of the row",
        (sm90("softmax.h", "    l[row] *= shift;\n", ""),),
    ),
    Fault(
        "output-not-rescaled",
        "the reference rises without half of the output",
        (sm90("softmax.h", "      o[i + 2 * row + 1] *= shift;\n", ""),),
    ),
    Fault(
        "no-overflow-test",
        "the reference never rises in fast steps",
        (
            sm90(
                "softmax.h",
                "return !(sum[0] < kLargestSum) || !(sum[1] < kLargestSum);",
                "return false;",
            ),
        ),
    ),
    Fault(
        "metadata-words-swapped",
        "the two metadata words of a step change places",
        (
            sm90(
                "products.h",
                "Tile::word_of_step(kStep) == 0 ? metadata.lo : metadata.hi",
                "Tile::word_of_step(kStep) == 0 ? metadata.hi : metadata.lo",
            ),
        ),
    ),
    Fault(
        "query-metadata-word",
        "every product of the pruned query uses the first metadata word",
        (
            sm90(
                "query.h",
                "S::kMetadata + warpgroup * S::kMetadataBytes, warp, lane, w);",
                "S::kMetadata + warpgroup * S::kMetadataBytes, warp, lane, 0 * w);",
            ),
        ),
    ),
    Fault(
        "dead-values-stay",
        "values of keys that no row sees are multiplied by zero",
        (sm90("row_block.h", CLEAR_LOOP, CLEAR_LOOP.replace("i < c.tile", "i < 0 * c.tile")),),
    ),
    Fault(
        "row-scale-of-other-row",
        "row g + 8 takes the int8 scale of row g",
        (
            sm90(
                "row_block.h",
                "reinterpret_cast<const float*>(memory + S::kRowScale)[row + 8 * h]",
                "reinterpret_cast<const float*>(memory + S::kRowScale)[row]",
            ),
        ),
        mode="int8",
    ),
    Fault(
        "refined-with-the-kept-half",
        "a refined unit keeps its estimate",
        (
            sm90(
                "row_block.h",
                "++refined;\n        this->issue_full_scores(s);",
                "++refined;\n        this->issue_pruned_scores(s);",
            ),
        ),
        mode="refined",
    ),
]

FAULTS = [*CONTROLS, *BARRIERS, *FENCES, *WAITS, *NUMBERS]
