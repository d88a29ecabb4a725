"""The planted breaks: one or more for every rule of docs/semantics.md, with the test of each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`old`, which occurs exactly once in `file`, becomes `new`; then `tests` must fail."""

    rule: str
    name: str
    file: str
    old: str
    new: str
    binary: str
    tests: str  # a GoogleTest filter


def _group(file: str, binary: str, rows: list[tuple[str, str, str, str, str]]) -> list[Mutant]:
    return [
        Mutant(rule, name, file, old, new, binary, tests) for rule, name, old, new, tests in rows
    ]


_PLAIN_THEN_PRUNED = """\
    for (std::size_t block = 0; block < kinds.size(); ++block) {
      if (kinds[block] == Block::kPlain) {
        for (Row& row : rows) run_plain(row, static_cast<std::int64_t>(block));
      }
    }
    for (std::size_t block = 0; block < kinds.size(); ++block) {
      if (kinds[block] != Block::kPruned) continue;
"""
_ASCENDING = """\
    for (std::size_t block = 0; block < kinds.size(); ++block) {
      if (kinds[block] == Block::kPlain) {
        for (Row& row : rows) run_plain(row, static_cast<std::int64_t>(block));
      }
      if (kinds[block] != Block::kPruned) continue;
"""
_DROP_FIRST = """\
  if (sparsity.drop && all_below(*sparsity.drop)) return UnitDecision::kDropped;
  if (sparsity.refine && !all_below(*sparsity.refine)) return UnitDecision::kRefined;
"""
_REFINE_FIRST = """\
  if (sparsity.refine && !all_below(*sparsity.refine)) return UnitDecision::kRefined;
  if (sparsity.drop && all_below(*sparsity.drop)) return UnitDecision::kDropped;
"""

