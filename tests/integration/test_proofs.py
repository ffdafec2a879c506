"""Which proof sees which wrong states, on real states of both demo targets, and that right ones pass."""

from __future__ import annotations

from math import floor
from pathlib import Path

import pytest

from integration.fixtures import demo_target
from mutations import MUTATIONS
from proof_ground import demo_ids, ground

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

LAYERS = (2, 4, 5, 8)
SHARING, SAMPLES = 12, 28


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-kimi"])
def test_each_kind_of_wrong_states_is_seen_as_the_table_says(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, name: str
) -> None:
    target = demo_target(tmp_path_factory, name)
    made = ground(target, tmp_path, LAYERS, demo_ids(target, SAMPLES, SHARING))
    right = list(made.measured.values())
    assert made.judge(right).rejected == {}
    sharing, alone = made.samples[4:10], made.samples[SHARING + 4 : SHARING + 10]
    failed = []
    for mutation in MUTATIONS:
        with made.damaged([*sharing, *alone], mutation.damage) as own:
            without, judge = made.judge(own, shared_prefixes=False), made.judge(own)
        seen = [key for key, why in without.rejected.items() if any(name in why for name in mutation.by)]
        if mutation.by and len(seen) < floor(mutation.share * len(own)):
            failed.append(f"{mutation.name}: {len(seen)} of {len(own)} by {mutation.by}: {without.rejected}")
        left = [one.key for one in sharing if one.key not in without.rejected]
        met = [key for key in left if "shared-prefix" in judge.rejected.get(key, "")]
        if mutation.prefix and len(met) < len(left):
            failed.append(f"{mutation.name}: {len(met)} of {len(left)} by their prefixes")
        damaged = {one.key for one in own}  # of two that disagree, both may be rejected
        wrongly = {key for key, why in judge.rejected.items() if "shared-prefix" not in why} - damaged
        if wrongly:
            failed.append(f"{mutation.name}: rejected, though right: {wrongly}")
    assert not failed, "\n".join(failed)
