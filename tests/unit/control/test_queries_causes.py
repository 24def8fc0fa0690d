"""Tasks with the same trouble are one line of `flumeng status`."""

from __future__ import annotations

from flumeng.control.queries.causes import grouped

WAIT, MEND = "wait", "fix the cause"


def cause(what: str, advice: str, about: str = "") -> dict[str, str]:
    return {"what": what, "advice": advice, "about": about or what}


def task(name: str, trouble: str, advice: str = WAIT) -> dict[str, str]:
    return cause(f"task {name} is {trouble}", advice, f"task {name}")


def test_tasks_with_the_same_problem_are_counted_and_three_are_named() -> None:
    lost = "down: node n1 is not live"
    causes = [
        cause("node n1 is not live", "start it"),
        *(task(f"web/collect.{number}", lost) for number in range(5)),
        task("app/collect.0", "starting"),
        task("db/collect.0", "starting"),
    ]
    assert grouped(causes) == [
        ("node n1 is not live", "start it"),
        (
            "5 tasks are down: node n1 is not live (web/collect.0, web/collect.1, web/collect.2 "
            "and 2 more)",
            WAIT,
        ),
        ("2 tasks are starting (app/collect.0, db/collect.0)", WAIT),
    ]


def test_tasks_with_different_problems_have_a_line_each() -> None:
    causes = [
        task("web/collect.0", "failed: no table a", MEND),
        task("web/collect.1", "failed: no table b", MEND),
        task("web/collect.2", "starting"),
    ]
    assert [what for what, _ in grouped(causes)] == [one["what"] for one in causes]


def test_problem_without_a_task_keeps_its_text() -> None:
    runs = "task web/collect.0 has failed several times in a row, and has not run"
    causes = [cause(runs, WAIT, "task web/collect.0"), cause(runs, WAIT, "task web/collect.0")]
    assert grouped(causes) == [(runs, WAIT)]
