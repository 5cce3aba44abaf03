"""Private APIs of numba: each wrapper does what its docstring says."""

import ctypes

import numba
from llvmlite import ir
from numba import types
from numba.core.caching import NullCache
from numba.extending import intrinsic

from regard.compat import numba as compat


def test_a_declared_function_is_declared_once_and_called():
    def emit(context, x):
        def build(context, builder, signature, arguments):
            of = ir.FunctionType(ir.DoubleType(), [ir.DoubleType()])
            first = compat.declare_function(builder.module, of, "llvm.fabs.f64")
            assert compat.declare_function(builder.module, of, "llvm.fabs.f64") is first
            return builder.call(first, arguments)

        return types.float64(types.float64), build

    absolute = intrinsic(emit)

    def function(x):
        return absolute(x)

    assert numba.njit(function)(-2.5) == 2.5


def test_a_c_function_is_compiled_by_its_method_compile():
    counter = (ctypes.c_int64 * 1)()

    def add_two(address):
        numba.carray(address, 1, types.int64)[0] += 2

    function = compat.build_c_function(
        add_two, types.void(types.CPointer(types.int64)), {"nogil": True}
    )
    compat.set_cache(function, NullCache())
    function.compile()
    function.ctypes(counter)
    assert counter[0] == 2


def test_the_cache_is_read_before_anything_is_compiled():
    signatures = []

    class Cache(NullCache):
        def load_overload(self, sig, target_context):
            signatures.append(sig)

    function = numba.njit(lambda x: x + 1)
    compat.set_cache(function, Cache())
    assert function(1) == 2
    assert len(signatures) == 1
    assert isinstance(function, compat.Dispatcher)


def test_the_file_cache_has_the_members_that_the_package_uses(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    cache = compat.FunctionCache(test_the_file_cache_has_the_members_that_the_package_uses)
    assert str(tmp_path) in cache.cache_path
    assert cache._impl.filename_base
    assert issubclass(compat.IndexDataCacheFile, object)
    assert isinstance(compat.dumps((1, "a")), bytes)


def test_entry_points_have_copies_of_their_callees():
    @numba.njit
    def callee(x):
        return x + 1.5

    def entry(x):
        return callee(x)

    compiled = compat.build_c_function(entry, types.float64(types.float64), {"forceinline": False})
    compiled.compile()
    linkages = {
        function.name: function.linkage.name
        for function in compiled._library._final_module.functions
        if not function.is_declaration
    }
    assert any("entry" in name for name in linkages)
    # Weak symbols ("linkonce_odr") would be resolved to the first definition in the process.
    assert set(linkages.values()) <= {"external", "internal"}
    assert all(("entry" in name) == (linkage == "external") for name, linkage in linkages.items())
    assert compiled.ctypes(2.0) == 3.5
    assert compat.build_function(entry, {})(2.0) == 3.5
