"""Planted breaks of rules 6 to 9, of layouts, near ties and the CPU rows."""

from mutant import Mutant, group

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
    *group(
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
    *group(
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
    *group(
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
    *group(
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
    *group(
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
    *group(
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
    *group(
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
    *group(
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
    *group(
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
    *group(
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
    *group(
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
