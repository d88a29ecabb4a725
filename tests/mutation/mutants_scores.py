"""Planted breaks of rules 4 and 5: score patterns and the QK product."""

from mutant import Mutant, group

MUTANTS: list[Mutant] = [
    *group(
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
    *group(
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
    *group(
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
    *group(
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
    *group(
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
    *group(
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
    *group(
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
    *group(
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
]
