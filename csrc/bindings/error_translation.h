// Turns shardwright::Error into the Python class of its kind. Both modules use it; it knows
// pybind11 but no torch.

#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <exception>
#include <string>

#include "base/error.h"

namespace shardwright {

// Text as a Python string; bytes that are not UTF-8 (of a file's name) are written as escapes.
inline pybind11::str toPythonText(const std::string& text) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
  if (!decoded) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::str>(decoded);
}

// Makes every shardwright::Error that leaves a bound function of this module arrive in Python as
// the class of shardwright.errors named by its kind, with code, summary, values, where and advice
// set.
inline void registerErrorTranslation() {
  // pybind11 takes a plain function with its argument by value.
  // NOLINTNEXTLINE(performance-unnecessary-value-param)
  pybind11::register_local_exception_translator([](std::exception_ptr pending) {
    try {
      if (pending) {
        std::rethrow_exception(pending);
      }
    } catch (const Error& error) {
      using pybind11::literals::operator""_a;
      const std::string kind_name(errorKindName(error.kind()));
      const pybind11::object type =
          pybind11::module_::import("shardwright.errors").attr(kind_name.c_str());
      pybind11::list values;
      for (const std::string& value : error.details().values) values.append(toPythonText(value));
      const pybind11::object instance =
          type(toPythonText(error.summary()), "code"_a = error.code(), "values"_a = values,
               "where"_a = toPythonText(error.details().where),
               "advice"_a = toPythonText(error.details().advice));
      PyErr_SetObject(type.ptr(), instance.ptr());
    }
  });
}

}  // namespace shardwright
