"""Responses, ground truths, and whether the response is right, for `math_verify`."""

# ruff: noqa: E501, RUF001 - a row of the table stays a row
from __future__ import annotations

# Each line: ground truth, right answers, wrong answers that look near. They are boxed by the test unless they
# have a box or a sentence of their own in RESPONSES.
ANSWERS: list[tuple[str, list[str], list[str]]] = [
    (r"2\pi", [r"2\pi", r"\pi\cdot 2", r"2\,\pi"], ["2", r"\pi", r"2\pi^2"]),
    (r"3\sqrt{13}", [r"3\sqrt{13}", r"\sqrt{117}"], [r"3\sqrt{3}", r"13\sqrt{3}", "3"]),
    (r"\frac{1}{2}", [r"\frac12", "0.5", "1/2", r"\dfrac{1}{2}", r"50\%", r"\frac{2}{4}"], ["2", r"\frac{1}{3}", "1", "5"]),
    (r"-\frac{3}{4}", ["-0.75", r"\frac{-3}{4}", "-3/4"], [r"\frac{3}{4}", "0.75", r"-\frac{4}{3}"]),
    (r"\frac{\sqrt{3}}{2}", [r"\frac{\sqrt 3}{2}", r"\sqrt{\frac{3}{4}}"], [r"\frac{\sqrt{2}}{3}", r"\frac{3}{2}"]),
    (r"[2,5)", ["[2,5)", r"\left[2,5\right)", r"2 \le x < 5"], ["(2,5)", "[2,5]", "(2,5]", "[2,6)"]),
    (r"(-\infty,3]", [r"(-\infty, 3]", r"x \le 3", r"\left(-\infty,3\right]"], [r"(-\infty,3)", "3", r"[3,\infty)"]),
    (r"(-\infty,1)\cup(2,\infty)", [r"(-\infty, 1) \cup (2, \infty)"], [r"(-\infty,1]\cup[2,\infty)", "(1,2)"]),
    ("(1,2)", ["(1, 2)", r"\left(1,2\right)"], ["(2,1)", "[1,2]", "(1,3)", "12"]),
    ("(1,2,3)", ["(1, 2, 3)"], ["(1,3,2)", "(1,2)", "(1,2,4)"]),
    (r"\{1,2,3\}", [r"\{3,2,1\}", "1, 2, 3"], [r"\{1,2\}", r"\{1,2,4\}", r"\{1,2,3,4\}"]),
    ("1,-2", ["-2,1", r"\{-2, 1\}"], ["1,2", "1", "-2"]),
    (r"x^2+3x-1", ["3x + x^2 - 1", r"x^{2}+3x-1"], ["x^2+3x+1", "x^2-3x-1", "3x-1"]),
    (r"(x+1)^2", ["x^2+2x+1", "(1+x)(x+1)"], ["x^2+1", "(x-1)^2"]),
    ("2^{10}", ["1024", "4^5", "2^{10}"], ["20", "210", "1023"]),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
     [r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"],
     [r"\begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \\ 3 & 5 \end{pmatrix}"]),
    (r"\begin{pmatrix} -7 \\ 16 \end{pmatrix}", [r"\begin{pmatrix} -7 \\ 16 \end{pmatrix}"],
     [r"\begin{pmatrix} 7 \\ 16 \end{pmatrix}", r"\begin{pmatrix} 16 \\ -7 \end{pmatrix}"]),
    ("x=3", ["3", "x = 3", "x=3.0"], ["x=-3", "4"]),
    ("3", ["x = 3", "x=1+2=3", "3.0", "3."], ["x=30", "-3", "0.3", "13"]),
    ("y=2x+1", ["y = 2x + 1", "y=1+2x"], ["y=2x-1", "y=x+1"]),
    (r"x \ge 4", [r"x \geq 4", r"[4,\infty)", r"4 \le x"], ["x > 4", r"x \le 4"]),
    ("1<x<3", ["(1,3)", "1 < x < 3"], [r"1 \le x \le 3", "1<x<4"]),
    (r"10\%", [r"10\%", "10", "0.1", "10%", r"\frac{1}{10}"], [r"1\%", "0.01", r"100\%"]),
    ("1,000", ["1000", "1{,}000", r"1,\!000", "1000.0"], ["1", "100", "10,000", "1,001"]),
    ("1234567", ["1,234,567", "1{,}234{,}567"], ["1,234,568", "1,234"]),
    ("-3", ["-3", "−3"], ["3"]),
    (r"2\frac{1}{2}", ["2.5", r"\frac{5}{2}", "5/2"], [r"\frac{2}{2}", "1", "21/2"]),
    (r"5\text{ cm}", ["5", "5 cm", r"5\,\text{cm}", r"5\mathrm{~cm}"], ["6 cm", "50"]),
    ("10 cm", [r"10\text{ cm}", "10"], ["100 cm", "1"]),
    (r"60^\circ", ["60", r"60^{\circ}", "60°"], ["6", "30"]),
    (r"\$5", ["5", r"\$5", "$5", "5.00"], ["50", "0.5"]),
    (r"3+4i", ["4i+3", "3 + 4i"], ["3-4i", "4+3i", "7"]),
    (r"\log_2 3", [r"\log_{2}{3}", r"\frac{\ln 3}{\ln 2}"], [r"\log_3 2", r"\log 3"]),
    (r"\text{(C)}", ["C", r"\text{C}", "(C)"], ["B", "(D)"]),
    (r"\text{Evelyn}", ["Evelyn", r"\text{Evelyn}"], ["Nyvele", "Evan"]),
    ("east", [r"\text{east}", "East"], ["seat", "west"]),
    (r"\emptyset", [r"\emptyset", r"\varnothing"], ["0", r"\{0\}"]),
    (r"12_7", ["12_7", "12_{7}"], ["12_8", "13_7"]),
    (r"\infty", [r"\infty"], [r"-\infty", "0"]),
    (r"10^{100}", ["10^{100}"], ["10^{99}", "100^{10}"]),
    (r"9^{9^{9}}", [r"9^{9^{9}}"], ["9", r"9^{9^{8}}", "729"]),
    (r"123456789012345678901", ["123456789012345678901"], ["123456789012345678900"]),
    ("0.333333", [r"\frac{1}{3}"], ["0.3", "0.34"]),
    (r"1.5\times 10^{3}", ["1500", r"1.5 \cdot 10^3"], ["1.5", "150"]),
    (r"\frac{\pi}{6}", [r"\pi/6", r"\frac{1}{6}\pi"], [r"\frac{\pi}{3}", r"\frac16"]),
    (r"\sqrt[3]{4}", [r"4^{1/3}", r"2^{2/3}"], [r"\sqrt{4}", r"3\sqrt{4}"]),
    (r"a^2-b^2", ["(a-b)(a+b)", "-b^2+a^2"], ["b^2-a^2", "(a-b)^2"]),
    ("0", ["0", "0.0"], ["1", "-1", "O"]),
]  # fmt: skip

