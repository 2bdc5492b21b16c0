"""The claims of papers that are decided here: what each says, its premises, and the one condition that decides it.

Deltas, gates and seeds are fixed in docs/benchmarks/claims_plan.md before anything is run; a test holds the two together.
"""

from __future__ import annotations

from benchmarks.claims.spec import Claim
from vlmrl.extras.study.spec import Comparison, Condition, Premise, Spread

_EARLIER = "the earlier page, five seeds, last evaluation"
_ACCURACY = Spread(sd=0.0537, seeds=5, source=f"accuracy, FGRPO - GRPO ({_EARLIER})")
_ACCURACY_THERE = _ACCURACY.model_copy(update={"source": f"{_ACCURACY.source}; another world"})
_MIOU = Spread(sd=0.0433, seeds=5, source=f"mIoU, TempSamp-R1 - unrepaired ({_EARLIER})")
_LEAST = Spread(sd=0.0602, seeds=5, source=f"least gain, G2RPO - GRPO ({_EARLIER})")
_CONSISTENCY = Spread(sd=0.1325, seeds=5, source=f"consistency, FGRPO - GRPO ({_EARLIER})")
_SKIPS = Spread(sd=0.0253, seeds=5, source=f"skips easy - hard ({_EARLIER}); another world")
_FLIPS = Spread(sd=0.01, source="assumed: one flip in a hundred rows")

_ROOM = Premise(text="room: hard questions before RL", arm="uniform", measure="start accuracy hard", high=0.7)