MUTANTS: list[Mutant] = [
    *_group(
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
    *_group(
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
                "3 mask",
                "mask judged over all rows of the call",
                "if (p < lowest || p >= lowest + kRowBlockPositions) continue;",
                "if (p < 0) continue;",
                "Schedule.MaskIsJudgedOverTheRowsThatExist",
            ),
        ],
    ),
    *_group(
        "src/ref/attention_pattern.cc",
        "test_semantics_pattern",
        [
            (
                "4 ties",
                "ties keep the higher key",
                "(equal && other < i)",
                "(equal && other > i)",
                "Pattern.TiesKeepTheLowerKey",
            ),
            (
                "4 pair",
                "pairs of neighbours",
                "{{j, j + block / 2}, 1}",
                "{{2 * j, 2 * j + 1}, 1}",
                "Pattern.PairKeepsTheLargerOfTwoHalves",
            ),
            (
                "4 strided",
                "three of four kept",
                "j + 3 * block / 4}, 2}",
                "j + 3 * block / 4}, 3}",
                "Pattern.Nm24StridedKeepsTwoOfFourQuarters",
            ),
            (
                "4 adjacent",
                "one of four kept",
                "{{j, j + 1, j + 2, j + 3}, 2}",
                "{{j, j + 1, j + 2, j + 3}, 1}",
                "Pattern.Nm24AdjacentKeepsTwoOfFourNeighbours",
            ),
        ],
    ),
    *_group(
        "src/ref/attention_pattern.h",
        "test_semantics_pattern",
        [
            (
                "4 NaN",
                "NaN counts as smallest",
                "if (std::isnan(a)) return !std::isnan(b);",
                "if (std::isnan(b)) return !std::isnan(a);",
                "Pattern.NaNCountsAsLargest",
            ),
            (
                "4 zeros",
                "-0 below +0",
                "return a > b;",
                "return a > b || (a == b && std::signbit(b) && !std::signbit(a));",
                "Pattern.MinusZeroEqualsZero",
            ),
        ],
    ),
    *_group(
        "src/ref/attention_operands.cc",
        "test_semantics_product",
        [
            (
                "5 nm24",
                "three channels of four",
                "keep_largest(size, 2)",
                "keep_largest(size, 3)",
                "PrunedQuery.KeepsTwoOfFourByMagnitude",
            ),
            (
                "5 nm24",
                "sign not ignored",
                "std::fabs(static_cast<float>(q[d]))",
                "static_cast<float>(q[d])",
                "PrunedQuery.KeepsTwoOfFourByMagnitude",
            ),
            (
                "5 nm24",
                "weights ignored",
                "(w ? w[d] : 1.0f) *",
                "",
                "PrunedQuery.WeightsEnterTheComparison",
            ),
            (
                "5 transform",
                "T transposed",
                "sum = std::fma(x[d], t[d * dim + e], sum);",
                "sum = std::fma(x[d], t[e * dim + d], sum);",
                "PrunedQuery.TransformChangesTheBasisOfBoth",
            ),
            (
                "5 transform",
                "T of head 0 for all",
                "transform->t_q + kv_head * dim * dim",
                "transform->t_q",
                "PrunedQuery.TransformIsTakenPerKvHead",
            ),
            (
                "5 transform",
                "q' not rounded to the dtype",
                "value[e] = round_to(dtype, sum);",
                "value[e] = sum;",
                "PrunedQuery.ProductsRoundToTheInputDtypeBeforeTheScale",
            ),
            (
                "5 int8",
                "query codes round half away",
                "std::clamp(std::nearbyint(quotient), -127.0, 127.0) : 0.0",
                "std::clamp(std::round(quotient), -127.0, 127.0) : 0.0",
                "Int8.QueryCodesRoundHalfToEven",
            ),
            (
                "5 int8",
                "query scale of 0 kept",
                "if (scale == 0) scale = 1;",
                "",
                "Int8.ScaleOfZeroBecomesOne",
            ),
            (
                "5 int8",
                "non-finite query row quantised",
                "if (!finite) scale = std::numeric_limits<float>::quiet_NaN();",
                "",
                "Int8.ANonFiniteQueryRowIsNaNAndNoOther",
            ),
        ],
    ),
    *_group(
        "src/ref/attention_operands.cc",
        "test_semantics_pattern",
        [
            (
                "4 scaled scores",
                "sign of the scale lost",
                "score.value = unit * sums.dot;",
                "score.value = std::fabs(unit) * sums.dot;",
                "Pattern.ComparesScaledScores",
            ),
        ],
    ),
    *_group(
        "src/ref/attention_prepare.cc",
        "test_semantics_product",
        [
            (
                "5 int8",
                "K not centred",
                "(inputs.k(s, j, kv_head, d) - mean[d]) / scale",
                "inputs.k(s, j, kv_head, d) / scale",
                "Int8.TheLseGetsTheMeanBack",
            ),
            (
                "5 int8",
                "mean over dead keys too",
                "if (!live[j] || !finite[j]) continue;",
                "if (!finite[j]) continue;",
                "Int8.MeanIsOverFiniteLiveKeys",
            ),
            (
                "5 int8",
                "mean over non-finite keys too",
                "if (!live[j] || !finite[j]) continue;",
                "if (!live[j]) continue;",
                "Int8.MeanIsOverFiniteLiveKeys",
            ),
            (
                "5 int8",
                "scale of 0 kept",
                "if (scale == 0) scale = 1;",
                "",
                "Int8.ScaleOfZeroBecomesOne",
            ),
            (
                "5 int8",
                "codes round half away",
                "std::nearbyint(quotient)",
                "std::round(quotient)",
                "Int8.CodesRoundHalfToEven",
            ),
            (
                "5 int8",
                "dead keys get codes",
                "if (!live[j] || poisoned) continue;",
                "if (poisoned) continue;",
                "Int8.KeysDeadForEveryRowHaveCodeZero",
            ),
            (
                "5 int8",
                "dead keys enter the scale",
                "      if (!live[j]) continue;\n",
                "",
                "Int8.KeysDeadForEveryRowHaveCodeZero",
            ),
            (
                "5 int8",
                "a non-finite key left out quietly",
                "poisoned |= !finite[j];",
                "",
                "Int8.ANonFiniteLiveKeyMakesItsBlocksScaleNaN",
            ),
            (
                "5 int8",
                "liveness of the first head of the group alone",
                "head < (kv_head + 1) * group",
                "head < kv_head * group + 1",
                "Int8.AKeyIsLiveWhenSomeRowOfSomeHeadOfTheGroupSeesIt",
            ),
        ],
    ),
    *_group(
        "src/ref/attention_softmax.cc",
        "test_semantics_product",
        [
            (
                "5 int8",
                "LSE without the mean",
                "row.lse = max + std::log(sum) + query.lse_shift;",
                "row.lse = max + std::log(sum);",
                "Int8.TheLseGetsTheMeanBack",
            ),
        ],
    ),
    *_group(
        "src/ref/attention_softmax.cc",
        "test_semantics_rows",
        [
            (
                "9 no keys",
                "LSE of 0 for rows without keys",
                "std::vector<double>(dim), -kInfinity, 0}",
                "std::vector<double>(dim), 0, 0}",
                "Rows.WithoutLiveKeysGiveZeroAndMinusInfinity",
            ),
        ],
    ),
    *_group(
        "src/ref/attention.cc",
        "test_semantics_product",
        [
            (
                "5 nm24",
                "plain blocks prune the query",
                "score_of(inputs_, row.query, keys_, j, false)",
                "score_of(inputs_, row.query, keys_, j, sparsity_.qk == QKProduct::kNm24)",
                "PrunedQuery.IsUsedInPrunedBlocksOnly",
            ),
            (
                "5 int8",
                "the prepared K ignored",
                "prepared = options.prepared ? options.prepared : args.prepared_k;",
                "prepared = nullptr;",
                "Int8.ThePreparedKIsTakenAsItIs",
            ),
        ],
    ),
    *_group(
        "src/ref/attention.cc",
        "test_semantics_pattern",
        [
            (
                "4 normaliser",
                "LSE over pruned scores too",
                "if (kept[n]) keep(row, keys[n]);",
                "row.kept.push_back(keys[n]);\n"
                "        if (kept[n]) out_->decisions.keep(head_, row.number, keys[n]);",
                "Pattern.LseIsOverWhatIsKept",
            ),
        ],
    ),
    *_group(
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
    *_group(
        "src/ref/attention.cc",
        "test_semantics_order",
        [
            (
                "2 units",
                "units aligned by row, not position",
                "row.position = position;",
                "row.position = i;",
                "Drop.UnitsAreAlignedByPosition",
            ),
            (
                "6 order",
                "plain blocks in their place",
                _PLAIN_THEN_PRUNED,
                _ASCENDING,
                "Order.PlainBlocksComeFirst",
            ),
            (
                "6 order",
                "half-blocks in descending order",
                "for (int half : {0, 1}) {",
                "for (int half : {1, 0}) {",
                "Order.UnitsFollowInAscendingOrder",
            ),
            (
                "6 order",
                "m without plain blocks",
                "row.m.cover(row.scores[j]);",
                "",
                "Order.PlainBlocksComeFirst",
            ),
            (
                "7 refine",
                "m keeps the estimate",
                "unit[n]->m.cover(refined ? compute(*unit[n], keys, false) : votes[n].unit);",
                "if (refined) compute(*unit[n], keys, false);\n"
                "      unit[n]->m.cover(votes[n].unit);",
                "Refine.TheMaximumTakesTheRecomputedScores",
            ),
            (
                "7 refine",
                "recomputed with the pruned query",
                "compute(*unit[n], keys, false)",
                "compute(*unit[n], keys, true)",
                "Refine.AUnitNearTheMaximumIsRecomputedWithAllChannels",
            ),
            (
                "8 drop",
                "dropped units contribute",
                "keep_largest(values, dropped ? 0 : group.keep)",
                "keep_largest(values, group.keep)",
                "Drop.ADroppedUnitContributesNothing",
            ),
            (
                "8 drop",
                "drop judges the exact scores",
                "compute(*row, keys, pruned_query)",
                "compute(*row, keys, false)",
                "Drop.JudgesTheEstimate",
            ),
        ],
    ),
    *_group(
        "src/ref/attention.cc",
        "test_semantics_rows",
        [
            (
                "layouts",
                "query heads share KV heads in turn",
                "kv_head_(head / inputs.queries_per_kv_head())",
                "kv_head_(head % inputs.problem().heads_kv)",
                "Layouts.QueryHeadsShareKvHeadsInRuns",
            ),
            (
                "9 non-finite",
                "dead keys taint",
                "      if (!live) continue;\n",
                "",
                "Rows.KeysDeadForAWholeRowBlockNeverMatter",
            ),
            (
                "9 non-finite",
                "taint stops at the key in int8",
                "(!keys_.scale.empty() && !std::isfinite(keys_.scale[block]))",
                "false",
                "Rows.ANonFiniteLiveKeyTakesItsWholeBlockInInt8",
            ),
        ],
    ),
    *_group(
        "src/ref/attention_inputs.h",
        "test_semantics_order",
        [
            (
                "2 units",
                "units of 32 positions",
                "kUnitPositions = 64",
                "kUnitPositions = 32",
                "Drop.RowsOfAnotherUnitAreNotAsked",
            ),
        ],
    ),
    *_group(
        "src/ref/attention_inputs.h",
        "test_semantics_rows",
        [
            (
                "layouts",
                "packed keys start where the queries do",
                "s.first_key = args_.cu_seqlens_k[b];",
                "s.first_key = args_.cu_seqlens_q[b];",
                "Layouts.PackedSequencesAreThoseOfABatch",
            ),
            (
                "layouts",
                "scale of 1/D",
                "1.0 / std::sqrt(static_cast<double>(problem_.head_dim))",
                "1.0 / static_cast<double>(problem_.head_dim)",
                "Layouts.TheScaleDefaultsToOneOverRootD",
            ),
        ],
    ),
    *_group(
        "src/ref/attention_decide.cc",
        "test_semantics_order",
        [
            (
                "7, 8 thresholds",
                "the threshold itself is below",
                "return vote.unit.value < vote.m.value - nats;",
                "return vote.unit.value <= vote.m.value - nats;",
                "Drop.IsStrict:Refine.TheThresholdItselfRefines",
            ),
            (
                "7, 8 NaN",
                "NaN is below",
                "return vote.unit.value < vote.m.value - nats;",
                "return !(vote.unit.value >= vote.m.value - nats);",
                "Drop.NaNNeverDrops:Refine.NaNRefines",
            ),
            (
                "7, 8 NaN",
                "m forgets a NaN",
                "if (std::isnan(a) || std::isnan(b)) return kNaN;",
                "if (std::isnan(b)) return a;",
                "Drop.NaNNeverDrops",
            ),
            (
                "8 drop",
                "one row is enough to drop",
                "return std::all_of(votes.begin()",
                "return std::any_of(votes.begin()",
                "Drop.EveryRowMustBeBelow",
            ),
            (
                "8 drop",
                "refine tested first",
                _DROP_FIRST,
                _REFINE_FIRST,
                "Drop.IsTestedBeforeRefine",
            ),
        ],
    ),
    *_group(
        "src/ref/attention_decide.cc",
        "test_reference",
        [
            (
                "near ties",
                "any choice of keys admissible",
                "if (difference <= bound) {",
                "if (true) {",
                "Replay.AFlippedPairIsNoticed",
            ),
            (
                "near ties",
                "any drop admissible",
                "if (!(most < 1)) return",
                "if (false) return",
                "Replay.AUnitWronglyDroppedIsNoticed",
            ),
            (
                "near ties",
                "any refinement admissible",
                "if (most < -1) return",
                "if (false) return",
                "Replay.AUnitWronglyRefinedIsNoticed",
            ),
        ],
    ),
    *_group(
        "src/ref/attention_operands.cc",
        "test_reference",
        [
            (
                "near ties",
                "bound a hundred times too wide",
                "double roundings = 2 * static_cast",
                "double roundings = 200 * static_cast",
                "NearTies.*",
            ),
            (
                "near ties",
                "no bound at all",
                "double roundings = 2 * static_cast",
                "double roundings = 0 * static_cast",
                "NearTies.*",
            ),
        ],
    ),
    *_group(
        "src/ref/everything_pruned.cc",
        "test_reference",
        [
            (
                "everything pruned",
                "pruned before masking",
                "if (!inputs.live(s, head, i, j)) continue;",
                "",
                "EverythingPruned.*",
            ),
        ],
    ),
    *_group(
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
                "2 half-blocks",
                "halves by quarter parity",
                "(key_in_block % (block / 2)) / (block / 4) != 0",
                "key_in_block / (block / 2) != 0",
                "Schedule.HalfBlocksAreClosedUnderPairing",
            ),
        ],
    ),
    *_group(
        "src/cpu/select.h",
        "test_reference_guarantees",
        [
            (
                "4 ties (CPU)",
                "ties keep the higher key",
                "return !(higher <= lower) && lower == lower;",
                "return !(higher < lower) && lower == lower;",
                "*TiesFallAsTheRulesSay/attention_cpu_exact_nm24_strided",
            ),
        ],
    ),
    *_group(
        "src/cpu/attend.cc",
        "test_reference_kernels",
        [
            (
                "6 order (CPU)",
                "pruned blocks first",
                "{BlockKind::kPlain, BlockKind::kPruned}",
                "{BlockKind::kPruned, BlockKind::kPlain}",
                "*RefinesDropsAndPrunes/attention_cpu_nm24_pair",
            ),
            (
                "7 refine (CPU)",
                "only half of the unit recomputed",
                "      full_scores(kb, half, begin, end);\n"
                "      full_scores(kb, half + 2, begin, end);\n    }\n",
                "      full_scores(kb, half, begin, end);\n    }\n",
                "*RefinesDropsAndPrunes/attention_cpu_nm24_pair",
            ),
            (
                "8 drop (CPU)",
                "refine's threshold used for drop",
                "!reaches(*sparsity.drop)",
                "!reaches(0.5f * *sparsity.drop)",
                "*RefinesDropsAndPrunes/attention_cpu_exact_pair",
            ),
            (
                "5 int8 (CPU)",
                "LSE without the mean",
                "+ scratch_.lse_shift[r]",
                "",
                "*ErrorsAreOfTheSizeOfFp32Rounding/attention_cpu_int8_pair",
            ),
            (
                "9 no keys (CPU)",
                "NaN for rows without keys",
                "const bool empty = scratch_.m[r] == -kInfinity && sum == 0;",
                "const bool empty = false;",
                "*CausalWithUnequalLengths/attention_cpu_exact_none",
            ),
        ],
    ),
]
