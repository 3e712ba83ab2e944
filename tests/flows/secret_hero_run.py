"""`hero-run`, with the flow of secrets in the place of the hero run."""

import sys
import types

from flows.cli import main


class _Secret(types.ModuleType):
    """Imported as late as the real one, because Prefect reads its settings when it is imported."""

    @property
    def hero_run(self):
        from tests.flows.secret_flow import hero_run

        return hero_run


sys.modules["flows.hero_run"] = _Secret("flows.hero_run")

if __name__ == "__main__":
    sys.exit(main())
