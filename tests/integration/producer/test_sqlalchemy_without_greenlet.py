"""SQLAlchemy 2.1 does not install greenlet: plain sessions and connections publish without it."""

from __future__ import annotations

import subprocess
import sys

import psycopg

_PROGRAM = """
import sys
from importlib.abc import MetaPathFinder


class NoGreenlet(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "greenlet":
            raise ModuleNotFoundError("No module named 'greenlet'", name="greenlet")
        return None


sys.meta_path.insert(0, NoGreenlet())

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from onceward_consumer.runs import Runs
from onceward_producer.outbox import Outbox
from onceward_schemas.errors import TransactionError
from tests.support.commands import Increment


class Codec:
    def encode(self, command):
        return b"payload"


engine = create_engine(sys.argv[1].replace("postgresql://", "postgresql+psycopg://"))
outbox, runs = Outbox(Codec()), Runs(Codec())
with Session(engine) as session, session.begin():
    outbox.publish(session, Increment(counter="in a session"))
    runs.start(session, "bulk", expected=1)
with engine.begin() as connection:
    outbox.publish(connection, Increment(counter="on a connection"))
scoped = scoped_session(sessionmaker(engine))
scoped.execute(text("select 1"))
outbox.publish(scoped, Increment(counter="in a scoped session"))
scoped.commit()
try:
    outbox.publish(object(), Increment(counter="nowhere"))
except TransactionError as error:
    print(error)
assert "greenlet" not in sys.modules
"""


def test_a_plain_session_publishes_and_starts_runs_without_greenlet(database: str) -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, database], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "A object is not a transaction to publish in." in done.stdout
    with psycopg.connect(database) as connection:
        rows = connection.execute("select count(*) from onceward.outbox").fetchone()
        runs = connection.execute("select count(*) from onceward.runs").fetchone()
    assert (rows, runs) == ((3,), (1,))
