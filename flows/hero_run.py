"""The hero run: a fitting EAGLE-3 drafter for a very large model, overnight, on one machine."""

from prefect import flow

from flows.deadline import AskedDeadline
from flows.recipes import Overrides, RecipeName, RefreshName
from flows.run_deadline import ended_at_deadline
from flows.site import open_run, run_name
from tasks.drafter import drafter_download
from tasks.errors import DeadlineReached
from tasks.evaluation import evaluation
from tasks.extraction import extraction
from tasks.inference import inference
from tasks.planning import windows
from tasks.policies import both
from tasks.preflight import preflight
from tasks.server import server_load, server_stop
from tasks.system.run import Product
from tasks.training import training


@flow(name="hero-run", flow_run_name=run_name)
def hero_run(
    recipe: RecipeName = "kimi-k25",
    overrides: Overrides | None = None,  # type: ignore[valid-type]
    refresh: list[RefreshName] | None = None,
    deadline: AskedDeadline | None = None,
) -> Product | str:
    """Make an EAGLE-3 drafter for a target model, and measure whether it is better than its base.

                  ┌─ server-load ─────┐
     preflight ───┤                   ├─ inference ─ server-stop ─ extraction ─ training ─ evaluation
                  └─ drafter-download ┘

    Args:
        recipe: What to run; `hero-run recipes` lists them.
        overrides: Recipe fields to change for this run; empty fields keep the recipe's values.
        refresh: Stages to make anew although they are finished.
        deadline: When the run ends whatever it is at; the next start goes on there.
    """
    try:
        with open_run(recipe, overrides, refresh or [], deadline) as run:
            preflight(run)
            server, drafter = both(server_load.submit(run), drafter_download.submit(run))
            responses = inference(run, server)
            server_stop(run, server, responses)
            trained = None
            for window in windows(run, responses, drafter):  # one, unless the states of all samples do not fit
                states = extraction(run, responses, drafter, window)
                trained = training(run, states, drafter, window, trained)
            assert trained is not None
            return evaluation(run, trained)
    except DeadlineReached as reached:
        return ended_at_deadline(reached)
