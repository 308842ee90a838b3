"""Ratios in the documentation are said to be medians of ratios: quotients of rates elsewhere differ."""

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/reference/performance.md"


def test_the_page_says_what_its_ratios_are() -> None:
    introduction = PAGE.read_text(encoding="utf-8").partition("\n## ")[0]
    assert "the median of the ratios of the rounds" in " ".join(introduction.split())
