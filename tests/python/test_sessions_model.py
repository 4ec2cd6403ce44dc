"""Random sequences of cells in sessions, compared with a model of the variables. `sessions_model.py` runs more of them."""

import pytest
import sessions
from sessions_model import AT_ONCE, SETTINGS, run_many

SEED = 19
SEQUENCES = 8


@pytest.mark.any_engine
async def test_variables_agree_with_the_model(tmp_path):
    async with sessions.clients(tmp_path, "stdio", 1, **SETTINGS) as (_, [client]):
        found = await run_many(client, [f"{SEED}/{number}" for number in range(SEQUENCES)], AT_ONCE)
    assert found is None, f"{found['what']}\nafter {found['steps'][-3:]}; sessions_model.py --only {found['seed']}"
