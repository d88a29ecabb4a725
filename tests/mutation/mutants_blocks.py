"""Planted breaks of rules 1 to 3: positions, blocks and the schedule."""

from mutant import Mutant, group

MUTANTS: list[Mutant] = [
    *group(
        "src/ref/attention_inputs.h",
        "test_semantics_schedule",
        [
            (
                "1 positions",
                "bottom-right ignored",
                "bottom_right ? s.seqlen_k - s.seqlen_q : 0",
                "0",
                "Positions.BottomRightIsTheDefaultWithCausal",
            ),
            (
                "1 positions",
                "top-left ignored",
                "problem_.causal && problem_.align == Align::kBottomRight",
                "problem_.causal",
                "Positions.TopLeftStartsAtZero",
            ),
            (
                "1 positions",
                "bottom-right without causal",
                "problem_.causal && problem_.align == Align::kBottomRight",
                "problem_.align == Align::kBottomRight",
                "Positions.WithoutCausalRowsStartAtZero",
            ),
            (
                "1 positions",
                "diagonal key dead",
                "problem_.causal && j > p",
                "problem_.causal && j >= p",
                "Positions.BottomRight*",
            ),
            (
                "1 positions",
                "window one key short",
                "p - j > problem_.window.left",
                "p - j >= problem_.window.left",
                "Positions.WindowIsMeasuredFromThePosition",
            ),
            (
                "1 positions",
                "window side 0 open",
                "problem_.window.right >= 0 &&",
                "problem_.window.right > 1 &&",
                "Positions.AWindowSideOfMinusOneIsOpen",
            ),
            (
                "1 positions",
                "mask ignored",
                "position_sees(s.first_position + i, j) && mask(s, head, i, j)",
                "position_sees(s.first_position + i, j)",
                "Positions.MaskRemovesFurtherPairs",
            ),
            (
                "2 blocks",
                "row block of 128",
                "kRowBlockPositions = 192",
                "kRowBlockPositions = 128",
                "Schedule.DiagonalIsJudgedOver192Positions",
            ),
        ],
    ),
    *group(
        "src/ref/attention_schedule.cc",
        "test_semantics_schedule",
        [
            (
                "2 half-blocks",
                "halves not closed under pairing",
                "const std::int64_t in_half = key_in_block < block / 2 ? "
                "key_in_block : key_in_block - block / 2;",
                "const std::int64_t in_half = key_in_block;",
                "Schedule.HalfBlocksAreClosedUnderPairing",
            ),
            (
                "3 ragged",
                "ragged block pruned",
                "plain = ragged || partly_live",
                "plain = partly_live",
                "Schedule.RaggedLastBlockIsPlain",
            ),
            (
                "3 partly live",
                "partly live block pruned",
                "ragged || partly_live || diagonal",
                "ragged || diagonal",
                "Schedule.WindowEdgeIsPlain",
            ),
            (
                "3 diagonal",
                "diagonal only by liveness",
                "diagonal || sink || local",
                "sink || local",
                "Schedule.DiagonalBlocksArePlainWithAWindowThatCoversThemWhole",
            ),
            (
                "3 192 positions",
                "liveness of the first position alone",
                "p < lowest + kRowBlockPositions; ++p",
                "p < lowest + 1; ++p",
                "Schedule.LivenessIsJudgedOver192Positions",
            ),
            (
                "3 sinks",
                "sinks are the first blocks, live or not",
                "live_blocks <= problem.sparsity.sink_blocks",
                "number < problem.sparsity.sink_blocks",
                "Schedule.SinksAreTheFirstLiveBlocks",
            ),
            (
                "3 local",
                "one local block short",
                "number >= lowest_diagonal - problem",
                "number > lowest_diagonal - problem",
                "Schedule.LocalBlocksLieBelowTheLowestDiagonalOne",
            ),
            (
                "3 local",
                "local blocks without causal or window",
                "const bool local = has_diagonal &&",
                "const bool local =",
                "Schedule.LocalBlocksNeedCausalOrWindow",
            ),
            (
                "3 nothing to prune",
                "dense blocks counted as pruned",
                "sink || local || nothing_to_prune",
                "sink || local",
                "Schedule.ADenseSparsityPrunesNothing",
            ),
            (
                "3 mask",
                "mask judged over all rows of the call",
                "if (p < lowest || p >= lowest + kRowBlockPositions) continue;",
                "if (p < 0) continue;",
                "Schedule.MaskIsJudgedOverTheRowsThatExist",
            ),
        ],
    ),
    *group(
        "src/ref/attention.cc",
        "test_semantics_schedule",
        [
            (
                "3 sinks",
                "sinks revive masked keys",
                "if (!inputs_.live(s_, head_, row.i, j)) continue;",
                "",
                "Schedule.SinksNeverReviveMaskedKeys",
            ),
        ],
    ),
    *group(
        "src/layout/schedule.h",
        "test_semantics_schedule",
        [
            (
                "3 arithmetic",
                "ragged block full",
                "std::max(out.full_begin, all.end / block)",
                "std::max(out.full_begin, ceil_div(all.end, block))",
                "Schedule.ArithmeticEqualsDefinition",
            ),
            (
                "3 arithmetic",
                "sinks from block 0",
                "out.sink_end = out.first + shape.sink_blocks",
                "out.sink_end = shape.sink_blocks",
                "Schedule.ArithmeticEqualsDefinition",
            ),
            (
                "3 arithmetic",
                "liveness of the lowest position alone",
                "const KeyRange any{low.begin, high.end};",
                "const KeyRange any{low.begin, low.end};",
                "Schedule.ArithmeticEqualsDefinition",
            ),
            (
                "3 arithmetic",
                "dense blocks pruned",
                "if (!shape.prunes)",
                "if (false)",
                "Schedule.ArithmeticEqualsDefinition",
            ),
        ],
    ),
    *group(
        "src/layout/pair_scores.h",
        "test_semantics_schedule",
        [
            (
                "2 half-blocks",
                "tile of two neighbouring quarters",
                "row / quarter * (block / 2)",
                "row / quarter * quarter",
                "Schedule.HalfBlocksAreClosedUnderPairing",
            ),
        ],
    ),
]
