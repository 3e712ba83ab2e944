"""What crosses the edge of a task or of a process: errors and records, by the serialisers that are in use."""

import json
import pickle
from pathlib import Path

import pytest
from prefect.serializers import JSONSerializer

from tasks import errors
from tasks.errors import HeroRunError
from tasks.server import NOT_NEEDED
from tasks.system.child import outcome_path, read_outcome
from tasks.system.run import Product

pytestmark = pytest.mark.fault("errors-cross-edges")

MESSAGE = 'the volume /data needs 5.40 TB, "2.80 TB" are free: äöü\nLog ends:\n\tline'


def classes_of(kind: type[HeroRunError]) -> list[type[HeroRunError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in classes_of(child))]


CLASSES = [kind for kind in classes_of(HeroRunError) if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_is_pickled_with_its_message(kind):
    copy = pickle.loads(pickle.dumps(kind(MESSAGE)))
    assert (type(copy), str(copy)) == (kind, MESSAGE)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_goes_through_the_result_serializer_of_the_stages_with_its_message(kind):
    serializer = JSONSerializer()
    copy = serializer.loads(serializer.dumps(kind(MESSAGE)))
    assert (type(copy), str(copy)) == (kind, MESSAGE)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_that_a_child_leaves_is_raised_as_the_same_class_with_its_message(tmp_path, kind):
    spec_path = tmp_path / "spec.json"
    outcome_path(spec_path).write_text(json.dumps({"error": kind.__name__, "message": MESSAGE}))
    with pytest.raises(kind) as raised:
        read_outcome(spec_path)
    assert (type(raised.value), str(raised.value)) == (kind, MESSAGE)


@pytest.mark.parametrize(
    "record", [Product(folder=Path("/data/a"), content_sha256="ab", facts={"n": 1, "layers": [2, 30]}), NOT_NEEDED]
)
def test_a_record_goes_through_the_result_serializer_of_the_stages(record):
    serializer = JSONSerializer()
    assert serializer.loads(serializer.dumps(record)) == record
