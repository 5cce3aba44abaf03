"""Compiled loops give the same bits wherever their arrays lie in memory."""

import ast
from pathlib import Path

import numpy as np
import pytest

import regard.native
from regard.native.additive.cpu import steps
from regard.native.additive.cpu.loops import constants

SOURCES = sorted(Path(regard.native.__path__[0]).rglob("*.py"))
DIM = 24


def names_in(node):
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}


def is_sum(node, names):
    """Return True for `total += ...` and `totals[0] += ...`; names: set anew in each round."""
    return isinstance(node, ast.AugAssign) and not names & names_in(node.target)


def find_loops_that_sum_and_write(source):
    """Return the lines of innermost `for` loops that sum, write an array and use another one."""
    found = []
    for loop in ast.walk(ast.parse(source)):
        if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name):
            continue
        inside = [node for statement in loop.body for node in ast.walk(statement)]
        if any(isinstance(node, ast.For | ast.While) for node in inside):
            continue  # LLVM vectorizes innermost loops alone
        index = loop.target.id
        new = {index}
        arrays, is_written = set(), False
        for node in inside:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    parts = target.elts if isinstance(target, ast.Tuple) else [target]
                    new |= {part.id for part in parts if isinstance(part, ast.Name)}
            if not isinstance(node, ast.Subscript) or isinstance(node.slice, ast.Slice):
                continue
            if index in names_in(node.slice):
                arrays.add(ast.unparse(node.value))
                is_written = is_written or isinstance(node.ctx, ast.Store)
        if is_written and len(arrays) > 1 and any(is_sum(node, new) for node in inside):
            found.append(loop.lineno)
    return found


def test_no_loop_sums_and_writes():
    assert len(SOURCES) > 20
    found = {}
    for path in SOURCES:
        for line in find_loops_that_sum_and_write(path.read_text()):
            found[str(path)] = line
    assert found == {}


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("total += v[i]; out[i] = v[i]", [1]),
        ("sums[0] += v[i]; out[i] = v[i]", [1]),
        ("out[i] += v[i]", []),
        ("total += v[i]", []),
        ("total += v[i]; v[i] = 0", []),
        ("x = v[i]; x -= 1; out[i] = x", []),
    ],
)
def test_loops_that_sum_and_write_are_found(body, lines):
    assert find_loops_that_sum_and_write(f"for i in range(n): {body}") == lines


def place(arrays, gap):
    """Return copies of the arrays in one buffer, `gap` numbers apart."""
    buffer = np.zeros(sum(x.size + gap for x in arrays), np.float32)
    copies, start = [], 0
    for array in arrays:
        copy = buffer[start : start + array.size].reshape(array.shape)
        copy[...] = array
        copies.append(copy)
        start += array.size + gap
    return copies


@pytest.mark.parametrize("seed", range(5))
def test_results_do_not_depend_on_addresses(seed):
    random = np.random.default_rng(seed)
    shapes = (DIM,), (3, DIM), (DIM,), (3, DIM), (3,)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    const = constants(arrays[0].dtype)
    results = []
    for gap in (1024, 0, 1, 4, 8):
        scores, residuals, v, keys, row = place(arrays[::-1], gap)
        steps._residuals(row, keys, v, 0, 3, False, const, residuals, scores)
        results.append((scores, residuals))
    for scores, residuals in results[1:]:
        np.testing.assert_array_equal(scores, results[0][0])
        np.testing.assert_array_equal(residuals, results[0][1])