CLAIMS: dict[str, Claim] = {
    claim.id: claim
    for claim in (
        Claim(
            id="g2rpo",
            title="G2RPO leaves no task behind",
            paper="arXiv:2604.08539",
            methods=("advantage g2rpo",),
            says="Over tasks whose rewards are sparse, dense and heavy-tailed, advantages that are mapped to a normal law give "
            "each task its due where z-scores let some tasks dominate, so that one run improves all of them.",
            regime="pictures",
            premises=(
                Premise(text="mixed groups in the control", arm="grpo", measure="mixed groups", low=0.3),
                Premise(text="z-scores pull unevenly over tasks", arm="grpo", measure="unevenness over tasks, GRPO", low=0.05),
                Premise(text="no task at its ceiling: the control's best task at the end", arm="grpo", measure="end best task", high=0.95),
            ),
            primary=Comparison(
                text="area under the curve of the task that gains least",
                arm="g2rpo",
                control="grpo",
                measure="auc least gain",
                delta=0.05,
                spread=_LEAST,
            ),
            secondary=(
                Condition(text="mean score over tasks", arm="g2rpo", control="grpo", measure="auc score", margin=0.02),
                Condition(text="the task stage alone: least gain", arm="g2rpo_task", control="grpo", measure="auc least gain"),
                Condition(text="same groups: evenness over tasks", arm="grpo", control=None, measure="unevenness over tasks, GRPO - G2RPO"),
                Condition(
                    text="same groups: nearness to a normal law", arm="grpo", control=None, measure="distance to normal, GRPO - G2RPO"
                ),
            ),
            shown=("good rows pushed down, GRPO", "good rows pushed down, G2RPO", "good rows pushed down, G2RPO task"),
        ),
        Claim(
            id="fgrpo",
            title="Faithful GRPO keeps thoughts consistent at no loss of accuracy",
            paper="arXiv:2604.08476",
            methods=("constraint lagrangian",),
            says="RL for right answers makes thoughts less consistent with the answers; consistency as a constraint with a "
            "Lagrange multiplier keeps it, at no loss of accuracy, and does so better than the same term added or multiplied into "
            "the reward.",
            regime="spatial",
            premises=(
                Premise(text="the control's right answers contradict their thoughts", arm="right", measure="end inconsistent", low=0.1),
            ),
            primary=Comparison(
                text="inconsistent thoughts of right answers, less than in the control",
                arm="fgrpo",
                control="right",
                measure="end inconsistent",
                direction="lower",
                delta=0.1,
                spread=_CONSISTENCY,
            ),
            secondary=(
                Condition(text="accuracy", arm="fgrpo", control="right", measure="auc accuracy", margin=0.03),
                Condition(
                    text="inconsistent, less than multiplied",
                    arm="fgrpo",
                    control="multiplicative",
                    measure="end inconsistent",
                    direction="lower",
                ),
                Condition(
                    text="inconsistent, less than added", arm="fgrpo", control="additive", measure="end inconsistent", direction="lower"
                ),
                Condition(text="right and consistent", arm="fgrpo", control="right", measure="end right and consistent"),
            ),
            shown=("start inconsistent", "end accuracy", "end tokens"),
        ),
        Claim(
            id="ton",
            title="TON skips thoughts where they are not needed",
            paper="arXiv:2505.16854",
            methods=("stage sft.thought_dropout",),
            says="After thought dropout in fine-tuning, GRPO without any reward for length learns when to think: it skips on easy "
            "questions more often than on hard ones, and writes less at equal accuracy.",
            regime="shell",
            premises=(
                Premise(
                    text="thoughts pay: RL on hard questions with thoughts minus answers alone",
                    arm="thinking",
                    control="answers",
                    measure="end accuracy hard",
                    low=0.2,
                ),
                Premise(
                    text="both ways are sampled before RL: think rate",
                    arm="ton",
                    measure="sampled thoughts, first steps",
                    low=0.1,
                    high=0.9,
                ),
            ),
            primary=Comparison(
                text="thoughts skipped, easy minus hard questions, after RL",
                arm="ton",
                control=None,
                measure="end skips easy - hard",
                delta=0.2,
                spread=_SKIPS,
            ),
            secondary=(
                Condition(
                    text="tokens, fewer than with all thoughts", arm="ton", control="thinking", measure="end tokens", direction="lower"
                ),
                Condition(text="accuracy", arm="ton", control="thinking", measure="end accuracy", margin=0.02),
            ),
            shown=("end thinks easy", "end thinks hard", "end accuracy hard"),
        ),
        Claim(
            id="tempsamp",
            title="TempSamp-R1: shaping repairs a group with a ground-truth row",
            paper="arXiv:2509.18056",
            methods=("strategy offpolicy_gt", "reward_shaping tempsamp_nonlinear"),
            says="A ground-truth answer in each group guides a policy whose own answers seldom fit; its reward stands out, so "
            "that good answers of the policy get negative advantages, and non-linear shaping of the rewards repairs that and "
            "gives better localisation.",
            regime="grounding",
            premises=(
                Premise(text="sampled spans hit", arm="plain", measure="sampled temporal_iou, first steps", low=0.2, high=0.4),
                Premise(text="but seldom fit: share above 0.8", arm="plain", measure="sampled temporal_iou > 0.8, first steps", high=0.05),
                Premise(text="the row pushes good answers down", arm="ground_truth", measure="good rows pushed down, raw", low=0.2),
            ),
            primary=Comparison(
                text="area under the curve of mIoU, with shaping minus without",
                arm="tempsamp",
                control="ground_truth",
                measure="auc miou",
                delta=0.03,
                spread=_MIOU,
            ),
            secondary=(
                Condition(text="mIoU, better than GRPO", arm="tempsamp", control="plain", measure="auc miou"),
                Condition(
                    text="same groups: fewer good answers pushed down",
                    arm="ground_truth",
                    control=None,
                    measure="good rows pushed down, raw - shaped",
                ),
                Condition(text="same groups: less |skewness|", arm="ground_truth", control=None, measure="|skewness|, raw - shaped"),
            ),
            shown=("end miou", "good rows pushed down, raw", "good rows pushed down, shaped"),
        ),
        Claim(
            id="curriculum",
            title="A curriculum from short to long",
            paper="arXiv:2508.11360",
            methods=("sampler curriculum_gui",),
            says="Training on short tasks before long ones gets further on long ones than uniform sampling. (The paper's method "
            "could not be read: the sampler is ours, and so is this claim in its precise form.)",
            regime="shell",
            premises=(
                _ROOM,
                Premise(text="levels differ: easy minus hard before RL", arm="uniform", measure="start easy - hard", low=0.2),
            ),
            primary=Comparison(
                text="area under the curve of accuracy on hard questions",
                arm="curriculum",
                control="uniform",
                measure="auc accuracy hard",
                delta=0.05,
                spread=_ACCURACY_THERE,
            ),
            secondary=(
                Condition(text="better than long before short", arm="curriculum", control="reversed", measure="auc accuracy hard"),
                Condition(
                    text="accuracy on all questions at the end", arm="curriculum", control="uniform", measure="end accuracy", margin=0.02
                ),
            ),
            shown=("start accuracy hard", "end accuracy hard"),
        ),
        Claim(
            id="gdpo",
            title="GDPO serves several rewards at once",
            paper="arXiv:2601.05242",
            methods=("advantage gdpo",),
            says="With several rewards, z-scores of their sum make different combinations alike; normalising each reward by "
            "itself keeps them apart and reaches more of all of them.",
            regime="spatial",
            premises=(
                Premise(
                    text="the second reward is not had for nothing: inconsistent without it",
                    arm="right",
                    measure="end inconsistent",
                    low=0.1,
                ),
            ),
            primary=Comparison(
                text="area under the curve of right and consistent answers",
                arm="gdpo",
                control="additive",
                measure="auc right and consistent",
                delta=0.05,
                spread=_ACCURACY,
            ),
            secondary=(Condition(text="accuracy", arm="gdpo", control="additive", measure="auc accuracy", margin=0.03),),
            shown=("end right and consistent", "end inconsistent"),
        ),
        Claim(
            id="dynamic_sampling",
            title="Dynamic sampling needs fewer steps",
            paper="arXiv:2503.14476",
            methods=("filter zero_variance",),
            says="Groups whose answers are all right or all wrong teach nothing; drawing others in their place reaches the same "
            "score in fewer steps (DAPO). It generates more per step; that is shown, and not held against it.",
            regime="shell",
            premises=(_ROOM, Premise(text="groups without a signal in the control", arm="uniform", measure="mixed groups", high=0.7)),
            primary=Comparison(
                text="area under the curve of accuracy, over steps",
                arm="dynamic",
                control="uniform",
                measure="auc accuracy",
                delta=0.05,
                spread=_ACCURACY_THERE,
            ),
            secondary=(
                Condition(text="accuracy on hard questions at the end", arm="dynamic", control="uniform", measure="end accuracy hard"),
            ),
            shown=("mixed groups", "batches per step"),
        ),
        Claim(
            id="mc_grpo",
            title="A median baseline flips fewer signs in small groups",
            paper="arXiv:2601.22582",
            methods=("advantage mc_grpo", "filter mc_grpo_pivot"),
            says="In small groups the mean is a noisy baseline, and many rollouts get an advantage of the wrong sign; the median "
            "of one rollout more, which then does not train, flips fewer.",
            regime="pictures",
            premises=(
                Premise(text="mixed groups", arm="grpo", measure="mixed groups", low=0.3),
                Premise(text="the mean of four flips signs", arm="grpo", measure="flipped signs, mean", low=0.03),
            ),
            primary=Comparison(
                text="same groups: flipped signs, mean of four minus median of five",
                arm="grpo",
                control=None,
                measure="flipped signs, mean - median",
                delta=0.02,
                spread=_FLIPS,
            ),
            secondary=(
                Condition(
                    text="same groups: against the mean of five",
                    arm="grpo",
                    control=None,
                    measure="flipped signs, mean of one more - median",
                ),
            ),
            shown=("flipped signs, mean", "flipped signs, mean of one more", "flipped signs, median"),
        ),
    )
}
