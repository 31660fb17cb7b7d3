"""The matrix of pipelines that must compute what one device computes, and which of it exist.

What there is: models x layouts x schedules x exact or float64 with stages as they are asked for,
and models x searches x exact or float64 with stages as they are found. What there is not, by rule:

* Interleaved schedules need several stages per rank; they have two, so twice as many stages as the
  layout has groups of ranks. The search for stages does not know them: they are never searched.
* Three devices of one host are not searched either (hosts are searched whose number of devices is a
  power of two), so stages on 1 + 2 ranks are asked for only; a search for three stages on four
  devices finds those on 1 + 1 + 2.
* How the two ranks of a stage share their work can be forced only where every stage has two ranks.
"""

import itertools
from dataclasses import dataclass

SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "zero_bubble")
_SEARCHED_SCHEDULES = ("gpipe", "1f1b", "zero_bubble")
MODELS = ("gpt", "wide_resnet", "unet")
# Layout -> devices of every group of ranks.
LAYOUTS = {
    "pp2": (1, 1),
    "pp2 x dp2": (2, 2),
    "pp2 x tp2": (2, 2),
    "pp4": (1, 1, 1, 1),
    "1+2": (1, 2),
    "1+1+2": (1, 1, 2),
}
# Search -> devices, number of stages.
SEARCHES = {
    "2 of 2": (2, 2),
    "2 of 4": (4, 2),
    "3 of 4": (4, 3),
    "4 of 4": (4, 4),
    "any of 4": (4, "auto"),
}
NUM_MICROBATCHES = 4
NUM_STEPS = 10


@dataclass(frozen=True)
class Case:
    """One pipeline.

    Attributes:
        model: one of `MODELS`.
        exact: small integers in float32, equal bit for bit; else float64, equal to rounding.
        layout: of `LAYOUTS`, or of `SEARCHES`.
        schedule: one of `SCHEDULES`.
        recompute: "none" or "full".
    """

    model: str
    exact: bool
    layout: str
    schedule: str
    recompute: str = "none"

    @property
    def searched(self) -> bool:
        """Whether the stages are found by search."""
        return self.layout in SEARCHES

    @property
    def world(self) -> int:
        """How many processes it takes."""
        return SEARCHES[self.layout][0] if self.searched else sum(LAYOUTS[self.layout])

    @property
    def stages_per_rank(self) -> int:
        """How many stages share their ranks."""
        return 2 if self.schedule == "interleaved_1f1b" else 1

    @property
    def scheme(self) -> str:
        """What the ranks of a stage share: "data", "tensor", or "" for whatever is fastest."""
        return {"pp2 x dp2": "data", "pp2 x tp2": "tensor"}.get(self.layout, "")

    @property
    def options(self) -> dict[str, object]:
        """What `sw.parallelize` is asked for, apart from forced specs."""
        common = {
            "schedule": self.schedule,
            "num_microbatches": NUM_MICROBATCHES,
            "recompute": self.recompute,
        }
        if self.searched:
            return {**common, "num_stages": SEARCHES[self.layout][1]}
        devices = LAYOUTS[self.layout]
        return {
            **common,
            "num_stages": len(devices) * self.stages_per_rank,
            "stages_per_rank": self.stages_per_rank,
            "stage_meshes": tuple((count,) for count in devices),
        }

    def __str__(self) -> str:
        numbers = "integer" if self.exact else "float64"
        searched = "searched " if self.searched else ""
        recompute = ", recomputed" if self.recompute == "full" else ""
        return f"{self.model} {numbers}, {searched}{self.layout}, {self.schedule}{recompute}"


def _all_cases() -> list[Case]:
    """Asked for: all. Searched and recomputed: every model with each, the schedules by turns."""
    cases = []
    for number, (model, exact) in enumerate(itertools.product(MODELS, (True, False))):
        for schedule in SCHEDULES:
            cases += [Case(model, exact, layout, schedule) for layout in LAYOUTS]
        for turn, search in enumerate(SEARCHES, number):
            cases.append(Case(model, exact, search, _SEARCHED_SCHEDULES[turn % 3]))
        cases += [
            Case(model, exact, "1+1+2", SCHEDULES[number % 4], "full"),
            Case(model, exact, "2 of 4", _SEARCHED_SCHEDULES[number % 3], "full"),
        ]
    return cases


ALL_CASES = tuple(_all_cases())
