"""Reports as text and as HTML."""

import re

import pytest

from flnb.explore.report import Report, Result

REPORT = Report(
    "Mine beside numpy",
    (
        Result("add", True, 3, error=0.0, time=1.25, line="a.py:1: x + y", op="add"),
        Result("exp", False, 1, "off by <b>", error=0.01, time=0.5, inputs="float32[2]", line="a.py:2", op="exp"),
        Result("frees", False, 2, "leaks", ("a = alloc(64)", "free(a)")),
    ),
)


def test_text_has_a_line_for_each_check_failed_ones_first_and_details_of_failures():
    assert repr(REPORT).splitlines() == [
        "Mine beside numpy: 2 of 3 checks failed",
        "  exp    FAILED  off by <b>",
        "           inputs float32[2]",
        "           a.py:2",
        "  frees  FAILED  leaks",
        "           a = alloc(64)",
        "           free(a)",
        "  add    ok      3 calls       exact         time 1.25×",
    ]


def test_html_escapes_and_marks_by_more_than_colour():
    html = REPORT._repr_html_()
    assert "off by &lt;b&gt;" in html
    assert html.count("✗ failed") == 2
    assert html.rindex("✗ failed") < html.index("✓ ok")
    assert "var(--jp-error-color1" in html


def test_numbers_are_aligned_to_the_right_and_names_of_checks_are_not_wrapped():
    head, *_, row = REPORT._repr_html_().split("<tr>")[1:]
    assert {text: side for side, text in re.findall(r"text-align:(\w+)[^>]*>(\w*)<", head) if text} == {
        "check": "left", "calls": "right", "error": "right", "time": "right",
    }  # fmt: skip
    assert "white-space:nowrap'>add</span>" in row


def test_a_click_on_an_op_tells_the_dashboard():
    html = REPORT._repr_html_()
    assert html.count("flnb-select") == 2  # rows without an op have no button
    assert "{detail: {&quot;op&quot;: &quot;exp&quot;}}" in html


def test_quotes_in_the_name_of_an_op_run_no_script():
    name = 'x"}}); alert(1); //\\'
    html = Report("kit", (Result(name, True, 1, op=name),))._repr_html_()
    (script,) = re.findall(r"onclick='([^']*)'", html)
    assert r"&quot;op&quot;: &quot;x\&quot;}}); alert(1); //\\&quot;}" in script


def test_rows_are_found_by_name_failed_ones_first():
    assert REPORT["add"].passed
    assert REPORT.failed == REPORT.results[1:]
    with pytest.raises(KeyError, match="no check 'sub' in this report; it has add, exp, frees"):
        REPORT["sub"]
