"""A child that tells its secret wherever a child can: in its log, and in the error that it ends with."""

import logging
import os
from dataclasses import dataclass

from tasks.system.child import Reporter, child_main


@dataclass(frozen=True)
class Nothing:
    """Neither asked nor answered."""


def tell(spec: Nothing, reporter: Reporter) -> Nothing:
    token = os.environ["HF_TOKEN"]
    logging.basicConfig()
    logging.warning("sent authorization: Bearer %s", token)
    raise ValueError(f"Invalid credentials: {token}")


if __name__ == "__main__":
    child_main(Nothing, tell)
