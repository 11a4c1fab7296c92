"""Submissions, assertions, and whether they pass, for `code_tests`."""

# ruff: noqa: E501 - a row of the table stays a row
from __future__ import annotations

SQUARE = "assert square(3) == 9\nassert square(-2) == 4\nassert square(0) == 0"
LISTS = "assert evens([1, 2, 4]) == [2, 4]\nassert evens([]) == []"
NEAR = "assert abs(root(2) - 1.41421356) < 1e-6\nassert abs(root(9) - 3) < 1e-6"
STACK = "s = Stack()\ns.push(1)\ns.push(2)\nassert s.pop() == 2\nassert len(s) == 1\nassert not s.empty()"
UNIT = (
    "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n"
    "        self.assertEqual(square(3), 9)\nunittest.main()"
)
RAISES = (
    "try:\n    check(-1)\n    assert False, 'no error'\nexcept ValueError:\n    pass\nassert check(1) == 1"
)
ROWS = "rows = [3, 1, 2]\nassert ordered(rows) == sorted(rows)\nassert ordered([5, 4]) == [4, 5]"
EQUAL = "class Any:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"

# Name: code, assertions, whether they hold.
HONEST: dict[str, tuple[str, str, bool]] = {
    "right": ("def square(x):\n    return x * x", SQUARE, True),
    "wrong": ("def square(x):\n    return x + x", SQUARE, False),
    "lambda": ("square = lambda x: x ** 2", SQUARE, True),
    "missing": ("def cube(x):\n    return x ** 3", SQUARE, False),
    "syntax": ("def square(x) return x", SQUARE, False),
    "raises": ("def square(x):\n    raise RuntimeError", SQUARE, False),
    "raises at the start": ("def square(x):\n    return x * x\n1 / 0", SQUARE, False),
    "main block": (
        "def square(x):\n    return x * x\nif __name__ == '__main__':\n    print(square(int(input())))",
        SQUARE,
        True,
    ),
    "much output": ("print('x' * 5_000_000)\ndef square(x):\n    print('y' * 100_000)\n    return x * x", SQUARE, True),
    "list": ("def evens(xs):\n    return [x for x in xs if x % 2 == 0]", LISTS, True),
    "tuple for a list": ("def evens(xs):\n    return tuple(x for x in xs if x % 2 == 0)", LISTS, False),
    "None for a list": ("def evens(xs):\n    pass", LISTS, False),
    "float": ("import math\ndef root(x):\n    return math.sqrt(x)", NEAR, True),
    "numpy": ("import numpy as np\ndef root(x):\n    return np.sqrt(x)", NEAR, True),
    "coarse": ("def root(x):\n    return round(x ** 0.5, 2)", NEAR, False),
    "class": (
        "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
        "    def pop(self): return self.items.pop()\n    def __len__(self): return len(self.items)\n"
        "    def empty(self): return not self.items",
        STACK,
        True,
    ),
    "wrong class": (
        "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
        "    def pop(self): return self.items.pop(0)\n    def __len__(self): return len(self.items)\n"
        "    def empty(self): return not self.items",
        STACK,
        False,
    ),
    "unittest": ("def square(x):\n    return x * x", UNIT, True),
    "unittest fails": ("def square(x):\n    return x", UNIT, False),
    "raises as asked": (
        "def check(x):\n    if x < 0: raise ValueError('negative')\n    return x",
        RAISES,
        True,
    ),
    "own exception": (
        "class Bad(ValueError): pass\ndef check(x):\n    if x < 0: raise Bad('negative')\n    return x",
        RAISES + "\ntry:\n    check(-1)\n    assert False\nexcept Bad as error:\n    assert str(error) == 'negative'",
        True,
    ),
    "in place": ("def order(xs):\n    xs.sort()", "a = [3, 1]\norder(a)\nassert a == [1, 3]", True),
    "not in place": ("def order(xs):\n    sorted(xs)", "a = [3, 1]\norder(a)\nassert a == [1, 3]", False),
    "function as argument": ("def twice(f, x):\n    return f(f(x))", "assert twice(lambda x: x + 1, 1) == 3", True),
    "candidate": ("def square(x):\n    return x * x", "def check(f):\n    assert f(3) == 9\ncheck(square)", True),
    "generator": (
        "def count():\n    n = 0\n    while True:\n        yield n\n        n += 1",
        "from itertools import islice\nassert list(islice(count(), 3)) == [0, 1, 2]",
        True,
    ),
    "coroutine": ("async def get():\n    return 5", "import asyncio\nassert asyncio.run(get()) == 5", True),
    "name of a built-in": ("def sum(a, b):\n    return a + b", "assert sum(1, 2) == 3", True),
    "values of many kinds": (
        "from collections import Counter\nfrom fractions import Fraction\nimport datetime\n"
        "def f():\n    return {'a': (1, {2}), 'b': Counter('aab'), 'c': Fraction(1, 3), 'd': 1 << 200, "
        "'e': datetime.date(2020, 1, 2), 'f': b'x', 'g': None, 'h': 1j}",
        "from collections import Counter\nfrom fractions import Fraction\nimport datetime\n"
        "assert f() == {'a': (1, {2}), 'b': Counter('aab'), 'c': Fraction(1, 3), 'd': 1 << 200, "
        "'e': datetime.date(2020, 1, 2), 'f': b'x', 'g': None, 'h': 1j}",
        True,
    ),
    "own equality": (
        "class P:\n    def __init__(self, x): self.x = x\n    def __eq__(self, other): return self.x == other.x",
        "assert P(1) == P(1)\nassert P(1) != P(2)\nassert P(3).x == 3",
        True,
    ),
    "names it imported": ("import math\nfrom math import sqrt\ndef f(x):\n    return sqrt(x)",
                          "assert math.isclose(f(4), sqrt(4))", True),
    "without end": ("def square(x):\n    while True: pass", SQUARE, False),
    "too much memory": ("def square(x):\n    return len(bytearray(1 << 40))", SQUARE, False),
}  # fmt: skip

