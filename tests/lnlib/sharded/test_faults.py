"""A fault on one rank is the same clear error on all, in the simulator."""

import pytest
from faults import FAULTS, job

from lnlib.sharded import RankError, simulate


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("how", ["rows", "features"])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_named_with_its_rank(how, fault, ranks):
    for bad in (0, ranks - 1):
        with pytest.raises(RankError) as caught:
            simulate(
                [job(how, rank, ranks, fault if rank == bad else None) for rank in range(ranks)]
            )
        assert FAULTS[fault] in str(caught.value), caught.value
        assert f"rank {bad}" in str(caught.value), caught.value


def test_without_a_fault_the_job_ends():
    for how in ("rows", "features"):
        assert len(simulate([job(how, rank, 4) for rank in range(4)])) == 4
