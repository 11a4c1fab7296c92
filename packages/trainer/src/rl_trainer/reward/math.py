"""Whether a response's final answer equals a ground truth in mathematics; math-verify parses and compares.

It parses what stands between delimiters. A ground truth, or the contents of a box, is one answer without
them: it gets them here, so that nothing of it is left unread.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

LIMIT_S = 5  # for reading one text and for one comparison
_LONGEST = 2000  # characters of an answer; longer ones are compared as texts
_DEEPEST = 30  # brackets in one another; the parser's time grows with their number's power
_DELIMITED = re.compile(r"(?<!\\)\$|\\\(|\\\[")
_WHOLE = re.compile(r"\s*(?:\$\$(.+)\$\$|\$([^$]+)\$|\\\((.+)\\\)|\\\[(.+)\\\])\s*\.?\s*", re.DOTALL)
_ANNOUNCED = re.compile(r"answer(?:\s+is)?\s*[:=]?\s*(?:\*\*)?\s*(\S[^\n]*)", re.IGNORECASE)
_WORDS = re.compile(r"[^\W\d_]{2,}(?:[\s.'-]+[^\W\d_]+)*\.?")
_PROSE = re.compile(r"(?<!\\)\b[A-Za-z]{2,}\s+[A-Za-z]{2,}")
_BASE = re.compile(r"\d_\{?(\d+)\}?")
_FUNCTIONS = {"pi", "sin", "cos", "tan", "log", "ln", "exp", "sqrt", "inf", "infinity"}
# How answers are written in plain text; math-verify reads LaTeX.
_PLAIN = (
    (re.compile(r"\\(?:left|right)(?=[\s\[\](){}|.\\])\.?"), ""),
    (re.compile(r"\\[dt]frac"), r"\\frac"),
    (re.compile(r"\\(?:,|!|;|:|quad|qquad)(?![A-Za-z])"), ""),
    (re.compile("\u2212"), "-"), (re.compile("π"), r"\\pi "), (re.compile("∞"), r"\\infty "),
    (re.compile("≤|<="), r"\\le "), (re.compile("≥|>="), r"\\ge "), (re.compile("\u00d7"), r"\\times "),
    (re.compile("√\\(([^()]+)\\)"), r"\\sqrt{\1}"), (re.compile(r"√(\w+)"), r"\\sqrt{\1}"),
    (re.compile(r"\\varnothing"), r"\\emptyset "),
    (re.compile("\u222a"), r"\\cup "), (re.compile("°"), r"^\\circ "),
    (re.compile(r"(?<![\\A-Za-z])(pi|infinity|sqrt)(?![A-Za-z])"), r"\\\1"),
    (re.compile(r"\\infinity"), r"\\infty"), (re.compile(r"\\sqrt\(([^()]+)\)"), r"\\sqrt{\1}"),
)  # fmt: skip


def same_answer(response: str, truth: str) -> bool:
    """Whether the response's final answer is mathematically equal to the ground truth."""
    gold_text = _bare(boxed(truth) or truth)
    boxed_answer = boxed(response)
    answer_text = _bare(boxed_answer if boxed_answer is not None else announced(response))
    if not gold_text or not (answer_text or response.strip()):
        return False
    if answer_text is not None and _plain_text(gold_text) == _plain_text(answer_text):
        return True
    if answer_text is not None and (_has_other_base(gold_text, answer_text) or not answer_text):
        return False
    answer = _read(answer_text) if answer_text is not None else _extract(response)
    return _equal(_read(gold_text), answer)


def boxed(text: str) -> str | None:
    """The contents of the last box whose braces close, or None."""
    for start in reversed([found.end() for found in re.finditer(r"\\f?boxed\s*\{", text)]):
        depth = 1
        for place in range(start, min(len(text), start + 100_000)):
            depth += {"{": 1, "}": -1}.get(text[place], 0) * (text[place - 1] != "\\")
            if not depth:
                return text[start:place]
    return None


