"""The patterns, in the order of the page: the one place of their words and of which incidents look like which.

Their curves are real runs of the laboratory (``examples/laboratory/record_curves.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GROUPS", "PATTERNS", "Pattern", "similar"]


@dataclass(frozen=True)
class Pattern:
    """One pattern.

    Attributes:
        id: in the address (``/gallery#id``) and of its curve.
        title: its common name.
        group: its heading, a key of ``GROUPS``.
        look: course of the curve.
        why: its cause.
        remedy: the usual one.
        board: its name on this board and the actions offered.
        source: who described it, with the year.
        kinds: kinds of incidents that look like it ...
        recovery: ... of those only the ones with this recovery; "" for any.
        dataset: ... or only those that one data set carries.
        begin: first step that is shown at first, where the pattern is small in the whole run.
    """

    id: str
    title: str
    group: str
    look: str
    why: str
    remedy: str
    board: str
    source: str
    kinds: tuple[str, ...] = ()
    recovery: str = ""
    dataset: bool = False
    begin: int = 0


#: Headings, in their order.
GROUPS = {
    "well": "All is well",
    "loss": "The loss",
    "data": "The data",
    "machine": "Restarts, numbers, machines",
}

PATTERNS = (
    Pattern(
        "good",
        "A good run",
        "well",
        "The loss falls fast, then ever more slowly, and the noise about it stays the same. The gradient norm is calm.",
        "What is frequent is learned first. After that each halving of the rest costs many times the steps, close to a "
        "power law.",
        "Nothing. Look at a logarithmic x axis before calling a flat curve stuck.",
        "No incident.",
        "Kaplan et al. 2020, Scaling Laws for Neural Language Models",
    ),
    Pattern(
        "lr-drop",
        "A step down when the rate is cut",
        "well",
        "The learning rate falls at one step, and the loss falls with it to a lower level within a few points.",
        "At a high rate the weights bounce between the walls of a valley. A smaller rate lets them sink to its floor.",
        "Nothing: it was meant. The same drop without a cut of the rate is worth a look at the data, since it may be "
        "batches that the model has seen before.",
        "No incident: a planned cut is recognised by the rate that is logged beside the loss.",
        "He et al. 2016, Deep Residual Learning; Wen et al. 2024, Understanding Warmup-Stable-Decay",
        begin=300,
    ),
    Pattern(
        "grokking",
        "Grokking: understood long after it was memorized",
        "well",
        "The training loss is next to nothing after a hundred steps. The held-out loss gets far worse meanwhile; its "
        "accuracy stays at chance for another three hundred steps, then climbs to nearly one.",
        "Memorizing is quick. A rule that needs smaller weights wins later, because weight decay makes it cheaper.",
        "Do not stop a small-data run on its held-out loss alone, and keep weight decay on. Large models on fresh data "
        "seldom show it.",
        "No incident: the watched loss does what it should.",
        "Power et al. 2022, Grokking; Nanda et al. 2023, Progress Measures for Grokking; Gromov 2023",
    ),
    Pattern(
        "spike-fast",
        "A spike that is over at once",
        "loss",
        "The loss jumps within one or two points and is back on its line a few points later.",
        "A few batches are unlike all others (here: noise from a damaged shard), or one update was too long.",
        "Most teams go on. If it comes again at the same data, they look at those batches and filter them.",
        "Spike, recovery fast. The advice is to wait; the samples of the batch are shown where the job keeps them.",
        "Chowdhery et al. 2022, PaLM, section 5.1; Takase et al. 2023, Spike No More",
        ("spike",),
        "fast",
        begin=400,
    ),
    Pattern(
        "spike-slow",
        "A spike that takes its time",
        "loss",
        "The loss jumps and then creeps back over tens to hundreds of steps.",
        "The weights were moved far (by many odd batches, or a rate too high for some steps), and Adam's second "
        "moments, which now remember huge gradients, make the way back slow.",
        "Wait as long as the lost steps are worth. If the level stays higher, go back to a checkpoint some 100 steps "
        "before it and leave out the batches of the spike.",
        "Spike, recovery slow. The advice says until which step waiting is the better bet.",
        "Chowdhery et al. 2022, PaLM; Molybog et al. 2023, A Theory on Adam Instability",
        ("spike",),
        "slow",
        begin=400,
    ),
    Pattern(
        "spike-unrecovered",
        "A spike that never comes back",
        "loss",
        "The loss jumps, falls a little, and stays on a much worse level.",
        "Something was broken for good: hidden units that are zero for every input, or attention that has collapsed. "
        "Here the learning rate was hundreds of times too high for some steps.",
        "Roll back to a checkpoint from before it. With the same data and the same rate it often comes again, so "
        "people lower the rate, skip batches, or both.",
        "Spike, recovery none, critical. It offers the newest checkpoint that is clean.",
        "Zhang et al. 2022, OPT and its logbook; Laurençon et al. 2023, OBELICS and IDEFICS",
        ("spike",),
        "none",
        begin=300,
    ),
    Pattern(
        "divergence",
        "Divergence",
        "loss",
        "No jump: the loss turns around and climbs, at first so slowly that it looks like noise, then ever faster.",
        "Each update makes the next one worse: logits or weights grow without bound. Here weight decay has the wrong "
        "sign; in large jobs it is a rate that is too high for that size.",
        "Stop early: the longer it climbs, the older the last good checkpoint. Go back and lower the rate, clip "
        "harder, or bound the logits (z-loss, norms of queries and keys).",
        "Divergence, critical, with the range of steps in which it may have begun. Checkpoints from there are not "
        "offered.",
        "Wortsman et al. 2023, Small-scale Proxies for Large-scale Transformer Training Instabilities",
        ("divergence",),
        begin=250,
    ),
    Pattern(
        "learning-rate",
        "A learning rate off its past",
        "loss",
        "The rate rises where it should fall. The loss follows tens of steps later.",
        "A schedule that counts steps twice, a warm-up that starts again after a resume, a decay with the wrong sign.",
        "Correct the schedule first. A rollback alone goes back into the same rate.",
        "Learning rate off its past: often seen before the loss moves, and then the cause of what follows.",
        "Loshchilov and Hutter 2017, SGDR; Zhang et al. 2022, OPT (rates changed by hand)",
        ("learning_rate",),
        begin=500,
    ),
    Pattern(
        "level-shift",
        "A new, higher level",
        "loss",
        "The loss moves up by a few per cent within some steps and then goes on falling from there.",
        "Something changed for good: noisier targets (here those of one data set), another tokenizer or template, a "
        "changed loss, dropout left on, or a part of the batch that is masked no more.",
        "Find the change: code, data version, configuration. Going back helps only when it is undone.",
        "Level shift, with the level before and after.",
        "Arpit et al. 2017, A Closer Look at Memorization in Deep Networks (noisy targets)",
        ("level_shift",),
        begin=350,
    ),
    Pattern(
        "plateau",
        "Nothing is learned",
        "loss",
        "The loss stays where guessing puts it, and so does the gradient norm.",
        "A rate of zero, shuffled targets, dead units after a bad start, frozen parameters, or an optimizer that holds "
        "other parameters than the model.",
        "Try to overfit one batch: what fails there is a bug and no matter of patience.",
        "Plateau.",
        "Mishkin and Matas 2016, All You Need Is a Good Init; Lu et al. 2019, Dying ReLU and Initialization",
        ("plateau",),
    ),
    Pattern(
        "one-data-set",
        "One data set is ill",
        "data",
        "The total loss rises a little, and one data set's own curve rises by a lot. The others stay on their lines.",
        "A reader, tokenizer or shard of that set is broken. In a mixture the total hides it: a tenth of the tokens "
        "can double its loss for a tenth of the effect.",
        "Take that set out or fix its reader, then skip its batches. Log the loss of each set, or it can't be seen.",
        "Spike or level shift of that data set, by name.",
        "Xie et al. 2023, DoReMi (the loss of each domain as the thing to watch)",
        ("spike", "level_shift"),
        "",
        True,
        begin=500,
    ),
    Pattern(
        "mixture-drift",
        "The mixture drifts",
        "data",
        "The ratio of the data sets leaves what was declared. The total loss moves because easier or harder data is "
        "counted, though the model is as good as before.",
        "A sampler that forgot its counts at a resume, a set that ran out, workers of one set that died.",
        "Compare each set's own loss before judging the model. Restore the sampler's state, or restart it at the right "
        "place.",
        "Data mix drift, with the declared and the served share.",
        "Xie et al. 2023, DoReMi; Grattafiori et al. 2024, The Llama 3 Herd of Models, section 3.1",
        ("data_mix_drift",),
        begin=400,
    ),
    Pattern(
        "repeated-data",
        "The same batches again",
        "data",
        "After a resume the loss is lower than it was at the same steps (grey), and jumps back up when fresh data "
        "comes.",
        "The data loader went back further than the model, so the model sees batches that it has just learned.",
        "Go back to the resume with the data position restored. A few repeated batches harm little; many cost far more "
        "than their share.",
        "Repeated data, with the steps that were seen before where the job names its batches.",
        "Hernandez et al. 2022, Scaling Laws and Interpretability of Learning from Repeated Data",
        ("repeat_data", "shared_data"),
        begin=500,
    ),
    Pattern(
        "resume",
        "A scar after a resume",
        "machine",
        "At the very step of a restart the loss jumps or swells, and then comes back over tens of steps, or does not.",
        "The checkpoint did not bring all back: schedule (here: the rate is far too high), Adam's moments or its step "
        "counter, the loss scale, the random state.",
        "Compare what was saved with what was restored; resume again. stabilityboard drill finds what is missing "
        "before it costs a run.",
        "Resume artifact, with the verdict on each part in the table of resumes.",
        "Kingma and Ba 2015, Adam (moments and step counter belong together); Zhang et al. 2022, OPT",
        ("resume_artifact", "order_not_followed"),
        begin=400,
    ),
    Pattern(
        "nan",
        "NaN",
        "machine",
        "The line ends. Each point after it is a mark: not a number.",
        "0/0, the logarithm of zero, or an overflow in half precision. Once an update with NaN is applied, all weights "
        "are NaN. Here one row of padding made a mean over nothing.",
        "Go back to before it; guard the mean, skip updates that are not finite, use bfloat16 or a loss scale that "
        "adapts.",
        "NaN or Inf, critical; permanent or for some steps is told apart.",
        "Micikevicius et al. 2018, Mixed Precision Training",
        ("nonfinite",),
        begin=400,
    ),
    Pattern(
        "sdc",
        "A silent flip of a bit",
        "machine",
        "A step out of nowhere: no rate changed, no odd batch, one rank's numbers differ. The job may go on as if "
        "nothing were.",
        "Hardware computed something wrong and reported nothing. Here one weight was multiplied by a power of two, as "
        "a flipped bit of its exponent does.",
        "Run the same batch on another machine and compare. Take the GPU out, go back to before it.",
        "Suspected SDC where ranks that must agree do not; else the spike that it causes.",
        "Dixit et al. 2021, Silent Data Corruptions at Scale; Grattafiori et al. 2024, Llama 3, section 3.3.4",
        ("sdc_suspect",),
        begin=500,
    ),
)


def similar() -> list[dict[str, object]]:
    """Return which incidents look like which pattern, for the browser: of those that fit, the first is meant.

    Facts of one data set go before facts of a recovery. A spike that may still recover is looked up
    as one that does.
    """
    fitting = sorted((one for one in PATTERNS if one.kinds), key=lambda one: not one.dataset)
    return [
        {"id": one.id, "title": one.title, "kinds": one.kinds, "recovery": one.recovery, "dataset": one.dataset}
        for one in fitting
    ]
