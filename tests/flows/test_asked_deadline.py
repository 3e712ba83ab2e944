"""What a user asks for as a deadline, and the moment that is meant: clocks, time zones, and changes of clocks."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from flows.cli import main
from flows.deadline import AskedDeadline, asked_deadline, hours_of, next_time
from tasks.errors import RecipeError

BERLIN = "Europe/Berlin"


def posix(text: str, zone: str = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def shown(seconds: float, zone: str = BERLIN) -> str:
    return f"{datetime.fromtimestamp(seconds, ZoneInfo(zone)):%Y-%m-%d %H:%M %Z}"


@pytest.mark.parametrize(
    ("wanted", "after", "expected"),
    [
        ("07:30", "2026-12-02 20:00", "2026-12-03 07:30 CET"),
        ("7:30", "2026-12-03 07:29", "2026-12-03 07:30 CET"),
        ("07:30", "2026-12-03 07:30", "2026-12-04 07:30 CET"),
        ("23:30", "2026-12-03 20:00", "2026-12-03 23:30 CET"),
        ("00:00", "2026-12-31 20:00", "2027-01-01 00:00 CET"),
    ],
)
def test_it_is_the_next_such_time_past_midnight_or_not(wanted, after, expected):
    assert shown(next_time(wanted, BERLIN, posix(after))) == expected


@pytest.mark.parametrize(
    ("evening", "hours"),
    # Clocks go forward at 02:00 on 28 March, and back at 03:00 on 31 October.
    [("2027-03-26 20:00", 11.5), ("2027-03-27 20:00", 10.5), ("2027-10-30 20:00", 12.5)],
)
def test_a_night_in_which_clocks_change_ends_at_the_time_that_they_show(evening, hours):
    at = next_time("07:30", BERLIN, posix(evening))
    assert (shown(at)[11:16], (at - posix(evening)) / 3600) == ("07:30", hours)


def test_a_time_that_clocks_skip_is_the_one_that_they_show_instead():
    assert shown(next_time("02:30", BERLIN, posix("2027-03-27 20:00"))) == "2027-03-28 03:30 CEST"


@pytest.mark.parametrize(
    ("after", "fold", "expected"),
    [
        ("2027-10-30 20:00", 0, "2027-10-31 02:30 CEST"),
        ("2027-10-31 02:45", 0, "2027-10-31 02:30 CET"),
        ("2027-10-31 02:45", 1, "2027-11-01 02:30 CET"),
    ],
)
def test_a_time_that_clocks_show_twice_comes_twice(after, fold, expected):
    assert shown(next_time("02:30", BERLIN, posix(after, fold=fold))) == expected


def test_another_zone_than_the_machines_is_that_zones_time():
    after = posix("2026-12-02 20:00", "America/New_York")
    assert shown(next_time("07:30", "Asia/Tokyo", after), "Asia/Tokyo") == "2026-12-04 07:30 JST"


@pytest.mark.parametrize("zone", [BERLIN, "America/New_York"])
def test_without_a_zone_it_is_the_machines(zone, monkeypatch):
    import time

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert next_time("07:30", None, posix("2027-03-27 20:00", zone)) == next_time(
            "07:30", zone, posix("2027-03-27 20:00", zone)
        )
    finally:
        monkeypatch.undo()
        time.tzset()


def kept(started: str = "2026-12-02 20:00", due: str | None = None, **fields):
    return AskedDeadline(**fields).kept(posix(started), posix(due or started))


def test_a_duration_counts_from_the_start():
    deadline = kept(after_hours=11.5)
    assert shown(deadline.at_seconds) == "2026-12-03 07:30 CET"
    assert shown(deadline.wind_down_at_seconds) == "2026-12-03 07:20 CET"


def test_a_duration_is_as_long_in_a_night_in_which_clocks_change():
    assert shown(kept("2027-03-27 20:00", after_hours=11.5).at_seconds) == "2027-03-28 08:30 CEST"


def test_a_run_that_missed_its_night_is_over_and_does_not_work_through_the_day():
    late = kept("2026-12-03 08:00", due="2026-12-02 20:00", stop_at="07:30", time_zone=BERLIN)
    assert shown(late.at_seconds) == "2026-12-03 07:30 CET" and late.wind_down_at_seconds <= posix("2026-12-03 08:00")


def test_a_run_that_begins_late_in_its_night_has_the_rest_of_it():
    late = kept("2026-12-03 07:00", due="2026-12-02 20:00", stop_at="07:30", time_zone=BERLIN)
    assert shown(late.wind_down_at_seconds) == "2026-12-03 07:24 CET"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "a deadline is either a time of day (stop_at, such as 07:30) or a duration (after_hours, such as 11.5); "
             "found neither."),
        ({"stop_at": "07:30", "after_hours": 1.0}, "such as 11.5); found both."),
        ({"after_hours": 1.0, "time_zone": BERLIN}, "a deadline's time_zone belongs to stop_at; found 'Europe/Berlin'"),
        ({"stop_at": "07:30", "time_zone": "Europe/Bonn"}, "such as Europe/Berlin; found 'Europe/Bonn'."),
        ({"stop_at": "07:30", "time_zone": "Europe"}, "such as Europe/Berlin; found 'Europe'."),
        ({"stop_at": "07:30", "time_zone": "../etc"}, "such as Europe/Berlin; found '../etc'."),
    ],
)  # fmt: skip
def test_fields_that_do_not_go_together_are_one_clear_line(fields, message):
    with pytest.raises(RecipeError) as refused:
        kept(**fields)
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "fields",
    [{"stop_at": "24:00"}, {"stop_at": "7.30"}, {"after_hours": 0}, {"then": "go"}, {"stopat": "07:30"},
     {"stop_at": "07:30", "wind_down_minutes": 0}],
)  # fmt: skip
def test_a_bad_field_is_refused_by_the_form(fields):
    with pytest.raises(ValidationError):
        AskedDeadline(**fields)


def test_the_form_describes_every_field_and_knows_no_others():
    schema = AskedDeadline.model_json_schema()
    assert all(field.get("description") for field in schema["properties"].values())
    assert (schema["title"], schema["additionalProperties"]) == ("Deadline", False)


@pytest.mark.parametrize(
    ("text", "hours"), [("11h30m", 11.5), ("45m", 0.75), ("90s", 0.025), ("1.5h", 1.5), ("2h 5m 30s", 2 + 5.5 / 60)]
)
def test_durations(text, hours):
    assert hours_of(text) == pytest.approx(hours)


def test_the_command_line_asks_for_what_the_form_does():
    assert asked_deadline("07:30", BERLIN, None, "finish") == AskedDeadline(
        stop_at="07:30", time_zone=BERLIN, then="finish"
    )
    assert asked_deadline(None, None, "11h30m", None) == AskedDeadline(after_hours=11.5)
    assert asked_deadline(None, None, None, None) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stop-at", "25:00"], "--stop-at takes a time of day such as 07:30; found '25:00'."),
        (["--stop-after", "eleven"], "--stop-after takes a duration such as 11h30m, 45m or 90s; found 'eleven'."),
        (["--stop-after", "0h"], "the deadline's after_hours: Input should be greater than 0; found 0.0."),
        (["--then", "finish"], "a deadline is either a time of day"),
        (["--stop-at", "07:30", "--time-zone", "Mars"], "such as Europe/Berlin; found 'Mars'."),
    ],
)
def test_a_wrong_deadline_is_one_clear_line_before_anything_starts(capsys, arguments, message):
    assert main(["run", "smollm2-cpu", *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1


def test_a_time_and_a_duration_at_once_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["run", "smollm2-cpu", "--stop-at", "07:30", "--stop-after", "1h"])
    assert "not allowed with argument" in capsys.readouterr().err