def announced(response: str) -> str | None:
    """What stands after the last "answer is" or "answer:", or a response that is nothing but an answer.

    None where the text has delimiters or is prose: math-verify then looks for the answer.
    """
    text = response.strip()
    if whole := _WHOLE.fullmatch(text):
        return next(part for part in whole.groups() if part is not None)
    if _DELIMITED.search(text):
        return None
    if lines := _ANNOUNCED.findall(text):
        return str(lines[-1])
    return text if "\n" not in text and not _PROSE.search(text) else None


def _bare(text: str | None) -> str | None:
    """An answer without delimiters around it, and without the full stop or the stars that end a sentence."""
    if text is None:
        return None
    if whole := _WHOLE.fullmatch(text):
        text = next(part for part in whole.groups() if part is not None)
    return text.strip().strip("*").rstrip(".").strip()


def _plain_text(text: str) -> str:
    """A text without what only changes its looks."""
    text = re.sub(r"\\(?:text|mathrm|textbf|mathbf|mbox)\s*\{([^{}]*)\}", r"\1", text)
    return re.sub(
        r"[\s$]|\\[,!;]|\\(?:left|right)(?![a-z])", "", re.sub(r"\\[dt]frac", r"\\frac", text)
    ).casefold()


def _has_other_base(first: str, second: str) -> bool:
    """Whether both are numbers with a base, 12_7, and the bases differ; math-verify leaves them out."""
    bases = [_BASE.findall(text) for text in (first, second)]
    return all(bases) and bases[0] != bases[1]


def _limit() -> int | None:
    """math-verify's limits are signals, which only a main thread gets."""
    return LIMIT_S if threading.current_thread() is threading.main_thread() else None


def _read(text: str) -> list[Any]:
    """One answer without delimiters."""
    from math_verify import LatexExtractionConfig, parse

    if len(text) > _LONGEST or _depth(text) > _DEEPEST:
        return []
    words = text.strip("() ")
    if _WORDS.fullmatch(words) and words.lower() not in _FUNCTIONS:
        return [words.rstrip(".").casefold()]  # else its letters would be factors, in any order
    for pattern, latex in _PLAIN:
        text = pattern.sub(latex, text)
    text = re.sub(r"(?<!\\)\$", r"\\$", text)
    return _small(parse(f"${text}$", [LatexExtractionConfig()], parsing_timeout=_limit()))


def _depth(text: str) -> int:
    """How deep brackets stand in one another."""
    return max(accumulate((char in "([{") - (char in ")]}") for char in text), default=0)


def _extract(response: str) -> list[Any]:
    """The answer that math-verify finds in a text."""
    from math_verify import parse

    return _small(parse(response[-4 * _LONGEST :], parsing_timeout=_limit()))


def _equal(gold: list[Any], answer: list[Any]) -> bool:
    from math_verify import verify

    comparable = [[one for one in found if not isinstance(one, str)] or found for found in (gold, answer)]
    return bool(verify(*comparable, allow_set_relation_comp=True, timeout_seconds=_limit()))


def _small(found: list[Any]) -> list[Any]:
    """Of what was read only the text, where its value has too many digits to be worked out."""
    return [one for one in found if isinstance(one, str) or not _huge(one)]


def _huge(expression: Any) -> bool:
    """Whether a power or a factorial in it would take longer than any limit, and not be interruptible."""
    return any(_large(node.args[-1]) for node in _powers(expression))


def _powers(expression: Any) -> Iterator[Any]:
    """The powers and factorials in an expression, a matrix or a set."""
    if type(expression).__name__ in ("Pow", "factorial"):
        yield expression
    for part in expression.flat() if hasattr(expression, "flat") else getattr(expression, "args", ()):
        yield from _powers(part)


def _large(exponent: Any) -> bool:
    """Whether an exponent is a number above 10,000, or one that can't be worked out cheaply."""
    if exponent.free_symbols:
        return False
    try:
        cheap = all(abs(float(power.args[-1])) < 300 for power in _powers(exponent))
        return not cheap or abs(float(exponent.evalf(5))) > 10_000
    except (TypeError, OverflowError, ValueError, AttributeError):
        return True
