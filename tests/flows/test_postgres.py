"""PostgreSQL by one setting: the local server of a run keeps its state there. Debian's package, not a container."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flows.local_api import DATABASE_NAME, DATABASE_VARIABLE
from tests.flows.live import HeroRun, free_port, wait_until

USER = "prefect"
PASSWORD = "plantedPassword4711"
ACCOUNT = "postgres"
"""Debian's account for it: PostgreSQL refuses to run as root."""


@dataclass
class Postgres:
    """A server of its own, with one database."""

    programs: Path
    folder: Path
    port: int

    @property
    def url(self) -> str:
        return f"postgresql+asyncpg://{USER}:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def run(self, program: str, *arguments: str) -> str:
        """One of its programs, as the account that may run them."""
        account = {"user": ACCOUNT, "group": ACCOUNT, "extra_groups": []} if os.geteuid() == 0 else {}
        done = subprocess.run(
            [self.programs / program, *arguments],
            cwd=self.folder,
            env={**os.environ, "PGPASSWORD": PASSWORD},
            capture_output=True,
            text=True,
            check=False,
            **account,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def select(self, query: str) -> list[str]:
        host = ("--host", "127.0.0.1", "--port", str(self.port), "--username", USER, "--dbname", "postgres")
        return self.run("psql", *host, "--tuples-only", "--no-align", "--command", query).splitlines()


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("no /usr/lib/postgresql/*/bin/initdb: install Debian's package postgresql")
    # pytest's own folders cannot be entered by another account.
    folder = Path(tempfile.mkdtemp(prefix="hero-run-postgres-"))
    if os.geteuid() == 0:
        account = pwd.getpwnam(ACCOUNT)
        os.chown(folder, account.pw_uid, account.pw_gid)
    server = Postgres(found[-1].parent, folder, free_port())
    try:
        yield from serving(server)
    finally:
        shutil.rmtree(folder)


def serving(server: Postgres) -> Iterator[Postgres]:
    password, data = server.folder / "password", server.folder / "data"
    password.write_text(PASSWORD)
    password.chmod(0o644)
    access = ("--auth=scram-sha-256", f"--pwfile={password}", "--no-sync")
    server.run("initdb", f"--pgdata={data}", f"--username={USER}", *access)
    options = f"-p {server.port} -k {server.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    # Not `pg_ctl start`'s output: the server would keep a pipe open.
    server.run("pg_ctl", "start", "--wait", f"--pgdata={data}", f"--log={server.folder}/log", f"--options={options}")
    pid = int((data / "postmaster.pid").read_text().splitlines()[0])
    try:
        yield server
    finally:
        os.kill(pid, signal.SIGINT)  # its fast way to stop
        wait_until(lambda: not (data / "postmaster.pid").exists(), "the end of PostgreSQL", 30)


@pytest.fixture(scope="module")
def run(postgres: Postgres, tmp_path_factory) -> HeroRun:
    """A run of the tiny flow as users start it, with nothing but the setting."""
    folder = tmp_path_factory.mktemp("on-postgres")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {"PREFECT_HOME": str(folder / "prefect"), DATABASE_VARIABLE: postgres.url}
    run = HeroRun(folder / "data", environment, 0.0, "--ui-port", str(free_port()))
    try:
        assert run.ended() == 0, run.said()
    finally:
        if run.process.poll() is None:
            run.process.kill()
    return run


def test_the_runs_state_is_in_the_database(postgres, run):
    assert postgres.select("select state_type from flow_run") == ["COMPLETED"]


def test_the_state_of_its_tasks_is_too(postgres, run):
    query = "select name from task_run where state_type = 'COMPLETED' order by name"
    assert postgres.select(query) == ["drafter-download", "inference", "server-load", "training"]


def test_there_is_no_other_database(postgres, run):
    assert not list(run.data_root.parent.rglob(DATABASE_NAME))


def test_the_address_with_its_password_is_written_nowhere(postgres, run):
    files = [path for path in run.data_root.parent.rglob("*") if path.is_file()]
    assert files and not [path for path in files if PASSWORD.encode() in path.read_bytes()]
