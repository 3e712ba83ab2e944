"""`prefect`, whose server soon gives up waiting for the event that another one says it follows.

The scheduler makes runs without the event that they are scheduled. So the server holds the event that one is late back
for a quarter of an hour, and then takes it as it is.
"""

import datetime

from prefect.cli import app
from prefect.server.events.ordering import memory

memory.PRECEDING_EVENT_LOOKBACK = datetime.timedelta(seconds=2)

if __name__ == "__main__":
    app()
