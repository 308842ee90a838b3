"""The words of the five papers as digests of every three in a row, to find quotes without the texts, which are no
part of this project: ``python tests/helpers/paper_words.py FOLDER`` writes the file from the texts NNN_*.txt, in
the order of the registry, and checks that every quote is in them verbatim.
"""

import hashlib
import sys
from pathlib import Path

from mlhpc.papers.registry import registry

FILE = Path(__file__).parents[1] / "data/papers/words.bin"
SIZE = 4
"""Bytes of a digest: among 50,000 of them one of 86,000 wrong windows is found by chance."""


def words(text: str) -> list[str]:
    """Without white space and the punctuation around them."""
    return [word for word in (each.strip(".,;:()[]★*\\") for each in text.split()) if word]


def windows(paper: str, text: str) -> set[bytes]:
    """The digests of every three words of ``text`` in a row."""
    parts = words(text)
    return {
        hashlib.blake2b(" ".join([paper, *parts[n : n + 3]]).encode(), digest_size=SIZE).digest()
        for n in range(max(1, len(parts) - 2))
    }


def known() -> set[bytes]:
    """The digests of the papers."""
    data = FILE.read_bytes()
    return {data[n : n + SIZE] for n in range(0, len(data), SIZE)}


def quotes() -> list[tuple[str, str]]:
    """All quotes of the registry with their paper."""
    return [
        (figure.paper, quote)
        for figure in registry().figure
        for quote in (*figure.quotes, *(number.quote for number in figure.number))
    ]


def main() -> None:
    texts = dict(zip(registry().papers, sorted(Path(sys.argv[1]).glob("0*.txt")), strict=True))
    plain = {paper: " ".join(path.read_text().split()) for paper, path in texts.items()}
    missing = [(paper, quote) for paper, quote in quotes() if " ".join(quote.split()) not in plain[paper]]
    for paper, quote in missing:
        print(f"not in {texts[paper].name}: {quote}")
    digests = set().union(*(windows(paper, text) for paper, text in plain.items()))
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_bytes(b"".join(sorted(digests)))
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
