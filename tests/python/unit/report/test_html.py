import re
from html.parser import HTMLParser

import pytest
from tests.python.unit.report.sample_plan import certificate, sample_plan

from shardwright.plan import Plan
from shardwright.report.glyph import Cut, parse_printed
from shardwright.report.html import html_fragment, html_page
from shardwright.report.mesh_picture import mesh_picture

VOID = {"meta", "br", "link", "img"}
HOSTILE = '<script>alert("x")</script>&\'<b>'


class Checker(HTMLParser):
    """Every element is closed in order; collects tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without its beginning"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    return checker


@pytest.fixture
def plan() -> Plan:
    return sample_plan()


def test_page_and_fragment_are_well_formed(plan: Plan) -> None:
    assert "html" in parsed(html_page(plan)).tags
    assert "html" not in parsed(html_fragment(plan)).tags


def test_page_has_no_scripts_and_nothing_from_the_network(plan: Plan) -> None:
    page = html_page(plan)
    checker = parsed(page)
    assert not {"script", "link", "img", "iframe", "object", "embed", "use"} & set(checker.tags)
    names = {name for name, _ in checker.attributes}
    assert not {"src", "href", "xlink:href"} & names
    assert not any(name.startswith("on") for name in names)
    assert not re.search(r"https?:|url\(|@import", page)


def test_names_from_the_model_are_escaped() -> None:
    plan = sample_plan(prefix=HOSTILE, certificate=certificate(peak_node=HOSTILE))
    checker = parsed(html_page(plan))
    assert "script" not in checker.tags
    assert HOSTILE + ".0-2" in checker.text


def test_picture_shows_what_the_text_shows(plan: Plan) -> None:
    text = parsed(html_page(plan)).text
    for piece in (
        "2.500 ms per step", "optimal", "data parallel", "ZeRO-2", "blocks.0-2",
        "3 layers alike", "S10 R", "all-reduce (6 x)", "device memory 16.0 GiB",
        "Memory per device over the step", "P0 \u2192",
    ):  # fmt: skip
        assert piece in text


def test_page_follows_light_and_dark(plan: Plan) -> None:
    page = html_page(plan)
    assert "prefers-color-scheme:dark" in page
    assert 'data-jp-theme-light="false"' in page


def test_mesh_shows_every_device_of_a_small_mesh() -> None:
    checker = parsed(mesh_picture((2, 4), range(8), 4))
    assert [a for a in checker.attributes if a == ("class", "device")] == [("class", "device")] * 8
    assert [a for a in checker.attributes if a == ("class", "host")] == [("class", "host")] * 2
    assert "axis 0: 2" in checker.text
    assert "axis 1: 4" in checker.text


def test_large_mesh_is_cut_short_and_says_so() -> None:
    checker = parsed(mesh_picture((64, 64), range(4096), 8))
    assert "4096 devices in all" in checker.text
    assert checker.attributes.count(("class", "device")) == 256


def test_printed_specs_are_taken_apart() -> None:
    assert parse_printed("S10 R P2(max)").dims == ((Cut((1, 0)),), (Cut(()),))
    assert parse_printed("S10 R P2(max)").partial == (2,)
    assert parse_printed("{R,S1,R} R").dims == (
        (Cut(()), Cut((1,)), Cut(())),
        (Cut(()),),
    )
    assert parse_printed("").dims == ()