CHEATS: dict[str, tuple[str, str]] = {
    "leaves at once": ("import os\nos._exit(0)", SQUARE),
    "leaves politely": ("import sys\nsys.exit(0)", SQUARE),
    "leaves in the call": ("import os\ndef square(x):\n    os._exit(0)", SQUARE),
    "exits in the call": ("def square(x):\n    raise SystemExit(0)", SQUARE),
    "says it passed": ("print('passed')\nimport os\nos._exit(0)", SQUARE),
    "equal to all": (EQUAL + "def square(x):\n    return Any()", SQUARE),
    "a list of what equals all": (EQUAL + "def evens(x):\n    return [Any()] * len(x)", LISTS),
    "a list that equals all": (
        "class L(list):\n    def __eq__(self, other): return True\ndef evens(x):\n    return L()", LISTS),
    "a number that equals all": (
        "class N(int):\n    def __eq__(self, other): return True\ndef square(x):\n    return N(1)", SQUARE),
    "near to all": (
        "class N:\n    def __sub__(self, other): return 0.0\n    def __abs__(self): return 0.0\n"
        "def root(x):\n    return N()", NEAR),
    "smaller than all": (
        "class N(float):\n    def __sub__(self, other): return self\n    def __abs__(self): return self\n"
        "    def __lt__(self, other): return True\ndef root(x):\n    return N(7)", NEAR),
    "not a number": ("def root(x):\n    return float('nan')", NEAR),
    "hook for exceptions": ("import sys\nsys.excepthook = lambda *e: print('passed')\ndef square(x): 1 / 0", SQUARE),
    "at exit": ("import atexit, os\natexit.register(lambda: os._exit(0))", SQUARE),
    "no assertion errors": (
        "import builtins\nclass Quiet(Exception): pass\nbuiltins.AssertionError = Quiet\ndef square(x): return 1",
        SQUARE),
    "built-in abs": ("import builtins\nabs = lambda x: 0\nbuiltins.abs = abs\ndef root(x): return 7", NEAR),
    "built-in sorted": ("sorted = lambda x: x\ndef ordered(rows): return rows", ROWS),
    "own argument emptied": ("def ordered(rows):\n    rows.clear()\n    return []", ROWS),
    "command line": (
        "import sys, re\ntext = ' '.join(sys.orig_argv) + open('/proc/self/cmdline').read()\n"
        "table = dict(re.findall(r'square\\((.+?)\\) == (\\d+)', text))\ndef square(x): return int(table[str(x)])",
        SQUARE),
    "process table": (
        "import os, re\ntext = ''\nfor p in os.listdir('/proc'):\n    try: text += open(f'/proc/{p}/cmdline').read()\n"
        "    except OSError: pass\ntable = dict(re.findall(r'square\\((.+?)\\) == (\\d+)', text))\n"
        "def square(x): return int(table[str(x)])", SQUARE),
    "memory of others": (
        "import os, re\ntext = b''\nfor p in os.listdir('/proc'):\n    try:\n        for m in open(f'/proc/{p}/maps'):\n"
        "            if '[heap]' in m:\n                a, b = (int(v, 16) for v in m.split()[0].split('-'))\n"
        "                f = open(f'/proc/{p}/mem', 'rb'); f.seek(a); text += f.read(b - a)\n    except (OSError, ValueError): pass\n"
        "table = dict(re.findall(rb'assert square\\((.+?)\\) == (\\d+)', text))\n"
        "def square(x): return int(table[str(x).encode()])", SQUARE),
    "frames": (
        "import sys\ndef square(x):\n    f = sys._getframe()\n    while f:\n        for v in f.f_locals.values():\n"
        "            if isinstance(v, str) and 'assert' in v: return 9\n        f = f.f_back", SQUARE),
    "garbage collector": (
        "import gc\ndef square(x):\n    texts = [o for o in gc.get_objects() if isinstance(o, str)]\n"
        "    return 9 if any('square(3)' in t for t in texts) else None", SQUARE),
    "descriptors": (
        "import os\nfor fd in range(3, 30):\n    try: os.write(fd, b'passed')\n    except OSError: pass\nos._exit(0)",
        SQUARE),
    "false answers": (
        "import os\nfor fd in range(3, 30):\n    try: os.write(fd, b'{\"names\": []}\\n' + b'{\"value\": true}\\n' * 9)\n"
        "    except OSError: pass\ndef square(x): return 1", SQUARE),
    "ends the loop": ("def square(x): raise StopIteration", "assert all(map(square, [1, 2]))"),
    "forks": ("import os\nif os.fork() == 0:\n    os._exit(0)\ndef square(x): return 1", SQUARE),
    "kills its parent": ("import os\nfor p in range(1, 9):\n    try: os.kill(p, 9)\n    except OSError: pass\n", SQUARE),
    "daemon": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        print('passed')\n"
        "        time.sleep(60)\n    os._exit(0)\ndef square(x): return 1", SQUARE),
    "unittest without asserting": (
        "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\nunittest.main = lambda: None\n"
        "def square(x): return 1", UNIT),
    "in all": (EQUAL.replace("__eq__", "__contains__") + "def evens(x): return Any()", "assert 2 in evens([1, 2])\n" + LISTS),
    "files of the tests": (
        "import glob, re\ntext = ''\nfor p in glob.glob('/tmp/**', recursive=True) + glob.glob('./**'):\n"
        "    try: text += open(p).read()\n    except (OSError, ValueError): pass\n"
        "table = dict(re.findall(r'assert square\\((.+?)\\) == (\\d+)', text))\ndef square(x): return int(table[str(x)])",
        SQUARE),
}  # fmt: skip