RESPONSES: list[tuple[str, str, bool]] = [
    (r"So \boxed{3}. No: \boxed{4}.", "4", True),
    (r"So \boxed{3}. No: \boxed{4}.", "3", False),
    (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{\sqrt{2}}{2}", True),
    (r"We find $x=3$, then $y=5$. The answer is $\boxed{x+y=8}$.", "8", True),
    (r"The final answer is $2\pi$. I hope it is correct.", r"2\pi", True),
    (r"The final answer is $2\pi$. I hope it is correct.", "2", False),
    (r"The answer is 2\pi", r"2\pi", True),
    (r"The answer is 2\pi", "2", False),
    ("The answer is 42.", "42", True),
    ("The answer is 42.", "4", False),
    ("Answer: 1,007", "1007", True),
    ("**Answer:** 3/4", "0.75", True),
    (r"2\pi", r"2\pi", True),
    (r"2\pi", "2", False),
    (r"$\frac{1}{2}$", "0.5", True),
    (r"\[x = 7\]", "7", True),
    (r"\(\sqrt{2}\)", "1.41", False),
    (r"\boxed{7", "7", False),
    (r"\boxed{}", "7", False),
    (r"\boxed{}", "0", False),
    ("", "7", False),
    ("   \n", "0", False),
    ("I don't know.", "7", False),
    ("no answer", "0", False),
    (r"\boxed{\text{no answer}}", "0", False),
    (r"\boxed{8}", r"\boxed{8}", True),
    (r"\boxed{8}", r"$8$", True),
    (r"\boxed{9}", r"$8$", False),
    (r"\boxed{\boxed{8}}", "8", True),
    (r"\boxed{2, 3}", "3", False),
    (r"\boxed{2 \text{ or } 3}", "2", False),
    (r"\boxed{" + "(" * 500 + "}", "7", False),
    (r"\boxed{" + "9" * 5000 + "}", "9", False),
    (r"\boxed{9^{9^{9^{9}}}}", "7", False),
    (r"\boxed{100000000!}", "7", False),
    (r"\boxed{\frac{1}{0}}", "7", False),
    (r"\boxed{$5$}", "5", True),
    (r"We get \boxed{x \in [1,2]}", "[1,2]", True),
    (r"We get \boxed{x \in (1,2)}", "[1,2]", False),
    (r"<think>maybe \boxed{1}</think> It is \boxed{12}", "12", True),
]

PAIRS: list[tuple[str, str, bool]] = [
    *(
        (rf"Thus the result is \boxed{{{text}}}.", truth, True)
        for truth, right, _ in ANSWERS
        for text in right
    ),
    *(
        (rf"Thus the result is \boxed{{{text}}}.", truth, False)
        for truth, _, wrong in ANSWERS
        for text in wrong
    ),
    *RESPONSES,
]
